"""`predict` and `select` of a matrix product."""

from __future__ import annotations

import math
from collections.abc import Mapping

from closedform.hw.descriptor import HardwareDescriptor
from closedform.hw.dtypes import dtype as dtype_named
from closedform.operators.gemm import Gemm, GemmTiles

from .answer import Candidate, ClosedForm, Prediction, Selection
from .bands import band_for
from .closed_form import closed_form
from .configs import Configs, configs
from .constants import Constants
from .gemm import gemm_shapes, gemm_timing
from .lattice import check_gemm_config, family_configs
from .legality import check_names
from .quantise import utilisation
from .select import GemmSelector, gemm_selector
from .step import STAGED_BUFFERS

__all__ = ["GEMM_CONFIG", "predict_gemm", "select_gemm"]

#: What a configuration of a product is made of.
GEMM_CONFIG = ("tile_m", "tile_n", "tile_k", "waves", "stages", "split_k")


def _notes(op: Gemm, k: Constants, hw: HardwareDescriptor) -> tuple[str, ...]:
    found = []
    if k.gpu != hw.name:
        found.append(f"constants of {k.gpu}, scaled by the descriptor: run `closedform fit` for this GPU")
    left_out = [
        text
        for text, given in (
            ("the bias", op.bias != "none"),
            ("the activation", op.activation != "none"),
            ("leading dimensions", any((op.lda, op.ldb, op.ldd))),
            ("the order of pre-shuffled operands", op.preshuffled != "none"),
        )
        if given
    ]
    if left_out:
        found.append(f"the model leaves out {', '.join(left_out)}")
    return tuple(found)


def _selector(op: Gemm, hw: HardwareDescriptor, constants: Constants | None) -> GemmSelector:
    """Of the operator's types; C is read where D is written, so beta C doubles the bytes of the result."""
    bits = dtype_named(op.result).bits * (2 if op.has_c else 1)
    return gemm_selector(hw, op.dtype, op.layout, bits, constants)


def _public(config: Mapping[str, int]) -> dict[str, int]:
    return {name: config[name] for name in GEMM_CONFIG}


def _prediction(
    op: Gemm, selector: GemmSelector, c: Configs, config: Mapping[str, int], *, stream_k: bool = False
) -> Prediction:
    """The answer for one configuration, legal or not."""
    hw, k = selector.hw, selector.constants
    s = gemm_shapes(op.M, op.N, op.K, selector.elem_bytes, selector.out_bytes, op.layout, op.batch)
    t = gemm_timing(hw, c, s, op.dtype, constants=k, stream_k=stream_k, detail=True)
    assert t.levels_clk is not None
    assert t.parts_us is not None
    assert t.rounds is not None
    assert t.tiles is not None
    levels = {name: float(v.ravel()[0]) for name, v in t.levels_clk.items()}
    parts = {name: float(v.ravel()[0]) for name, v in t.parts_us.items()}
    latency = float(t.latency_us.ravel()[0])
    bound = max(levels, key=lambda name: levels[name])
    if parts["launch"] + parts["prologue_epilogue"] > latency / 2:
        bound = "launch"
    low, high = band_for(k, hw, latency)
    flop = 2.0 * op.M * op.N * op.K * op.batch
    grid = hw.num_cus if stream_k else int(t.tiles.ravel()[0]) * config["split_k"]
    return Prediction(
        op="gemm",
        hw=hw.name,
        latency_us=latency,
        low_us=latency * low,
        high_us=latency * high,
        bound=bound,
        rounds=int(t.rounds.ravel()[0]),
        utilisation=utilisation(grid, hw.num_cus),
        tflops=flop / latency / 1e6,
        flop=flop,
        hbm_bytes=op.batch * ((op.M + op.N) * op.K * s.elem_bytes + op.M * op.N * s.out_bytes),
        config=config,
        levels_clk=levels,
        parts_us=parts,
        constants_of=k.gpu,
        calibrated=k.gpu == hw.name,
        notes=_notes(op, k, hw),
    )


def predict_gemm(op: Gemm, hw: HardwareDescriptor, *, constants: Constants | None = None, **config: int) -> Prediction:
    """Latency of a product with a configuration, or with the one `select` takes where none is given.

    `config`: tile_m, tile_n, tile_k, waves, stages, split_k; what is left out is the selected one's. `constants`: a
    user's own, from `constants_from`.
    Raises BadInput for a type that is not of the GPU and for a value that no kernel has, InfeasibleError for a
    configuration that the GPU does not hold.
    """
    check_names(config, GEMM_CONFIG)
    selector = _selector(op, hw, constants)
    family = selector.constants.family
    chosen = dict(config)
    if len(config) < len(GEMM_CONFIG):
        ranking = selector.rank(op.M, op.N, op.K, op.batch)
        chosen = _public({**ranking.configs.at(int(ranking.order(1)[0])), **config})
    if config:
        check_gemm_config(hw, family, op.dtype, chosen, op.K)
    return _prediction(op, selector, family_configs(family, **chosen), chosen)


def select_gemm(op: Gemm, hw: HardwareDescriptor, count: int = 4, *, constants: Constants | None = None) -> Selection:
    """The fastest legal configuration by the model, and `count` - 1 runners-up."""
    selector = _selector(op, hw, constants)
    k = selector.constants
    ranking = selector.rank(op.M, op.N, op.K, op.batch)
    found = [
        Candidate(_public(ranking.configs.at(int(i))), float(ranking.latency_us[i]))
        for i in ranking.order(count)
        if math.isfinite(ranking.latency_us[i])
    ]

    def explain() -> Prediction:
        return predict_gemm(op, hw, constants=constants, **found[0].config)

    return Selection(
        op="gemm",
        hw=hw.name,
        best=found[0],
        runners_up=tuple(found[1:]),
        legal=len(ranking.configs),
        band=band_for(k, hw, found[0].latency_us)[1],
        constants_of=k.gpu,
        calibrated=k.gpu == hw.name,
        explain=explain,
        compare=lambda: _closed_form(op, selector, explain()),
    )


def _closed_form(op: Gemm, selector: GemmSelector, best: Prediction) -> ClosedForm:
    """What `derive` takes, timed by the same model."""

    def timed(tiles: object) -> Prediction:
        t: GemmTiles = tiles  # type: ignore[assignment]
        c = configs(t.tile_m, t.tile_n, t.tile_k, wave_m=t.wave_m, wave_n=t.wave_n, mfma_m=t.atom.m, split_k=t.split_k)
        config = {
            "tile_m": t.tile_m,
            "tile_n": t.tile_n,
            "tile_k": t.tile_k,
            "waves": t.waves,
            "stages": STAGED_BUFFERS,
            "split_k": t.split_k,
        }
        return _prediction(op, selector, c, config, stream_k=bool(t.stream_k))

    return closed_form(op, selector.hw, best, timed)
