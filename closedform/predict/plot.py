"""A roofline plot of one prediction."""

from __future__ import annotations

from pathlib import Path

from closedform.hw.descriptor import HardwareDescriptor
from closedform.plotting import plot

from .answer import Prediction

__all__ = ["roofline_plot"]


def roofline_plot(p: Prediction, hw: HardwareDescriptor, dtype: str, path: str | Path) -> None:
    """Write the device's roofline (computed matrix peak, HBM rate) and the predicted point; raises as `plot` does."""
    peak, rate = hw.peak_tflops(dtype), hw.hbm_bytes_per_s / 1e12
    intensity = p.flop / p.hbm_bytes
    ridge = peak / rate
    low, high = min(intensity, ridge) / 8, max(intensity, ridge) * 8
    with plot(path, (6, 4)) as axes:
        axes.loglog([low, ridge, high], [low * rate, peak, peak], label=f"{hw.name} {dtype}")
        axes.errorbar(
            [intensity],
            [p.tflops],
            yerr=[[p.tflops * (1 - p.latency_us / p.high_us)], [p.tflops * (p.latency_us / p.low_us - 1)]],
            fmt="o",
            capsize=3,
            label=f"{p.op}: {p.latency_us:.1f} us, bound by {p.bound}",
        )
        axes.set_xlabel("operations per byte of compulsory traffic")
        axes.set_ylabel("TFLOPS")
        axes.legend()
