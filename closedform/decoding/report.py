"""A decoded kernel as text."""

from __future__ import annotations

from closedform.interop.kernel import Kernel

from .explanation import Explanation, difference

__all__ = ["explanation_text"]


def _tile(k: Kernel) -> str:
    parts = [f"tile {k.tile_m}x{k.tile_n}x{k.tile_k}"]
    if k.mfma is not None:
        parts.append(f"mfma {'x'.join(map(str, k.mfma[:3]))}" + (f" of {k.mfma[3]} blocks" if k.mfma[3] > 1 else ""))
    if k.wave_m is not None:
        parts.append(f"waves {k.wave_m}x{k.wave_n}" + (f"x{k.wave_k}" if k.wave_k > 1 else ""))
    elif k.waves is not None:
        parts.append(f"{k.waves} waves")
    named = (("split_k", k.split_k), ("stream_k", k.stream_k), ("group_m", k.group_m), ("xcds", k.xcds))
    return "  ".join([*parts, *(f"{name}={value}" for name, value in named if value is not None)])


def explanation_text(e: Explanation) -> str:
    """The kernel, what it needs, whether it is legal, and the comparison with the closed form."""
    found, hw = e.found, e.hw
    which = f" (kernel {e.number} of {e.count})" if e.count > 1 else ""
    lines = [f"{found.tool}{which}: {found.name}".rstrip(": "), f"kernel    {_tile(e.own)}"]
    if found.column_major:
        lines.append(f"row-major {_tile(found.kernel)}  layout {found.kernel.layout}")
    types = " x ".join(dict.fromkeys(found.types)) or "type unknown"
    lines.append(f"types     {types}" + (f" to {found.kernel.out_dtype}" if found.kernel.out_dtype else ""))
    lines.append(
        f"needs     {_count(e.needs.registers)} of {hw.vgpr_per_wave_max} registers, {_count(e.needs.lds_bytes)} of "
        f"{hw.lds_max_per_workgroup_bytes} B of LDS, at least"
    )
    lines.append(f"legal     {'yes' if e.legal else 'no'} on {hw}" + "".join(f"\n          {r}" for r in e.reasons))
    if e.op is not None:
        op = e.op
        lines.append(f"product   M={op.M} N={op.N} K={op.K} batch={op.batch} {op.dtype} {op.layout}, row-major")
    times = (("measured", found.measured_us), ("predicted", e.predicted_us))
    lines += [f"{name:9} {us:.2f} us" for name, us in times if us is not None]
    other = e.closed_form
    if other is not None and other.kernel is not None:
        lines.append(f"closed    {_tile(other.kernel)}")
        if other.predicted_us is not None:
            lines.append(f"          {other.predicted_us:.2f} us predicted, {other.why}{difference(e.slower_by)}")
    elif other is not None:
        lines.append(f"closed    none: {other.why}")
    if found.parameters:
        shown = "  ".join(f"{name}={_value(value)}" for name, value in found.parameters.items())
        lines.append(f"fields    {shown}")
    return "\n".join([*lines, *(f"note      {note}" for note in found.notes)])


def _count(value: int | None) -> str:
    return "unknown" if value is None else str(value)


def _value(value: object) -> str:
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)
