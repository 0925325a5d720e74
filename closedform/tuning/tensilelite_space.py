"""TensileLite's kernels as a space: its parameters, pinned by a benchmark file, legal by its rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from closedform.decoding.errors import Undecodable
from closedform.decoding.matrix_instruction import nine_of
from closedform.interop.rules import broken_rules
from closedform.interop.tensilelite import ROUNDS, parameters_of_offer, problem_type
from closedform.interop.tensilelite_rules import RULES, Solution, invalid_values
from closedform.interop.tool import Offer

from .candidate import Candidate, Round, Value
from .rounds import TILE_MOST

__all__ = ["TensileliteSpace", "parameters_of_candidate"]

_WAVES = ((1, 4), (2, 2), (4, 1), (2, 1), (1, 2), (1, 1))
_WAVE_TILES = (1, 2, 4, 8)


def parameters_of_candidate(candidate: Candidate) -> dict[str, Any]:
    """Parameters as a benchmark file has them; a candidate joins the numbers of MatrixInstruction by x."""
    own: dict[str, Any] = dict(candidate)
    own["MatrixInstruction"] = [int(number) for number in str(own["MatrixInstruction"]).split("x")]
    return own


@dataclass(frozen=True, slots=True)
class TensileliteSpace:
    """Solutions of an offer's product around the offer's kernel."""

    offer: Offer

    def identity(self) -> Mapping[str, object]:
        op, hw = self.offer.op, self.offer.hw
        names = ("M", "N", "K", "batch", "dtype", "layout", "lda", "ldb", "ldd")
        return {
            **{name: getattr(op, name) for name in names},
            **{f"type {name}": value for name, value in problem_type(self.offer).items()},
            "op": "gemm of TensileLite",
            "hw": hw.name,
            "gfx": hw.gfx,
            "num_cus": hw.num_cus,
        }

    def start(self) -> Candidate:
        own = parameters_of_offer(self.offer)
        return own | {"MatrixInstruction": "x".join(map(str, own["MatrixInstruction"]))}

    def rounds(self) -> tuple[Round, ...]:
        tile = Round(
            "tile",
            "instruction, waves and their tiles, and the depth",
            {"MatrixInstruction": self._instructions(), "DepthU": (16, 32, 64, 128)},
            most=TILE_MOST,
        )
        others = []
        for name, axes in ROUNDS.items():
            opened = {p: v for p, v in axes.items() if len(v) > 1}
            fixed = tuple((p, v[0]) for p, v in axes.items() if len(v) == 1)
            others.append(Round(name, "", opened, most=TILE_MOST, fixed=fixed))
        return (tile, *others)

    def _instructions(self) -> tuple[Value, ...]:
        """A power-of-two spread of waves and wave tiles for every instruction of the type."""
        hw = self.offer.hw
        atoms = [a for a in hw.atoms_for(self.offer.op.dtype, emittable=False) if a.blocks == 1 and a.m in (16, 32)]
        return tuple(
            f"{a.m}x{a.n}x{a.k}x1x1x{tile_m}x{tile_n}x{wave_m}x{wave_n}"
            for a in atoms
            for wave_m, wave_n in _WAVES
            for tile_m in _WAVE_TILES
            for tile_n in _WAVE_TILES
        )

    def completed(self, values: Candidate, held: Candidate) -> Candidate | None:
        own = {**(held or self.start()), **values}
        parameters = parameters_of_candidate(own)
        try:
            nine = nine_of(parameters["MatrixInstruction"])
        except Undecodable:
            return None
        offer, hw = self.offer, self.offer.hw
        lengths = zip("AB", nine.macro_tile, strict=True)
        images = 2 if parameters["1LDSBuffer"] == 0 and parameters["PrefetchGlobalRead"] else 1
        padded = [length * (parameters["DepthU"] + max(0, parameters[f"LdsPad{a}"])) for a, length in lengths]
        lds_bytes = images * sum(padded) * offer.elem_bytes
        if lds_bytes > hw.lds_max_per_workgroup_bytes or parameters["DepthU"] % nine.k:
            return None
        known = parameters | {
            "MatrixInstruction": (nine.m, nine.n, nine.k, nine.blocks),
            "MIWaveTile": (nine.tile_m, nine.tile_n),
            "MIWaveGroup": (nine.wave_m, nine.wave_n),
        }
        layout = offer.kernel.transposed().layout or "NN"
        solution = Solution(known, layout, hw.num_cus, (offer.elem_bytes,) * 2)
        return None if broken_rules(RULES, solution) or invalid_values(parameters) else own

    def predicted_us(self, candidate: Candidate) -> float | None:
        from closedform.interop.offers import predicted_us
        from closedform.interop.tensilelite import kernel_of_parameters

        own = parameters_of_candidate(candidate)
        kernel = kernel_of_parameters(problem_type(self.offer), own, self.offer.hw)
        return predicted_us(self.offer.op, self.offer.hw, kernel)
