"""Latency of a softmax over rows: a pass over memory with its arithmetic."""

from __future__ import annotations

from closedform.hw.descriptor import HardwareDescriptor
from closedform.operators.softmax import Softmax
from closedform.traffic import softmax_bytes, softmax_flops

from .answer import Prediction
from .bands import borrowed_band
from .constants import constants_for
from .families import gemm_family
from .quantise import rounds, utilisation

__all__ = ["predict_softmax"]


def predict_softmax(op: Softmax, hw: HardwareDescriptor) -> Prediction:
    """Launch plus the slower of one read and one write, and the arithmetic.

    Rates are those of the GPU's GEMM constants, so the figure is a derivation and not a fit. A step of `levels_clk` is
    a row of every compute unit.
    """
    rows = op.rows
    k = constants_for(hw, gemm_family(hw))
    active = min(rows, hw.num_cus)
    saturation = active / (active + k["cus_half"]) * (1 + k["cus_half"] / k["cus"])
    moved = float(softmax_bytes(op))
    memory = moved / (k["hbm_share"] * hw.hbm_bytes_per_s / 1e6 * saturation)
    flop = float(softmax_flops(op))
    clk_per_us = hw.clock_mhz * k["clock_share"]
    vector = flop / (hw.vector_f32_flops_per_clk_cu / 2 * active * clk_per_us)
    latency = k["launch_us"] + max(memory, vector)
    low, high = borrowed_band(latency)
    levels_us = {"hbm": memory, "vector": vector}
    steps = rounds(rows, hw.num_cus)
    return Prediction(
        op="softmax",
        hw=hw.name,
        latency_us=latency,
        low_us=latency * low,
        high_us=latency * high,
        bound="launch" if k["launch_us"] > latency / 2 else max(levels_us, key=lambda name: levels_us[name]),
        rounds=steps,
        utilisation=utilisation(rows, hw.num_cus),
        tflops=flop / latency / 1e6,
        flop=flop,
        hbm_bytes=moved,
        config={},
        levels_clk={name: us * clk_per_us / steps for name, us in levels_us.items()},
        parts_us={"launch": k["launch_us"], "main_loop": max(memory, vector)},
        constants_of=k.gpu,
        calibrated=False,
        notes=("derived from the constants of the GEMM model, not measured",),
    )
