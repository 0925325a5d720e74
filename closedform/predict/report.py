"""Predictions and selections as text."""

from __future__ import annotations

from .answer import Prediction, Selection

__all__ = ["prediction_text", "selection_text"]


def _numbers(config: object) -> str:
    return ", ".join(f"{name} {value}" for name, value in dict(config).items())  # type: ignore[call-overload]


def prediction_text(p: Prediction) -> str:
    """The answer first, then the breakdown."""
    lines = [
        f"{p.op} on {p.hw}: {p.latency_us:.2f} us ({p.low_us:.2f} to {p.high_us:.2f}), bound by {p.bound}",
        f"  {p.tflops:.1f} TFLOPS, {p.hbm_bytes / 1e6:.2f} MB of compulsory traffic, {p.slots}",
    ]
    if p.config:
        lines.append(f"  configuration: {_numbers(p.config)}")
    lines += [f"  {name.replace('_', ' '):20} {value:12.3f} us" for name, value in p.parts_us.items()]
    lines += [f"  step, {name.replace('_', ' '):14} {value:12.1f} clk" for name, value in p.levels_clk.items()]
    lines += [f"  note: {note}" for note in p.notes]
    return "\n".join(lines)


def selection_text(s: Selection) -> str:
    """The best configuration, why, and the runners-up."""
    lines = [f"{s.op} on {s.hw}: {_numbers(s.best.config)}: {s.best.latency_us:.2f} us"]
    lines += [f"  {part}" for part in s.why.split("; ")]
    lines += [
        f"  {c.latency_us / s.best.latency_us:6.3f}x  {c.latency_us:10.2f} us  {_numbers(c.config)}"
        for c in s.runners_up
    ]
    other = s.closed_form.candidate
    if other is not None:
        factor = other.latency_us / s.best.latency_us
        lines.append(f"  {factor:6.3f}x  {other.latency_us:10.2f} us  closed form: {_numbers(other.config)}")
    lines.append(f"  of {s.legal} legal configurations, by the constants of {s.constants_of}")
    return "\n".join(lines)
