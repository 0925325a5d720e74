"""Importing closedform.hw is cheap and loads a descriptor in milliseconds: counted in calls, not timed."""

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
    """7000 calls take 4 ms on an idle core."""
    program = (
        "import sys, closedform.hw as hw\n"
        "events = []; sys.setprofile(lambda frame, event, arg: events.append(event))\n"
        "hw.get('mi355x'); sys.setprofile(None)\n"
        "print(events.count('call') + events.count('c_call'))"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(found.stdout) < 10000


def test_every_public_name_exists():
    from closedform import hw

    assert all(hasattr(hw, name) for name in hw.__all__)
    assert len(set(hw.__all__)) == len(hw.__all__)
