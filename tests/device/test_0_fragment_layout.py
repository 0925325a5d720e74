"""The minimal layout test: one MFMA, every element of C told apart. It runs before any kernel is believed."""

from __future__ import annotations

from pathlib import Path

import pytest
from closedform.hw import catalogue
from closedform.hw.descriptor import HardwareDescriptor
from closedform.visitors.emit_layout_probe import emit_layout_probe, probe_matrices

from closedform.bench import load_kernel

pytestmark = pytest.mark.device

SHAPES = sorted(
    {
        (atom.dtype_a.name, atom.m, atom.k)
        for name in catalogue.names()
        for atom in catalogue.get(name).atoms
        if atom.emit
    }
)


@pytest.mark.parametrize(("dtype", "m", "k"), SHAPES)
def test_fragment_layout(gpu: HardwareDescriptor, tmp_path: Path, dtype: str, m: int, k: int) -> None:
    import torch

    atoms = [a for a in gpu.atoms if a.emit and (a.dtype_a.name, a.m, a.k) == (dtype, m, k)]
    if not atoms:
        pytest.skip(f"{gpu.gfx} has no {dtype} {m}x{m}x{k} to emit")
    (atom,) = atoms
    path = tmp_path / "layout_probe.py"
    path.write_text(emit_layout_probe(atom))
    probe = load_kernel(path)
    a, b = (torch.tensor(matrix).to(probe.TORCH_DTYPE) for matrix in probe_matrices(atom))
    place_a, place_b, place_c = (
        {axis: torch.from_numpy(table) for axis, table in fragment_map.table().items()}
        for fragment_map in (atom.a, atom.b, atom.c)
    )
    found = probe.run(a[place_a["m"], place_a["k"]].cuda(), b[place_b["k"], place_b["n"]].cuda())
    assert torch.equal(found.cpu().long(), atom.n * place_c["m"] + place_c["n"])
