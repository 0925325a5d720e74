"""The sanitizers on a real kernel: each wait and each barrier that is taken out of emitted attention is missed.

Slow: some 80 simulations. Run with `pytest -m slow tests/hw/sim/test_mutations.py`.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys

import numpy as np
import pytest

from closedform.hw.sim import Out, flydsl_args, parse_text, run
from closedform.hw.sim.testing import relative_error

pytestmark = [pytest.mark.slow, pytest.mark.compile]
LENGTH, D = 200, 128


@pytest.fixture(scope="module")
def assembly(tmp_path_factory):
    pytest.importorskip("flydsl")
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("emitted")
    command = ["emit", "attention", "--L", "1024", "--d", str(D), "--hw", "mi300x", "--isa", "--out", str(folder)]
    program = "import sys; from closedform.cli import main; sys.argv[0] = 'closedform'; main()"
    subprocess.run([sys.executable, "-c", program, *command], check=True, capture_output=True)
    tiles = json.loads(next(folder.glob("*.json")).read_text())["tiles"]
    return next(folder.glob("*.s")).read_text(), tiles["tile_q"] * tiles["waves"]


def simulate(lines, rows):
    program = parse_text("\n".join(lines))
    kernel = program.kernel()
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 1, LENGTH, D)).astype(np.float32) for _ in range(3))
    out = np.zeros_like(q)
    values = [q, k, v, Out(out), LENGTH, LENGTH, D**-0.5]
    result = run(program, flydsl_args(kernel, values), (-(-LENGTH // rows), 1, 1))
    scores = (q.astype(np.float64) @ k.astype(np.float64).swapaxes(2, 3)) * D**-0.5
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    want = weights / weights.sum(-1, keepdims=True) @ v.astype(np.float64)
    return result, relative_error(out, want)


def test_the_kernel_itself_is_sound(assembly):
    text, rows = assembly
    result, error = simulate(text.split("\n"), rows)
    assert result.ok, str(result)
    assert error < 1e-6


def test_every_wait_and_barrier_is_missed(assembly):
    text, rows = assembly
    lines = text.split("\n")
    places = [n for n, line in enumerate(lines) if re.match(r"\t(s_waitcnt|s_barrier)\b", line)]
    assert len(places) > 20
    unnoticed = []
    for place in places:
        changed = [*lines[:place], "\ts_nop 0", *lines[place + 1 :]]
        if simulate(changed, rows)[0].ok:
            unnoticed.append(f"line {place + 1}: {lines[place].strip()}")
    assert unnoticed == []
