"""Kernel arguments: values to the bytes that a kernel reads, as the metadata lays them out."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import AssemblyError
from .memory import Memory
from .parse import Argument, Kernel

__all__ = ["Out", "flydsl_args", "pack_kernarg", "tensor_descriptor"]


class Out:
    """Marks an array argument as an output: its bytes start poisoned, and each one must be stored.

    `partial` says that the kernel need not store all of it.
    """

    def __init__(self, array: NDArray[Any], partial: bool = False) -> None:
        self.array = array
        self.partial = partial


def tensor_descriptor(array: NDArray[Any], size: int | None = None, stride_bits: int = 64) -> bytes:
    """The packed struct that FlyDSL passes behind a tensor's pointer: shape as int32, strides as int64 or int32.

    Strides count elements; the first axis of stride 1 is compiled in and left out. Raises AssemblyError where there is
    none, and unless the length is `size`.
    """
    elements = [s // array.itemsize for s in array.strides]
    if array.ndim and 1 not in elements:
        raise AssemblyError("one axis of a FlyDSL tensor has stride 1")
    shape = struct.pack(f"<{array.ndim}i", *array.shape)
    leading = elements.index(1) if array.ndim else 0
    strides = elements[:leading] + elements[leading + 1 :]
    packed = shape + struct.pack(f"<{len(strides)}{'q' if stride_bits == 64 else 'i'}", *strides)
    if size is not None and len(packed) != size:
        raise AssemblyError(
            f"a tensor of {array.ndim} axes has {len(packed)} B of shape and strides, the kernel wants {size}"
        )
    return packed


def flydsl_args(kernel: Kernel, values: Sequence[Any]) -> list[Any]:
    """Arguments of a FlyDSL kernel from its tensors and numbers: each array gets its descriptor struct behind it.

    A tensor without a dynamic shape or stride has no struct, and none is added.
    """
    expanded: list[Any] = []
    explicit = [a for a in kernel.arguments if not a.kind.startswith("hidden_")]
    for value in values:
        if len(expanded) >= len(explicit):
            raise AssemblyError(f"{kernel.name} takes fewer than {len(values)} arguments")
        expanded.append(value)
        array = value.array if isinstance(value, Out) else value
        if not isinstance(array, np.ndarray):
            continue
        following = explicit[len(expanded)] if len(expanded) < len(explicit) else None
        if following is not None and following.kind == "by_value":
            for bits in (64, 32):
                if len(packed := tensor_descriptor(array, None, bits)) == following.size:
                    expanded.append(packed)
                    break
    if len(expanded) != len(explicit):
        raise AssemblyError(f"{kernel.name} takes {len(explicit)} arguments, {len(expanded)} were made of the values")
    return expanded


def pack_kernarg(
    kernel: Kernel,
    values: Sequence[Any],
    memory: Memory,
    grid: Sequence[int],
    block: Sequence[int],
    dynamic_lds: int = 0,
) -> bytearray:
    """Kernel argument memory. Arrays are placed in `memory`; ints, floats and bytes are packed by size.

    A value may also be a numpy scalar. Hidden arguments (block counts, group sizes) are filled in.
    Raises AssemblyError where number or size do not fit the metadata.
    """
    packed = bytearray(kernel.kernarg_bytes)
    explicit = [a for a in kernel.arguments if not a.kind.startswith("hidden_")]
    if len(explicit) != len(values):
        raise AssemblyError(f"{kernel.name} takes {len(explicit)} arguments, {len(values)} were given")
    placed: dict[int, int] = {}
    for number, (argument, value) in enumerate(zip(explicit, values, strict=True)):
        name = argument.name or f"argument {number}"
        if isinstance(value, (Out, np.ndarray)):
            raw = _pointer(memory, name, value, placed)
        else:
            raw = _bytes(argument, value, name)
        if len(raw) != argument.size:
            raise AssemblyError(f"{name} of {kernel.name} is {argument.size} B, the value given {len(raw)} B")
        packed[argument.offset : argument.offset + argument.size] = raw
    for argument in kernel.arguments:
        if argument.kind.startswith("hidden_"):
            value = _hidden(argument.kind, grid, block, dynamic_lds)
            packed[argument.offset : argument.offset + argument.size] = value.to_bytes(argument.size, "little")
    return packed


def _pointer(memory: Memory, name: str, value: Any, placed: dict[int, int]) -> bytes:
    array = value.array if isinstance(value, Out) else value
    if not isinstance(array, np.ndarray):
        raise AssemblyError(f"{name}: an output must be a numpy array")
    if id(array) not in placed:
        buffer = memory.add(name, array, output=isinstance(value, Out))
        buffer.partial = isinstance(value, Out) and value.partial
        placed[id(array)] = buffer.base
    return struct.pack("<Q", placed[id(array)])


def _bytes(argument: Argument, value: Any, name: str) -> bytes:
    if isinstance(value, (bytes, bytearray)):
        return bytes(value)
    if isinstance(value, float):
        return struct.pack({2: "<e", 4: "<f", 8: "<d"}[argument.size], value)
    if isinstance(value, np.generic):
        return value.tobytes()
    if isinstance(value, int):
        return (value & ((1 << (8 * argument.size)) - 1)).to_bytes(argument.size, "little")
    raise AssemblyError(f"{name}: no way to pass a {type(value).__name__}")


def _hidden(kind: str, grid: Sequence[int], block: Sequence[int], dynamic_lds: int) -> int:
    axis = {"x": 0, "y": 1, "z": 2}.get(kind[-1], 0)
    if kind.startswith("hidden_block_count"):
        return grid[axis]
    if kind.startswith("hidden_group_size"):
        return block[axis]
    if kind == "hidden_dynamic_lds_size":
        return dynamic_lds
    if kind == "hidden_grid_dims":
        return 3 if grid[2] > 1 else 2 if grid[1] > 1 else 1
    return 0
