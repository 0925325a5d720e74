"""A roofline plot of one prediction."""

from __future__ import annotations

from pathlib import Path

from closedform.hw.descriptor import HardwareDescriptor
from closedform.hw.errors import BadInput, MissingDependency

from .answer import Prediction

__all__ = ["roofline_plot"]


def roofline_plot(p: Prediction, hw: HardwareDescriptor, dtype: str, path: str | Path) -> None:
    """Write the device's roofline (computed matrix peak, HBM rate) and the predicted point; the suffix is the format.

    Raises MissingDependency without matplotlib, BadInput for a suffix that it cannot write or a file that it may not.
    """
    try:
        import matplotlib
    except ImportError:
        raise MissingDependency("--plot needs matplotlib: pip install 'closedform[plot]'") from None
    matplotlib.use("svg" if str(path).endswith(".svg") else "agg")
    matplotlib.rcParams["svg.hashsalt"] = "closedform"
    from matplotlib import pyplot

    peak, rate = hw.peak_tflops(dtype), hw.hbm_bytes_per_s / 1e12
    intensity = p.flop / p.hbm_bytes
    ridge = peak / rate
    low, high = min(intensity, ridge) / 8, max(intensity, ridge) * 8
    figure, axes = pyplot.subplots(figsize=(6, 4))
    known = figure.canvas.get_supported_filetypes()
    if Path(path).suffix.removeprefix(".") not in known:
        pyplot.close(figure)
        raise BadInput(f"no plot of the kind {Path(path).name}: suffixes are {', '.join(sorted(known))}")
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
    figure.tight_layout()
    try:
        figure.savefig(path, metadata={"Date": None} if str(path).endswith(".svg") else None)
    except OSError as error:
        raise BadInput(f"cannot write {path}: {error.strerror}") from None
    finally:
        pyplot.close(figure)
