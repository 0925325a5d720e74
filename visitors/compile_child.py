"""Child process of compile.py: traces one emitted file and writes its assembly. Arguments: source, output."""

import importlib.util
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any


class _Done(Exception):
    """Ends the trace once the assembly is written: there is no GPU to load it on."""


def main(source: str, output: str) -> None:
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


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
