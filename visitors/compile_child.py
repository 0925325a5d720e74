"""Child process of compile.py: traces emitted files and writes their assembly.

A request is a line of JSON on the standard input: source and output, a log for what is printed, the environment. Each
is served by a fork, which LLVM may end; the answer is its exit status on a line. FlyDSL and torch are imported once,
before the forks: that takes longer than most compilations.
"""

import importlib.util
import json
import os
import sys
import traceback
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any


class _Done(Exception):
    """Ends the trace once the assembly is written: there is no GPU to load it on."""


def to_assembly(source: str, output: str) -> None:
    """Write the assembly of the source's kernel; ends the process with a message where there is none."""
    from flydsl.compiler import jit_function
    from flydsl.compiler.llvm_options import llvm_options

    def to_isa(cls: Any, asm: str, *, func_name: str, config: Any) -> Any:
        """FlyDSL's own pipeline with the assembly text as its last stage in place of the linked binary."""
        module = jit_function.ir.Module.parse(asm)
        stages = [*config.fragments[:-1], "gpu-module-to-binary{format=isa}"]
        with llvm_options(config.llvm_opts) if config.llvm_opts else nullcontext():
            jit_function._run_pipeline(module, stages, verifier=True, print_after_all=False)
        text = module.operation.get_asm(enable_debug_info=False)
        Path(output).write_text(jit_function._extract_isa_text(text), encoding="utf-8")
        raise _Done

    jit_function.MlirCompiler.compile = classmethod(to_isa)
    spec = importlib.util.spec_from_file_location("emitted_kernel", source)
    if spec is None or spec.loader is None:
        sys.exit(f"{source} is no Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    try:
        module.compile_only()
    except _Done:
        return
    sys.exit("the source compiled no kernel")


def serve(request: dict[str, Any]) -> None:
    """What a fork does; never returns."""
    status = 1
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.environ.clear()
    os.environ.update(request["environment"])
    try:
        to_assembly(request["source"], request["output"])
        status = 0
    except SystemExit as end:
        print(end, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever an import prints is no answer
    with suppress(Exception):  # a fork says what is missing
        from flydsl.compiler import jit_function  # noqa: F401
    for line in sys.stdin:
        fork = os.fork()
        if not fork:
            serve(json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1]), file=answers, flush=True)


if __name__ == "__main__":
    main()
