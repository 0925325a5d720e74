"""One tuning: the space and the evaluator that were asked for, the descent, and the grid beside it."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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

__all__ = ["EVALUATORS", "NothingMeasured", "Source", "Tuning", "meter_of", "run_tuning"]

EVALUATORS = ("device", "model", "profile", "table", "tensilelite")


class NothingMeasured(ClosedformError):
    """No candidate gave a time, not even the start."""

    exit_status = 4


@dataclass(frozen=True, slots=True)
class Source:
    """What measures: the evaluator's name, the table that it replays, TensileLite's client, workgroups that `profile`
    runs; `start` is derive, select, or a kernel of another tool; `causal` of attention in a table or of the model."""

    evaluator: str
    table: Path | None = None
    client: str = ""
    blocks: int = 2
    start: str = ""
    causal: bool = False


@dataclass(frozen=True, slots=True)
class Tuning:
    """The descent and, where asked for, the grid of the same budget."""

    descent: Trajectory
    grid: Trajectory | None = None

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
    if source.evaluator == "table":
        space, evaluator = _table(op, hw, source)
    elif source.evaluator == "tensilelite":
        space, evaluator = _tensilelite(op, hw, source)
    else:
        space, evaluator = _own(op, hw, source)
    return Meter(space, evaluator, **meter)


def _table(op: Any, hw: HardwareDescriptor, source: Source) -> tuple[Space, Evaluator]:
    from .table import TableEvaluator, read_landscapes

    if source.table is None:
        raise BadInput("the evaluator table needs --table FILE")
    if source.start not in ("", "select"):
        raise BadInput(f"--start {source.start}: a table's search starts from select")
    for landscape in read_landscapes(source.table, hw):
        # Of a product the table's type of D is taken, and leading dimensions are tight.
        own = op if isinstance(op, Attention) else dataclasses.replace(landscape.op, **_shape(op))
        if landscape.op == own and landscape.causal == source.causal:
            return _lattice(landscape.op, hw, source.causal), TableEvaluator(landscape)
    raise BadInput(f"{source.table} has not {_described(op, source.causal)}")


def _shape(op: Gemm) -> dict[str, Any]:
    return {name: getattr(op, name) for name in ("M", "N", "K", "batch", "dtype", "layout")}


def _described(op: Gemm | Attention, causal: bool) -> str:
    if isinstance(op, Attention):
        masked = ", causal" if causal else ""
        return f"the attention batch={op.batch} heads={op.heads} L={op.L_q} d={op.d} {op.dtype}{masked}"
    return f"the product M={op.M} N={op.N} K={op.K} {op.dtype} {op.layout}"


def _lattice(op: Gemm | Attention, hw: HardwareDescriptor, causal: bool) -> Space:
    from .lattice_space import attention_space, gemm_space

    return attention_space(op, hw, causal) if isinstance(op, Attention) else gemm_space(op, hw)


def _tensilelite(op: Gemm, hw: HardwareDescriptor, source: Source) -> tuple[Space, Evaluator]:
    from closedform.interop.offers import accepted, derived_offer
    from closedform.interop.tensilelite import TOOL

    from .starts import overrides_of, start_kernel
    from .tensilelite_client import TensileliteEvaluator
    from .tensilelite_space import TensileliteSpace

    kernel = start_kernel(source.start or "derive", op, hw)
    overrides = {} if kernel is None else overrides_of(kernel, hw)
    offer, _ = accepted(TOOL, derived_offer(op, hw, **overrides))
    return TensileliteSpace(offer), TensileliteEvaluator(offer, tuple(shlex.split(source.client)))


def _own(op: Any, hw: HardwareDescriptor, source: Source) -> tuple[Space, Evaluator]:
    """Kernels of ours by the device, the model or the profile; a GPU without any has the model's lattice."""
    from .model import ModelEvaluator
    from .operator_space import OperatorSpace
    from .starts import overrides_of, start_kernel

    space: Space
    if isinstance(op, (Gemm, Attention)) and source.evaluator == "model" and hw.wavefront_size != _WAVE:
        space = _lattice(op, hw, source.causal)
        return space, ModelEvaluator(space)
    if source.causal:
        raise BadInput("--causal: emitted attention has no mask yet; a table or a GPU of the model alone has")
    overrides: dict[str, Any] = {}
    if source.start not in ("", "derive"):
        if not isinstance(op, Gemm):
            raise BadInput(f"--start {source.start}: {op.name} starts from derive")
        kernel = start_kernel(source.start, op, hw)
        overrides = {} if kernel is None else overrides_of(kernel, hw)
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


#: Lanes of a wave of the GPUs that we emit kernels for.
_WAVE = 64


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
    if descent.best_us is None and descent.stopped != "interrupted":
        first = next((r.failure for r in book.of_task(meter.task) if r.failure), "nothing was measured")
        raise NothingMeasured(f"no candidate gave a time; the first: {first}")
    if not grid or descent.stopped == "interrupted":
        return Tuning(descent)
    return Tuning(descent, one_shot(Meter(meter.space, meter.evaluator, book, limit, seen)))
