"""One tuning: the space and the evaluator that were asked for, the descent, and the grid beside it."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from closedform.hw.atoms import MFMA_LANES
from closedform.hw.descriptor import HardwareDescriptor
from closedform.hw.errors import BadInput, ClosedformError, near_names
from closedform.operators.attention import Attention
from closedform.operators.gemm import Gemm

from .descent import Plan, descend
from .evaluator import Evaluator
from .grid import one_shot
from .journal import Journal, Record
from .measuring import Budget, Meter
from .space import Space
from .trajectory import RoundResult, Trajectory

__all__ = ["BLOCKS", "EVALUATORS", "NothingMeasured", "Source", "Tuning", "meter_of", "run_tuning"]

EVALUATORS = ("device", "model", "profile", "table", "tensilelite")


#: Workgroups that the evaluator profile runs.
BLOCKS = 2


class NothingMeasured(ClosedformError):
    """No candidate gave a time, not even the start."""

    exit_status = 4


@dataclass(frozen=True, slots=True)
class Source:
    """What measures: the evaluator's name, the table that it replays, TensileLite's client, workgroups that `profile`
    runs; `start` is derive, select, or a kernel of another tool."""

    evaluator: str
    table: Path | None = None
    client: str = ""
    blocks: int = BLOCKS
    start: str = ""


@dataclass(frozen=True, slots=True)
class Tuning:
    """The descent and, where asked for, the grid of the same budget; why the journal could not be kept or nothing more
    could be measured, if so, and what is to be said of the evaluator's data."""

    descent: Trajectory
    grid: Trajectory | None = None
    error: ClosedformError | None = None
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {**self.descent.to_json(), "grid": None if self.grid is None else self.grid.to_json()}


def meter_of(op: Any, hw: HardwareDescriptor, source: Source, **meter: Any) -> Meter:
    """The space and the evaluator of that source. `meter`: journal, budget and seen of the Meter.

    Raises BadInput where they do not go together, NoDevice and MissingDependency as the evaluator does.
    """
    if source.evaluator not in EVALUATORS:
        raise BadInput(f"no evaluator {source.evaluator!r}: {near_names(source.evaluator, EVALUATORS)}")
    known = {"table": (Gemm, Attention), "tensilelite": (Gemm,)}.get(source.evaluator)
    if known is not None and not isinstance(op, known):
        raise BadInput(f"the evaluator {source.evaluator} does not time {op.name}")
    options = (("table", source.table), ("tensilelite", source.client), ("profile", source.blocks != BLOCKS))
    names = {"table": "--table", "tensilelite": "--client", "profile": "--blocks"}
    if foreign := [name for name, value in options if value and name != source.evaluator]:
        raise BadInput(f"{names[foreign[0]]} is of the evaluator {foreign[0]}, not of {source.evaluator}")
    if source.evaluator == "table":
        space, evaluator, notes = _table(op, hw, source)
        return Meter(space, evaluator, notes=notes, **meter)
    if source.evaluator == "tensilelite":
        space, evaluator = _tensilelite(op, hw, source)
    else:
        space, evaluator = _own(op, hw, source)
    return Meter(space, evaluator, **meter)


#: What lattices and tables tell products and attentions apart by.
_EXTENTS = {
    "gemm": ("M", "N", "K", "dtype", "batch", "layout", "out_dtype"),
    "attention": ("L_q", "L_kv", "d", "batch", "heads", "dtype"),
}


def _require_plain(op: Gemm | Attention, what: str) -> None:
    """Raises BadInput for parts of a product that `what` would not see."""
    plain = type(op)(**{name: getattr(op, name) for name in _EXTENTS[op.name]})
    names = (field.name for field in dataclasses.fields(op))
    if given := [name for name in names if getattr(op, name) != getattr(plain, name)]:
        raise BadInput(f"{what} knows nothing of {', '.join(given)}: leave it out")


def _require_start(source: Source, what: str) -> None:
    """Raises BadInput for a start that a search of `what` cannot have."""
    if source.start not in ("", "select"):
        raise BadInput(f"--start {source.start}: a search of {what} starts from select")


def _table(op: Any, hw: HardwareDescriptor, source: Source) -> tuple[Space, Evaluator, tuple[str, ...]]:
    from .table import TableEvaluator, read_landscapes

    if source.table is None:
        raise BadInput("the evaluator table needs --table FILE")
    _require_start(source, "a table")
    _require_plain(op, "a table")
    for landscape in read_landscapes(source.table, hw):
        if type(landscape.op) is not type(op):
            raise BadInput(f"{source.table} is a table of {landscape.op.name}, not of {op.name}")
        # Of a product the table's type of D is taken where none is asked for.
        own = op
        if isinstance(op, Gemm) and isinstance(landscape.op, Gemm) and not op.out_dtype:
            own = dataclasses.replace(op, out_dtype=landscape.op.out_dtype)
        if landscape.op == own:
            repeated = f"{source.table} has {landscape.repeated} configurations twice: the last row of each counts"
            notes = (repeated,) if landscape.repeated else ()
            return _lattice(landscape.op, hw), TableEvaluator(landscape), notes
    raise BadInput(f"{source.table} has not {_described(op)}")


