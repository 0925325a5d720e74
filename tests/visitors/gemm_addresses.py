"""The address arithmetic of an emitted file run on integers that refuse to overflow.

The helpers of an emitted kernel are plain functions. Given integers of 32 and 64 bits that raise where a GPU's would
wrap, they compute on the host what a thread computes, at any size.
"""

from __future__ import annotations

import sys
import types
from typing import Any


class Int:
    """A whole number of `bits` bits; leaving its range raises."""

    def __init__(self, value: Any, bits: int) -> None:
        self.value, self.bits = int(value), bits
        if not -(2 ** (bits - 1)) <= self.value < 2 ** (bits - 1):
            raise OverflowError(f"{self.value} does not fit {bits} bits")

    def __int__(self) -> int:
        return self.value

    __index__ = __int__

    def _with(self, other: Any, result: int) -> Int:
        return Int(result, max(self.bits, getattr(other, "bits", 0)))

    def select(self, yes: Any, no: Any) -> Any:
        return yes if self.value else no


#: The offset of a masked access: unsigned, it stays out of range whatever is added.
OUT_OF_RANGE = 2**31 - 16


def _operator(name: str, function: Any) -> None:
    def forward(self: Int, other: Any) -> Int:
        if name == "add" and self.value == OUT_OF_RANGE:
            return self
        return self._with(other, function(self.value, int(other)))

    def backward(self: Int, other: Any) -> Int:
        return self._with(other, function(int(other), self.value))

    setattr(Int, f"__{name}__", forward)
    setattr(Int, f"__r{name}__", backward)


for _name, _function in (
    ("add", lambda a, b: a + b),
    ("sub", lambda a, b: a - b),
    ("mul", lambda a, b: a * b),
    ("floordiv", lambda a, b: a // b),
    ("mod", lambda a, b: a % b),
    ("and", lambda a, b: a & b),
    ("or", lambda a, b: a | b),
    ("xor", lambda a, b: a ^ b),
    ("lshift", lambda a, b: a << b),
    ("rshift", lambda a, b: a >> b),
):
    _operator(_name, _function)
for _name, _function in (
    ("lt", lambda a, b: a < b),
    ("gt", lambda a, b: a > b),
    ("le", lambda a, b: a <= b),
    ("ge", lambda a, b: a >= b),
    ("eq", lambda a, b: a == b),
):
    setattr(Int, f"__{_name}__", lambda self, other, f=_function: Int(f(self.value, int(other)), 32))
Int.__neg__ = lambda self: Int(-self.value, self.bits)  # type: ignore[attr-defined]


class _Anything(types.ModuleType):
    """A module of which every name is callable and means nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything(name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return args[0] if len(args) == 1 and callable(args[0]) else _Anything("value")


def namespace(source: str) -> dict[str, Any]:
    """The emitted file's names, on checked integers; `resource` returns (address, extent)."""
    fx = _Anything("flydsl.expr")
    fx.Int32 = lambda value=0: Int(value, 32)  # type: ignore[attr-defined]
    fx.Int64 = lambda value=0: Int(value, 64)  # type: ignore[attr-defined]
    gpu = _Anything("gpu")
    fx.gpu = gpu  # type: ignore[attr-defined]
    fakes = {
        "flydsl": _Anything("flydsl"),
        "flydsl.expr": fx,
        "flydsl.compiler": _Anything("flydsl.compiler"),
        "flydsl.expr.typing": _Anything("flydsl.expr.typing"),
        "flydsl._mlir": _Anything("flydsl._mlir"),
        "flydsl._mlir.dialects": _Anything("flydsl._mlir.dialects"),
        "flydsl._mlir.dialects.rocdl": _Anything("rocdl"),
        "torch": _Anything("torch"),
    }
    fakes["flydsl"].expr = fx  # type: ignore[attr-defined]
    fakes["flydsl"].compiler = fakes["flydsl.compiler"]  # type: ignore[attr-defined]
    kept = {name: sys.modules.get(name) for name in fakes}
    sys.modules.update(fakes)
    try:
        names: dict[str, Any] = {"__name__": "emitted"}
        exec(compile(source, "emitted.py", "exec"), names)
    finally:
        for name, module in kept.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module
    names["resource"] = lambda address, extent: (int(address), max(0, int(extent)))
    names["stride"] = lambda tensor, axis: Int(tensor[axis], 64)
    names["address_of"] = lambda tensor: Int(0, 64)
    names["gpu"] = gpu
    return names


def place(names: dict[str, Any], M: int, N: int, K: int, x: int, y: int, z: int = 0) -> tuple[int, ...]:
    """What the workgroup (x, y, z) works on: M, K, first row, first column, batch entry."""
    names["gpu"].block_idx = types.SimpleNamespace(x=x, y=y, z=z)
    return tuple(int(v) for v in names["place"](Int(M, 32), Int(N, 32), Int(K, 32)))
