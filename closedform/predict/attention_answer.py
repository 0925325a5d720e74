"""`predict` and `select` of fused attention."""

from __future__ import annotations

from closedform.hw.descriptor import HardwareDescriptor
from closedform.hw.errors import BadInput
from closedform.operators.attention import Attention, AttentionTiles
from closedform.traffic import attention_flops, fused_bytes

from .answer import Candidate, ClosedForm, Prediction, Selection
from .attention_lattice import AttentionConfigs, attention_lattice, check_attention_config
from .attention_time import AttentionShape, attention_time
from .bands import band_for
from .closed_form import closed_form
from .constants import Constants, constants_for
from .legality import check_names
from .quantise import utilisation
from .step import STAGED_BUFFERS

__all__ = ["ATTENTION_CONFIG", "predict_attention", "select_attention"]

#: Options whose work the model does not know.
BEYOND = ("bias", "alibi", "softcap", "key_lengths", "varlen", "page")
#: What a configuration of attention is made of.
ATTENTION_CONFIG = ("tile_q", "tile_kv", "waves", "stages")


def _notes(op: Attention, k: Constants, hw: HardwareDescriptor) -> tuple[str, ...]:
    found = [] if k.gpu == hw.name else [f"constants of {k.gpu}; attention was not measured on {hw.name}"]
    if op.variant != "chained":
        found.append(f"the model is that of the chained variant, not of {op.variant}")
    if op.group > 1:
        found.append(f"the model reads K and V once for each of the {op.heads} heads")
    if op.window:
        found.append("the model has every query see the mean number of keys of the window")
    if op.decodes:
        found.append("the model does not split the keys over workgroups, as derived kernels of few queries do")
    beyond = [name for name in BEYOND if getattr(op, name)]
    if beyond:
        found.append(f"the model leaves out {', '.join(beyond)}")
    return tuple(found)


def _shape(op: Attention) -> AttentionShape:
    keys, causal = float(op.L_kv), op.causal
    if op.window:  # a band: as many keys for each query as it sees on the average
        keys, causal = max(op.visibility.pairs / op.L_q, 1.0), False
    d = (op.d + op.columns) / 2
    return AttentionShape(float(op.batch * op.heads), float(op.L_q), keys, d, causal, op.elem_bytes)


def _prediction(op: Attention, hw: HardwareDescriptor, config: dict[str, int]) -> Prediction:
    """The answer for one configuration, legal or not."""
    import numpy as np

    k = constants_for(hw, "attention")
    c = AttentionConfigs(*(np.array([float(config[n])]) for n in ATTENTION_CONFIG))
    t = attention_time(hw, k, c, _shape(op), hw.flops_per_clk_cu(op.dtype), detail=True)
    assert t.levels_clk is not None
    assert t.workgroups is not None
    assert t.rounds is not None
    latency = float(t.latency_us[0])
    levels = {name: float(np.ravel(v)[0]) for name, v in t.levels_clk.items()}
    low, high = band_for(k, hw, latency)
    flop = float(attention_flops(op))
    return Prediction(
        op="attention",
        hw=hw.name,
        latency_us=latency,
        low_us=latency * low,
        high_us=latency * high,
        bound="launch" if k["launch_us"] > latency / 2 else max(levels, key=lambda name: levels[name]),
        rounds=int(np.ravel(t.rounds)[0]),
        utilisation=utilisation(int(np.ravel(t.workgroups)[0]), hw.num_cus),
        tflops=flop / latency / 1e6,
        flop=flop,
        hbm_bytes=float(fused_bytes(op)),
        config=config,
        levels_clk=levels,
        parts_us={"launch": k["launch_us"], "main_loop": latency - k["launch_us"]},
        constants_of=k.gpu,
        calibrated=k.gpu == hw.name,
        notes=_notes(op, k, hw),
    )


def predict_attention(op: Attention, hw: HardwareDescriptor, **config: int) -> Prediction:
    """Latency of fused attention with a configuration (tile_q, tile_kv, waves, stages), or the selected one.

    Raises BadInput for a value that no kernel has, InfeasibleError for a configuration that the GPU does not hold.
    """
    check_names(config, ATTENTION_CONFIG)
    left_out = len(config) < len(ATTENTION_CONFIG)
    selected = select_attention(op, hw, count=1).best.config if left_out else {}
    chosen = {name: int({**selected, **config}[name]) for name in ATTENTION_CONFIG}
    if config:
        check_attention_config(hw, op.d, op.elem_bytes, chosen)
    return _prediction(op, hw, chosen)


def select_attention(op: Attention, hw: HardwareDescriptor, *, count: int = 4) -> Selection:
    """The fastest legal (tile_q, tile_kv, waves, stages) by the model, and runners-up."""
    import numpy as np

    hw.resolve_dtype(op.dtype)
    k = constants_for(hw, "attention")
    c = attention_lattice(hw, op.d, float(op.elem_bytes))
    if not len(c):
        raise BadInput(f"{hw.name} holds no tile of attention with d={op.d}")
    times = attention_time(hw, k, c, _shape(op), hw.flops_per_clk_cu(op.dtype)).latency_us
    order = np.argsort(times, kind="stable")[:count]
    found = [Candidate(c.at(int(i)), float(times[i])) for i in order]

    def explain() -> Prediction:
        return _prediction(op, hw, dict(found[0].config))

    return Selection(
        op="attention",
        hw=hw.name,
        best=found[0],
        runners_up=tuple(found[1:]),
        legal=len(c),
        band=band_for(k, hw, found[0].latency_us)[1],
        constants_of=k.gpu,
        calibrated=k.gpu == hw.name,
        explain=explain,
        compare=lambda: _closed_form(op, hw, explain()),
    )


def _closed_form(op: Attention, hw: HardwareDescriptor, best: Prediction) -> ClosedForm:
    """What `derive` takes, timed by the same model; its tile_q is a wave's, ours a workgroup's."""

    def timed(tiles: object) -> Prediction:
        t: AttentionTiles = tiles  # type: ignore[assignment]
        config = {"tile_q": t.block_q, "tile_kv": t.tile_kv, "waves": t.waves, "stages": STAGED_BUFFERS}
        return _prediction(op, hw, config)

    return closed_form(op, hw, best, timed)
