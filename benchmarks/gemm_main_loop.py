"""Static share of the matrix core in the main loop of emitted GEMMs, beside other kernels compiled in the same run.

    python benchmarks/gemm_main_loop.py [--mca llvm-mca-22] [--flydsl CHECKOUT] [--isa FILE.s ...]

The share is the clocks of the loop's MFMAs over the clocks that llvm-mca gives one wave for one pass: a bound of a lone
wave, without bandwidths and without waiting for other waves. One llvm-mca cycle is 4 clocks. --flydsl compiles FlyDSL's
own GEMMs from a checkout; --isa takes the assembly of any kernel. The limits are what the emitted kernels are held to.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from closedform.hw import catalogue
from closedform.operators.gemm import Gemm
from closedform.visitors.compile import CompileError, compile_source
from closedform.visitors.emit import emit_source
from closedform.visitors.feasibility import derive

SHAPE = (4096, 4096, 4096)
SLOT_CLOCKS = 4
#: (GPU, type, layout and pre-shuffled operands): least share.
OURS = {
    **{("mi300x", t, "NT"): 0.95 for t in ("bf16", "f16", "fp8")},
    **{("mi300x", t, layout): 0.90 for t in ("bf16", "f16") for layout in ("NN", "TN", "TT")},
    **{("mi355x", t, "NT"): 0.93 for t in ("bf16", "f16")},
    **{("mi355x", t, layout): 0.80 for t in ("bf16", "f16") for layout in ("NN", "TN", "TT")},
    ("mi355x", "fp8", "NT"): 0.83,
    **{(gpu, "f32", layout): 0.97 for gpu in ("mi210", "mi300x") for layout in ("NT", "NN", "TN", "TT")},
    **{("mi100", "f32", layout): 0.90 for layout in ("NT", "NN", "TN", "TT")},
    **{("mi300x", t, f"NT {packed}"): 0.95 for t in ("bf16", "f16", "fp8") for packed in ("B", "A", "AB")},
    **{("mi355x", t, f"NT {packed}"): 0.90 for t in ("bf16", "f16", "fp8") for packed in ("B", "A", "AB")},
    **{(gpu, "f32", "NT B"): 0.97 for gpu in ("mi210", "mi300x", "mi355x")},
    ("mi100", "f32", "NT B"): 0.83,
    ("mi100", "f32", "NT AB"): 0.97,
}
PRESHUFFLE = """
import sys
sys.path.insert(0, {path!r})
import flydsl.expr as fx
import torch
from kernels.gemm.preshuffle_gemm import compile_preshuffle_gemm

def compile_only():
    kind = {{"bf16": torch.bfloat16, "fp16": torch.float16}}.get({dtype!r}, torch.int8)
    launch = compile_preshuffle_gemm(N=4096, K=4096, tile_m={m}, tile_n={n}, tile_k={k}, in_dtype={dtype!r})
    a, b, c = (torch.zeros(4096 * 4096, dtype=t) for t in (kind, kind, torch.bfloat16))
    scale = torch.zeros(4096)
    launch(c, a, b, scale, scale, c, 4096, 4096, fx.Stream(None))
"""
A16W16 = """
import sys
sys.path.insert(0, {path!r})
import flydsl.expr as fx
import torch
from kernels.gemm import gemm_a16w16_gfx950 as gemm

def compile_only():
    param = gemm.make_gemm_a16w16_gfx950_param(
        gemm.GEMM_A16W16_DTYPE_BF16, gemm.GEMM_A16W16_DTYPE_BF16, use_half_tile_interleaved=True,
        a_is_transposed={a}, b_is_transposed={b},
    )
    plain = torch.zeros(4096, 4096, dtype=torch.bfloat16)
    t = lambda turned: plain.t() if turned else plain
    tensor = lambda x, axis: gemm._dynamic_tensor_arg(x, axis)
    flag, bias = torch.zeros(256, dtype=torch.int32), torch.zeros(4096, dtype=torch.bfloat16)
    a, b = tensor(t({a}), {a_axis}), tensor(t({b}), {b_axis})
    gemm.gemm_a16w16_gfx950(tensor(plain, 1), a, b, bias, flag, flag, 1, param, fx.Stream(None))
