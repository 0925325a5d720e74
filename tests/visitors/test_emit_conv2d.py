"""The emitted text of a convolution."""

import ast
from pathlib import Path

import pytest

from closedform.operators.conv2d import Conv2d
from closedform.visitors.emit import emit_source, kernel_name

from .conv2d_kernels import derived

GOLDEN = [
    ("mi300x", Conv2d(8, 128, 56, 56, 128, 3, 3, pad=1, dtype="f16")),
    ("mi300x", Conv2d(8, 192, 56, 56, 192, 7, 7, pad=3, groups=192, dtype="f16")),
]
TEXTS = [
    *GOLDEN,
    ("mi210", Conv2d(8, 3, 224, 224, 64, 7, 7, stride=2, pad=3, dtype="bf16", layout="NCHW", bias=True)),
    ("mi355x", Conv2d(8, 64, 28, 28, 96, 3, 3, groups=2, dtype="f16", prepacked=True, activation="gelu")),
    ("mi100", Conv2d(1, 24, 20, 20, 16, 5, 5, dilation=2, stride=(2, 1))),
    ("mi100", Conv2d(1, 24, 20, 20, 24, 3, 3, groups=24, dtype="bf16", layout="NCHW", bias=True, activation="gelu")),
]


@pytest.mark.parametrize(("hw", "op"), GOLDEN, ids=str)
def test_emitted_text_is_the_golden_text(hw, op, golden):
    derivation = derived(hw, op)
    golden(f"{kernel_name(derivation)}.py", emit_source(derivation))


@pytest.mark.parametrize(("hw", "op"), TEXTS, ids=str)
def test_the_text_is_python_that_needs_only_flydsl_and_torch(hw, op):
    tree = ast.parse(emit_source(derived(hw, op)))
    modules = {n.module or "" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    modules |= {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    assert {m.split(".")[0] for m in modules} <= {"flydsl", "torch", "math", "sys", "typing"}
    functions = {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}
    assert {"run", "reference", "main", "compile_only", "conv2d_kernel"} <= functions
    names = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
    names |= {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
    entries = {"__init__", "main", "run", "compile_only", "pack_w", "unpack_w"}
    assert functions - entries <= names, "a function that nothing calls"


def test_no_golden_file_is_left_over():
    folder = Path(__file__).parent.parent / "golden" / "visitors" / Path(__file__).stem
    assert {p.stem for p in folder.iterdir()} == {kernel_name(derived(hw, op)) for hw, op in GOLDEN}
