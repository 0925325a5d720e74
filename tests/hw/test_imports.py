"""Importing closedform.hw is cheap and loads a descriptor in milliseconds."""

import subprocess
import sys

import pytest

HEAVY = ("numpy", "pydantic", "sympy", "torch", "flydsl", "rich")


@pytest.mark.parametrize("code", ["", "closedform.hw.get('mi300x').peak_tflops('f16')"])
def test_nothing_heavy_is_imported(code):
    program = f"import sys, closedform.hw\n{code}\nprint([m for m in {HEAVY} if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_a_descriptor_loads_fast():
    program = (
        "import time, closedform.hw as hw\n"
        "start = time.process_time(); hw.get('mi355x'); print(time.process_time() - start)"
    )
    runs = [
        float(subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout)
        for _ in range(3)
    ]
    assert min(runs) < 0.015


def test_every_public_name_exists():
    from closedform import hw

    assert all(hasattr(hw, name) for name in hw.__all__)
    assert len(set(hw.__all__)) == len(hw.__all__)
