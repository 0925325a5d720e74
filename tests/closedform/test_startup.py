"""What an import and a short command load, and how long they take."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ["numpy", "sympy", "torch", "flydsl", "pydantic", "rich"]


def loaded_after(code: str) -> set[str]:
    """Which of the heavy packages a child process has loaded after the code."""
    report = f"\nimport sys; print(*(name for name in {HEAVY!r} if name in sys.modules), sep=',', file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code + report], capture_output=True, text=True, timeout=60, check=True)
    return set(filter(None, done.stderr.strip().splitlines()[-1].split(","))) if done.stderr.strip() else set()


@pytest.mark.parametrize(
    "code",
    [
        "import closedform",
        "import closedform.hw.catalogue",
        "import closedform; closedform.HardwareDescriptor; closedform.Attention; closedform.Gemm",
        "import closedform; closedform.hardware('mi300x').peak_tflops('f16')",
        "from closedform.cli import cli",
    ],
)
def test_import_loads_nothing_heavy(code: str) -> None:
    assert loaded_after(code) == set()


@pytest.mark.parametrize("arguments", [["hw", "list"], ["hw", "atoms", "mi355x"], ["hw", "show", "mi100", "--json"]])
def test_hw_loads_nothing_heavy(arguments: list[str]) -> None:
    code = f"from closedform.cli import cli\ntry: cli({arguments!r})\nexcept SystemExit as e: assert not e.code"
    assert loaded_after(code) == set()


@pytest.mark.parametrize(
    "arguments",
    [
        ["derive", "attention", "--L", "512", "--d", "64", "--hw", "mi300x"],
        ["derive", "attention", "--L", "512", "--d", "64", "--hw", "mi300x", "--explain"],
    ],
)
def test_deriving_needs_neither_torch_nor_flydsl(arguments: list[str]) -> None:
    code = f"from closedform.cli import cli\ntry: cli({arguments!r})\nexcept SystemExit as e: assert not e.code"
    assert loaded_after(code).isdisjoint({"torch", "flydsl"})


def test_hw_list_starts_fast() -> None:
    """0.1 s on an idle core: counted in modules that `closedform hw list` loads, so that a busy one does not decide."""
    code = "from closedform.cli import cli\ntry: cli(['hw', 'list'])\nexcept SystemExit as e: assert not e.code"
    code += "\nimport sys; print(len(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert int(done.stdout.splitlines()[-1]) < 200  # an empty program loads half as many


def test_public_names_resolve() -> None:
    import closedform

    for name in closedform.__all__:
        assert getattr(closedform, name) is not None
    assert set(dir(closedform)) == set(closedform.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = closedform.nothing
