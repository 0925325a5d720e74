"""The worked values in the docstrings."""

import doctest
import importlib

import pytest

MODULES = [
    "atoms",
    "catalogue",
    "chain",
    "descriptor",
    "dtypes",
    "errors",
    "fragments",
    "lds",
    "limits",
    "occupancy",
    "tables",
    "userfile",
]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    assert doctest.testmod(importlib.import_module(f"closedform.hw.{name}")).failed == 0
