"""The minimal layout test: one MFMA, every element of C told apart. It runs before any kernel is believed."""

from __future__ import annotations

from pathlib import Path

import pytest

from closedform.emitted_file import load_kernel
from closedform.hw import catalogue
from closedform.hw.descriptor import HardwareDescriptor
from closedform.visitors.emit_layout_probe import emit_layout_probe
from closedform.visitors.layout_probe import pack, probe_matrices, unpack_integers

pytestmark = pytest.mark.device

OFFERED = sorted(
    {
        (atom.dtype_a.name, atom.dtype_b.name, atom.m, atom.k)
        for name in catalogue.names()
        for atom in catalogue.get(name).atoms
        if atom.emit
    }
)


@pytest.mark.parametrize("wanted", OFFERED, ids=str)
def test_fragment_layout(gpu: HardwareDescriptor, tmp_path: Path, wanted: tuple[str, str, int, int]) -> None:
    import torch

    atoms = [a for a in gpu.atoms if a.emit and (a.dtype_a.name, a.dtype_b.name, a.m, a.k) == wanted]
    if not atoms:
        pytest.skip(f"{gpu.gfx} has no {wanted}")
    (atom,) = atoms
    path = tmp_path / "layout_probe.py"
    path.write_text(emit_layout_probe(atom))
    a, b = probe_matrices(atom)
    transposed = [list(column) for column in zip(*b, strict=True)]
    words = (pack(a, atom.a, atom.dtype_a), pack(transposed, atom.b, atom.dtype_b))
    lanes = load_kernel(path).run(*(torch.tensor(w, dtype=torch.int32, device="cuda") for w in words))
    expected = [[atom.n * i + j for j in range(atom.n)] for i in range(atom.m)]
    assert unpack_integers(lanes.cpu().tolist(), atom.c) == expected
