"""Derivations and emissions as text: 100 columns, no colour codes, the same on a terminal and in a pipe."""

from __future__ import annotations

from io import StringIO
from typing import TYPE_CHECKING, Any

from .operators.operator import described
from .text import WIDTH, wrapped
from .visitors.derivation import tiles_json

if TYPE_CHECKING:
    from rich.table import Table

    from .emission import Emission
    from .visitors.derivation import Derivation, GridVerdict, NodeCheck, PredictedResources
    from .visitors.formula import FormulaValue

__all__ = ["emission_summary", "explanation", "summary"]


def summary(derivation: Derivation) -> str:
    """Tiles, the binding capacity and the grid verdict: a few lines."""
    lines = [_title(derivation)]
    if derivation.tiles is None:
        lines.append(f"infeasible: {derivation.infeasible}")
    else:
        lines.append(f"tiles     {_pairs(tiles_json(derivation.tiles))}")
        lines.append(f"binding   {derivation.binding}")
    if (resources := derivation.resources) is not None:
        lines.append(
            f"predicted {resources.registers} of {resources.register_budget} registers, "
            f"{resources.lds_bytes} of {resources.lds_limit_bytes} B of LDS, "
            f"{_count(resources.waves_per_simd, 'wave')} per SIMD"
        )
    if derivation.grid is not None:
        lines.append(f"grid      {_grid_line(derivation.grid)}")
    return wrapped("\n".join(lines), indent=10)


def explanation(derivation: Derivation) -> str:
    """Every formula as text with the numbers put in; registers and LDS; the grid verdict; what binds."""
    parts = [_title(derivation), _render(_formulas(derivation.steps))]
    if derivation.tiles is None:
        parts.append(f"Infeasible: {derivation.infeasible}")
    else:
        parts.append(f"Tiles: {_pairs(tiles_json(derivation.tiles))}\nBinding capacity: {derivation.binding}")
    if derivation.limits:
        parts.append(f"Largest that the capacities allow: {_pairs(dict(derivation.limits))}")
    if derivation.checks:
        parts.append(_render(_checks(derivation.checks)))
    if derivation.resources is not None:
        parts.append(_render(_live_set(derivation.resources)))
        parts.append(_lds_line(derivation.resources))
    if derivation.grid is not None:
        parts.append(f"Grid: {_grid_line(derivation.grid)}\n{derivation.grid.verdict}")
    parts += [f"Note: {note}" for note in derivation.notes]
    return "\n\n".join(wrapped(part) for part in parts)


def emission_summary(emission: Emission) -> str:
    """Which files were written, and predicted beside compiled resources."""
    predicted, compiled = emission.resources["predicted"], emission.resources["compiled"]
    lines = [summary(emission.derivation)]
    if compiled is not None:
        lines.append(
            f"compiled  {compiled['registers']} registers ({compiled['vgpr']} arch, {compiled['agpr']} acc; "
            f"{predicted['registers']} predicted), {compiled['sgpr']} scalar, "
            f"{compiled['vgpr_spills'] + compiled['sgpr_spills']} spills, {compiled['lds_bytes']} B of LDS, "
            f"{_count(int(compiled['waves_per_simd']), 'wave')} per SIMD"
        )
    written = [path for path in (emission.kernel, emission.manifest, emission.isa) if path is not None]
    return "\n".join([wrapped("\n".join(lines), indent=10), *(f"wrote     {path}" for path in written)])


def _title(derivation: Derivation) -> str:
    op = described(derivation.op)
    return f"{derivation.op.name}: {_pairs(op)} on {derivation.hw}, model {derivation.model}"


def _pairs(values: dict[str, Any]) -> str:
    return " ".join(f"{name}={_number(value)}" for name, value in values.items())


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _grid_line(grid: GridVerdict) -> str:
    shape = " x ".join(map(str, grid.grid))
    return (
        f"{shape} = {grid.blocks} workgroups on {grid.num_cus} CUs ({grid.blocks_per_cu:.2f} per CU), "
        f"{grid.workgroups_per_cu} at a time on each: {_count(grid.rounds, 'round')}, "
        f"{grid.utilisation:.1%} of the slots used"
    )


def _lds_line(resources: PredictedResources) -> str:
    free = resources.lds_limit_bytes - resources.lds_bytes
    return (
        f"LDS of one workgroup: {resources.lds_bytes} B of {resources.lds_limit_bytes} B, {free} B free; "
        f"{_count(resources.waves_per_simd, 'wave')} per SIMD"
    )


def _formulas(steps: tuple[FormulaValue, ...]) -> Table:
    table = _table("Formulas, in the order in which they decide", "value", "formula, numbers put in")
    for step in steps:
        numbers = ", ".join(f"{name}={_number(value)}" for name, value in step.inputs.items())
        value = f"{_number(step.value)} {step.formula.unit}".rstrip()
        table.add_row(
            f"{value}\n** binds **" if step.binds else value,
            f"{step.formula.name}\n  {step.formula.text}\n  {numbers}",
        )
        table.add_section()
    return table


def _live_set(resources: PredictedResources) -> Table:
    table = _table("Registers of one lane, live at once", "what", "registers", "file", "why")
    table.columns[1].justify = "right"
    for item in resources.items:
        table.add_row(item.name, str(item.registers), item.file, item.why)
    table.add_section()
    halves = f"{resources.arch_registers} arch, {resources.acc_registers} acc"
    table.add_row("predicted", str(resources.registers), "", f"{halves}; budget {resources.register_budget}")
    return table


def _checks(checks: tuple[NodeCheck, ...]) -> Table:
    table = _table("Capacities, level by level", "level", "resource", "needed", "limit", "unit", "holds")
    for column in table.columns[2:4]:
        column.justify = "right"
    for check in checks:
        numbers = (_number(check.needed), _number(check.limit))
        table.add_row(check.level, check.resource, *numbers, check.unit, "yes" if check.ok else "NO")
    return table


def _table(title: str, *headers: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="", box=box.ASCII2, show_lines=False)
    for header in headers:
        table.add_column(header, overflow="fold")
    return table


def _render(table: Table) -> str:
    from rich.console import Console

    text = StringIO()
    console = Console(file=text, width=WIDTH, color_system=None, force_terminal=False, emoji=False, markup=False)
    console.print(table)
    return "\n".join(line.rstrip() for line in text.getvalue().rstrip().splitlines())
