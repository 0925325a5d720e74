"""The emitted text of a softmax."""

import ast
from pathlib import Path

import pytest

from closedform.hw import catalogue
from closedform.operators.softmax import Softmax
from closedform.visitors.emit import emit_source, kernel_name
from closedform.visitors.feasibility import derive

#: A row in registers; a row that several workgroups share.
GOLDEN = [("mi300x", Softmax(8192, 4096, "bf16")), ("mi210", Softmax(1, 1000000, log=True, lse=True))]
TEXTS = [
    *GOLDEN,
    ("mi100", Softmax(5, 61, "f16", mask=True)),
    ("mi355x", Softmax(8192, 300001, "f16", mask=True, lse=True, empty="nan")),
]


def derived(hw, op):
    return derive(op, catalogue.get(hw))


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
    assert {"run", "reference", "main", "compile_only"} <= functions
    names = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
    names |= {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
    assert functions - {"__init__", "main", "run", "compile_only"} <= names, "a function that nothing calls"


def test_no_golden_file_is_left_over():
    folder = Path(__file__).parent.parent / "golden" / "visitors" / Path(__file__).stem
    assert {p.stem for p in folder.iterdir()} == {kernel_name(derived(hw, op)) for hw, op in GOLDEN}