def _described(op: Gemm | Attention) -> str:
    if isinstance(op, Attention):
        masked = ", causal" if op.causal else ""
        return f"the attention batch={op.batch} heads={op.heads} L={op.L_q} d={op.d} {op.dtype}{masked}"
    return f"the product M={op.M} N={op.N} K={op.K} {op.dtype} {op.layout}"


def _lattice(op: Gemm | Attention, hw: HardwareDescriptor) -> Space:
    from .lattice_space import attention_space, gemm_space

    return attention_space(op, hw) if isinstance(op, Attention) else gemm_space(op, hw)


def _tensilelite(op: Gemm, hw: HardwareDescriptor, source: Source) -> tuple[Space, Evaluator]:
    from closedform.interop.offers import accepted, derived_offer
    from closedform.interop.tensilelite import TOOL

    from .starts import overrides_of, start_kernel
    from .tensilelite_client import TensileliteEvaluator
    from .tensilelite_space import TensileliteSpace

    kernel = start_kernel(source.start or "derive", op, hw)
    overrides = {} if kernel is None else overrides_of(kernel, hw)
    offer, _ = accepted(TOOL, derived_offer(op, hw, **overrides))
    if lost := TOOL.unsaid(offer):
        raise BadInput("; ".join(lost))
    try:
        client = tuple(shlex.split(source.client))
    except ValueError:
        raise BadInput(f"--client {source.client}: a quotation mark or a backslash has no end") from None
    return TensileliteSpace(offer), TensileliteEvaluator(offer, client)


def _own(op: Any, hw: HardwareDescriptor, source: Source) -> tuple[Space, Evaluator]:
    """Kernels of ours by the device, the model or the profile; a GPU without any has the model's lattice."""
    from .model import ModelEvaluator
    from .operator_space import OperatorSpace
    from .starts import attention_overrides, overrides_of, start_kernel

    space: Space
    if isinstance(op, (Gemm, Attention)) and source.evaluator == "model" and hw.wavefront_size != MFMA_LANES:
        _require_start(source, f"the model's lattice of {hw.name}")
        _require_plain(op, f"the model's lattice of {hw.name}")
        space = _lattice(op, hw)
        return space, ModelEvaluator(space)
    overrides: dict[str, Any] = {}
    if source.start not in ("", "derive"):
        if isinstance(op, Attention):
            overrides = attention_overrides(source.start, op, hw)
        elif isinstance(op, Gemm):
            kernel = start_kernel(source.start, op, hw)
            overrides = {} if kernel is None else overrides_of(kernel, hw)
        else:
            raise BadInput(f"--start {source.start}: {op.name} starts from derive")
    space = OperatorSpace(op, hw, overrides)
    if source.evaluator == "model":
        if op.name == "conv2d":
            raise BadInput("the model times no tiles of a direct convolution: use --evaluator profile or device")
        return space, ModelEvaluator(space)
    if source.evaluator == "profile":
        from .profiled import ProfileEvaluator

        return space, ProfileEvaluator(op, hw, source.blocks)
    from .device import DeviceEvaluator

    return space, DeviceEvaluator(op, hw)


def run_tuning(
    op: Any,
    hw: HardwareDescriptor,
    source: Source,
    *,
    journal: Path | None = None,
    budget: Budget | None = None,
    plan: Plan | None = None,
    grid: bool = False,
    seen: Callable[[Record, bool], None] = lambda record, new: None,
    told: Callable[[RoundResult], None] = lambda result: None,
) -> Tuning:
    """Search from the start, and from nowhere on a grid of the same budget where asked for.

    Raises NothingMeasured where no candidate gave a time, with the first reason; JournalError for a file that is none.
    """
    book, limit = Journal(journal), budget or Budget()
    meter = meter_of(op, hw, source, journal=book, budget=limit, seen=seen)
    descent = descend(meter, plan, told)
    if descent.best_us is None and meter.broken is not None:
        raise meter.broken
    if descent.stopped == "time" and not descent.measurements:
        raise BadInput(f"a budget of {limit.seconds} s: over before the first measurement")
    if descent.best_us is None and descent.stopped != "interrupted":
        first = next((r.failure for r in book.of_task(meter.task) if r.failure), "nothing was measured")
        raise NothingMeasured(f"no candidate gave a time; the first: {first}")
    if not grid or descent.stopped in ("interrupted", "journal", "evaluator"):
        return Tuning(descent, None, meter.broken, meter.notes)
    # As many measurements as the descent took, where it had no limit.
    same = limit if limit.evaluations else dataclasses.replace(limit, evaluations=max(2, descent.measurements))
    other = Meter(meter.space, meter.evaluator, book, same, seen)
    return Tuning(descent, one_shot(other), other.broken, meter.notes)
