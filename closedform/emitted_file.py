"""Emitted files as modules: as a GPU user imports them, or with their launches recorded instead of made."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .hw.sim import Program, Result

__all__ = ["Launched", "execute_launch", "load_kernel", "recorded_file", "recorded_module", "words_of"]

#: Called for every launch with the kernel's name, its arguments by parameter name, and the grid.
Launched = Callable[[str, dict[str, Any], tuple[int, int, int]], None]


def load_kernel(path: Path) -> ModuleType:
    """Import an emitted file under its own name."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot import {path}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def recorded_module(source: str, launched: Launched) -> ModuleType:
    """The emitted source as a module whose run() calls `launched` where it would launch a kernel on the GPU.

    Everything else of the host side is the file's own: checks, copies, workspaces, grids. Needs FlyDSL and torch.
    """
    module = ModuleType("emitted")
    code = compile(source, "emitted.py", "exec")
    with _recording(launched):
        exec(code, module.__dict__)
    return _without_streams(module)


def recorded_file(path: Path, launched: Launched) -> ModuleType:
    """The same of an emitted file, with the files beside it that it loads."""
    with _recording(launched):
        return _without_streams(load_kernel(path))


def _without_streams(module: ModuleType) -> ModuleType:
    """The module, and those that it has loaded, with CPU tensors allowed in a launch."""
    for part in (module, *(value for value in vars(module).values() if isinstance(value, ModuleType))):
        if "stream_of" in vars(part):
            vars(part)["stream_of"] = lambda _tensor, stream: stream
    return module


@contextmanager
def _recording(launched: Launched) -> Iterator[None]:
    """FlyDSL's decorators replaced: functions of the host stay as they are, calls of kernels are recorded."""
    import flydsl.compiler as flyc

    def kernel(**_: Any) -> Callable[[Any], Any]:
        def decorate(function: Any) -> Any:
            parameters = list(inspect.signature(function).parameters)

            def call(*values: Any, value_attrs: Any = None) -> SimpleNamespace:
                named = dict(zip(parameters, values, strict=True))

                def launch(*, grid: tuple[int, int, int], block: Any, stream: Any) -> None:
                    launched(function.__name__, named, grid)

                return SimpleNamespace(launch=launch)

            return call

        return decorate

    kept = flyc.jit, flyc.kernel
    flyc.jit, flyc.kernel = (lambda function: function), kernel
    try:
        yield
    finally:
        flyc.jit, flyc.kernel = kept


def execute_launch(
    program: Program,
    kernel: str,
    values: dict[str, Any],
    grid: tuple[int, int, int],
    outputs: Collection[str],
    *,
    partial: bool = False,
    **options: Any,
) -> Result:
    """Execute a recorded launch on the simulator, with the simulator's own `options`.

    The tensors named in `outputs` start undefined; with `partial` the kernel need not store all of them.
    """
    import torch

    from .hw.sim import Out, flydsl_args, run

    arguments = []
    for parameter, value in values.items():
        words = words_of(value) if isinstance(value, torch.Tensor) else value
        arguments.append(Out(words, partial=partial) if parameter in outputs else words)
    name = next(k for k in program.kernels if k.startswith(kernel))
    return run(program, flydsl_args(program.kernel(name), arguments), grid, kernel=name, **options)


def words_of(tensor: Any) -> Any:
    """A CPU tensor's memory as a numpy array; whole words of its size where numpy lacks the type."""
    import torch

    if tensor.dtype is torch.bfloat16:
        return tensor.view(torch.int16).numpy()
    if tensor.is_floating_point() and tensor.element_size() == 1:
        return tensor.view(torch.int8).numpy()
    return tensor.numpy()