"""


def main_loop(isa: str) -> list[str]:
    """Instructions of the innermost loop with the most MFMAs: from its label to the branch back to it."""
    lines = [line.split(";")[0].strip() for line in isa.splitlines()]
    labels = {line[:-1]: i for i, line in enumerate(lines) if line.endswith(":")}
    best: list[str] = []
    for i, line in enumerate(lines):
        found = re.match(r"s_c?branch\w*\s+(\S+)", line)
        if found and labels.get(found.group(1), i) < i:
            body = [x for x in lines[labels[found.group(1)] : i] if x and not x.endswith(":") and not x.startswith(".")]
            inner = sum(x.startswith("s_cbranch") for x in body) == 0
            if sum("v_mfma" in x for x in body) > sum("v_mfma" in x for x in best) and (inner or not best):
                best = body
    return [line for line in best if not line.startswith(("s_branch", "s_cbranch"))]


def matrix_clocks(gfx: str, line: str) -> int:
    """Clocks of one MFMA from the catalogued atoms; f8f6f4 as an 8-bit operand takes."""
    mnemonic = line.split(maxsplit=1)[0].replace("_scale", "").removesuffix("_e64")
    plain = re.sub(r"_(\d+x\d+x\d+)_?(\d+b_)?", r"_\1", mnemonic).replace("_", "")
    for name in catalogue.names():
        hw = catalogue.get(name)
        if hw.gfx == gfx:
            for atom in hw.atoms:
                if atom.blocks == 1 and atom.instruction.replace("_", "") == plain:
                    return atom.cycles
    raise SystemExit(f"{gfx} has no {mnemonic}")


def share(isa: str, mca: str) -> tuple[float, int]:
    """(matrix clocks / clocks of a pass, MFMAs of a pass)."""
    gfx = re.search(r"amdgcn-amd-amdhsa-\w*-(gfx\w+)", isa)
    assert gfx is not None
    body, lines, clocks, count = main_loop(isa), [], 0, 0
    for line in body:
        nops = re.match(r"s_nop (\d+)", line)
        lines += ["s_nop 0"] * (int(nops.group(1)) + 1) if nops else [line]
        if "v_mfma" in line:
            clocks, count = clocks + matrix_clocks(gfx.group(1), line), count + 1
            if "f8f6f4" in line:  # llvm-mca gives 8-bit operands the time of 4-bit ones: a second one makes up for it
                lines.append(re.sub(r"^(\S+ [^,]+, [^,]+, [^,]+), [^, ]+", r"\1, 0", line))
    with tempfile.NamedTemporaryFile("w", suffix=".s") as file:
        file.write("\n".join(lines) + "\n")
        file.flush()
        cycles = []
        for iterations in (100, 200):
            command = [mca, "-mtriple=amdgcn", f"-mcpu={gfx.group(1)}", f"-iterations={iterations}", file.name]
            text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            found = re.search(r"Total Cycles:\s+(\d+)", text)
            assert found is not None
            cycles.append(int(found.group(1)))
    return clocks / ((cycles[1] - cycles[0]) / 100 * SLOT_CLOCKS), count


def row(name: str, binary, mca: str, limit: float | None) -> bool:
    got, count = share(binary.isa, mca)
    held = limit is None or (got >= limit and binary.vgpr_spills == 0)
    bound = "" if limit is None else f"{limit:.2f}"
    verdict = "" if limit is None else "yes" if held else "NO"
    spills = f"{binary.vgpr_spills}/{binary.sgpr_spills}"
    print(
        f"{name:44} {binary.vgpr_total:4} {spills:>6} {binary.lds_bytes:6} {count:5} {got:6.3f} {bound:>5} {verdict}",
        flush=True,
    )
    return held


def theirs(checkout: str):
    """(name, target, adapter) of FlyDSL's hand-written GEMMs."""
    path = str(Path(checkout).resolve())
    for gfx, dtype, m, n, k in (
        ("gfx942", "bf16", 128, 128, 64),
        ("gfx942", "bf16", 128, 256, 64),
        ("gfx942", "fp8", 128, 128, 128),
        ("gfx950", "bf16", 128, 128, 128),
        ("gfx950", "fp8", 128, 128, 128),
    ):
        text = PRESHUFFLE.format(path=path, dtype=dtype, m=m, n=n, k=k)
        yield f"FlyDSL pre-shuffled {gfx} {dtype} {m}x{n}x{k}", gfx, text
    for layout in ("nt", "nn", "tn", "tt"):
        a, b = layout[0] == "t", layout[1] == "t"
        text = A16W16.format(path=path, a=a, b=b, a_axis=0 if a else 1, b_axis=0 if b else 1)
        yield f"FlyDSL a16w16 gfx950 bf16 {layout} 256x256x64", "gfx950", text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mca", default="llvm-mca-22")
    parser.add_argument("--flydsl", help="checkout of FlyDSL whose kernels are compiled beside ours")
    parser.add_argument("--isa", nargs="*", default=[], help="assembly files of other kernels")
    options = parser.parse_args()
    print(f"{'kernel':44} {'VGPR':>4} {'spills':>6} {'LDS':>6} {'MFMA':>5} {'share':>6} {'limit':>5}")
    held = True
    for (gpu, kind, how), limit in OURS.items():
        hw, (layout, *packed) = catalogue.get(gpu), how.split()
        op = Gemm(*SHAPE, dtype=hw.resolve_dtype(kind).name, layout=layout, preshuffled="".join(packed) or "none")
        derivation = derive(op, hw)
        t = derivation.require()[0]
        packed = [f"{packed[0]} packed"] if packed else []
        name = " ".join([hw.gfx, kind, layout, *packed, f"{t.tile_m}x{t.tile_n}x{t.tile_k} {t.waves} waves"])
        held &= row(name, compile_source(emit_source(derivation), hw.gfx), options.mca, limit)
    for name, gfx, text in theirs(options.flydsl) if options.flydsl else ():
        try:
            row(name, compile_source(text, gfx), options.mca, None)
        except CompileError as error:
            print(f"{name:44} {error}"[:160])
    from closedform.visitors.compile import parse_isa

    for path in options.isa:
        row(path[-44:], parse_isa(Path(path).read_text(encoding="utf-8")), options.mca, None)
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
