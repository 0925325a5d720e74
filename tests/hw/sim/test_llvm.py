"""Programs through LLVM, where an llc or llvm-mc for AMDGPU is installed; skipped without one.

llc compiles LLVM IR whose results are known, which brings in what compilers really emit: 64-bit and float division,
dynamically indexed registers, scratch. llvm-mc confirms that the instructions that these tests feed exist.
"""

from __future__ import annotations

import shutil
import subprocess

import numpy as np
import pytest

from closedform.hw.sim import Out, parse_text, run
from closedform.hw.sim.salu_table import SOP1, SOP2
from closedform.hw.sim.testing import kernel_text
from closedform.hw.sim.valu_table import VALU

TARGETS = ("gfx908", "gfx90a", "gfx942", "gfx950")


def tool(name):
    for suffix in ("-22", "-23", "-21", "-20", ""):
        found = shutil.which(name + suffix)
        if (
            found
            and "amdgcn" in subprocess.run([found, "--version"], capture_output=True, text=True, check=True).stdout
        ):
            return found
    return None


LLC, MC = tool("llc"), tool("llvm-mc")
needs_llc = pytest.mark.skipif(LLC is None, reason="no llc with AMDGPU")
needs_mc = pytest.mark.skipif(MC is None, reason="no llvm-mc with AMDGPU")

HEADER = """target triple = "amdgcn-amd-amdhsa"
declare i32 @llvm.amdgcn.workitem.id.x()
declare i32 @llvm.amdgcn.workgroup.id.x()
declare ptr addrspace(4) @llvm.amdgcn.dispatch.ptr()
"""
INDEXED = """define amdgpu_kernel void @k(ptr addrspace(1) %in, ptr addrspace(1) %out) #0 {
  %t = call i32 @llvm.amdgcn.workitem.id.x()
  %a = alloca [SIZE x i32], align 4, addrspace(5)
  br label %loop
loop:
  %i = phi i32 [0, %0], [%i1, %loop]
  %j = mul i32 %i, 7
  %jj = and i32 %j, MASK
  %p = getelementptr i32, ptr addrspace(5) %a, i32 %jj
  %ti = add i32 %t, %i
  %g = getelementptr i32, ptr addrspace(1) %in, i32 %ti
  %v = load i32, ptr addrspace(1) %g
  store i32 %v, ptr addrspace(5) %p
  %i1 = add i32 %i, 1
  %c = icmp slt i32 %i1, SIZE
  br i1 %c, label %loop, label %done
done:
  %k = and i32 %t, MASK
  %q = getelementptr i32, ptr addrspace(5) %a, i32 %k
  %r = load i32, ptr addrspace(5) %q
  %o = getelementptr i32, ptr addrspace(1) %out, i32 %t
  store i32 %r, ptr addrspace(1) %o
  ret void
}
"""
SHARED = """@dyn = external addrspace(3) global [0 x i32], align 16
@st = internal addrspace(3) global [64 x i32] poison, align 16
declare void @llvm.amdgcn.s.barrier()
define amdgpu_kernel void @k(ptr addrspace(1) %out) #0 {
  %t = call i32 @llvm.amdgcn.workitem.id.x()
  %p = getelementptr [0 x i32], ptr addrspace(3) @dyn, i32 0, i32 %t
  %q = getelementptr [64 x i32], ptr addrspace(3) @st, i32 0, i32 %t
  store i32 %t, ptr addrspace(3) %p
  store i32 5, ptr addrspace(3) %q
  fence syncscope("workgroup") release
  call void @llvm.amdgcn.s.barrier()
  fence syncscope("workgroup") acquire
  %u = xor i32 %t, 63
  %p2 = getelementptr [0 x i32], ptr addrspace(3) @dyn, i32 0, i32 %u
  %q2 = getelementptr [64 x i32], ptr addrspace(3) @st, i32 0, i32 %u
  %a = load i32, ptr addrspace(3) %p2
  %b = load i32, ptr addrspace(3) %q2
  %s = add i32 %a, %b
  %o = getelementptr i32, ptr addrspace(1) %out, i32 %t
  store i32 %s, ptr addrspace(1) %o
  ret void
}
"""
DIVISION = """define amdgpu_kernel void @k(ptr addrspace(1) %a, ptr addrspace(1) %b, ptr addrspace(1) %out) #0 {
  %t = call i32 @llvm.amdgcn.workitem.id.x()
  %w = call i32 @llvm.amdgcn.workgroup.id.x()
  %dp = call ptr addrspace(4) @llvm.amdgcn.dispatch.ptr()
  %sp = getelementptr i16, ptr addrspace(4) %dp, i32 2
  %bs = load i16, ptr addrspace(4) %sp
  %bs32 = zext i16 %bs to i32
  %wb = mul i32 %w, %bs32
  %id = add i32 %wb, %t
  %pa = getelementptr i64, ptr addrspace(1) %a, i32 %id
  %pb = getelementptr i64, ptr addrspace(1) %b, i32 %id
  %x = load i64, ptr addrspace(1) %pa
  %y = load i64, ptr addrspace(1) %pb
  %q = udiv i64 %x, %y
  %r = srem i64 %x, %y
  %fx = uitofp i64 %x to float
  %fy = sitofp i64 %y to float
  %fq = fdiv float %fx, %fy
  %dx = uitofp i64 %x to double
  %dy = sitofp i64 %y to double
  %dq = fdiv double %dx, %dy
  %po = getelementptr {i64, i64, float, double}, ptr addrspace(1) %out, i32 %id
  store i64 %q, ptr addrspace(1) %po
  %po1 = getelementptr {i64, i64, float, double}, ptr addrspace(1) %out, i32 %id, i32 1
  store i64 %r, ptr addrspace(1) %po1
  %po2 = getelementptr {i64, i64, float, double}, ptr addrspace(1) %out, i32 %id, i32 2
  store float %fq, ptr addrspace(1) %po2
  %po3 = getelementptr {i64, i64, float, double}, ptr addrspace(1) %out, i32 %id, i32 3
  store double %dq, ptr addrspace(1) %po3
  ret void
}
"""
ATTRIBUTES = 'attributes #0 = {{ "amdgpu-flat-work-group-size"="64,64" {} }}\n'
FLUSH = '"denormal-fp-math-f32"="preserve-sign,preserve-sign"'


def compiled(target, body, attribute=""):
    text = HEADER + body + ATTRIBUTES.format(attribute)
    done = subprocess.run([LLC, f"-mcpu={target}", "-o", "-"], input=text, capture_output=True, text=True, check=True)
    return parse_text(done.stdout)


@needs_llc
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("size", [16, 256])
def test_indexed_registers_and_scratch(target, size):
    """16 values stay in registers indexed by a scalar or a waterfall loop, 256 go to scratch."""
    program = compiled(target, INDEXED.replace("SIZE", str(size)).replace("MASK", str(size - 1)))
    assert (program.kernel().scratch_bytes > 0) == (size == 256)
    source, out = np.arange(7, 71 + size, dtype=np.uint32), np.zeros(64, np.uint32)
    result = run(program, [source, Out(out)], 1, 64)
    assert result.ok, str(result)
    inverse = pow(7, -1, size)
    assert (out == [source[lane + lane * inverse % size] for lane in range(64)]).all()


@needs_llc
@pytest.mark.parametrize("target", TARGETS)
def test_dynamic_lds(target):
    """Dynamic LDS starts behind the static one; without its bytes the accesses are out of bounds."""
    program = compiled(target, SHARED)
    out = np.zeros(64, np.uint32)
    assert run(program, [Out(out)], 1, 64, dynamic_lds=256).ok
    assert (out == 63 - np.arange(64) + 5).all()
    assert {r.kind for r in run(program, [out], 1, 64).reports} == {"out-of-bounds"}


@needs_llc
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("attribute", ["", FLUSH], ids=["denormals", "flush"])
def test_division(target, attribute):
    rng = np.random.default_rng(0)
    a, b = (
        (rng.integers(0, 2**63, 192, dtype=np.uint64)) >> rng.integers(0, 60, 192).astype(np.uint64) for _ in range(2)
    )
    b |= np.uint64(1)
    out = np.zeros(192, np.dtype([("q", "u8"), ("r", "i8"), ("f", "f4"), ("gap", "f4"), ("d", "f8")]))
    result = run(compiled(target, DIVISION, attribute), [a, b, Out(out, partial=True)], 3, 64)
    assert result.ok, str(result)
    signed_a, signed_b = a.view(np.int64), b.view(np.int64)
    assert (out["q"] == a // b).all()
    assert (out["r"] == np.fmod(signed_a, signed_b)).all()
    assert (out["f"] == a.astype(np.float32) / signed_b.astype(np.float32)).all()
    assert (out["d"] == a.astype(np.float64) / signed_b.astype(np.float64)).all()


def operand(kind, first):
    return f"v[{first}:{first + 1}]" if kind.endswith("64") else f"v{first}"


def assembled(text, target):
    command = [MC, "-triple=amdgcn-amd-amdhsa", f"-mcpu={target}"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=False)


def acceptable(text):
    """The targets for which llvm-mc takes the instruction."""
    return [target for target in TARGETS if assembled(text, target).returncode == 0]


@needs_mc
def test_the_vector_instructions_exist():
    """One file with all of them; the few that only one target has are tried alone."""
    alone = []
    for name, (kind, kinds, _) in sorted(VALU.items()):
        sources = ", ".join(operand(k, 8 + 2 * n) for n, k in enumerate(kinds))
        if name.startswith("v_accvgpr"):
            line = f"{name} {'a' if 'read' not in name else 'v'}4, {'v' if 'write' in name else 'a'}8"
        else:
            line = f"{name} {operand(kind, 4)}, {sources}"
        alone.append((name, line))
    text = "\n".join(line for _, line in alone)
    rejected = set()
    for target in TARGETS:
        done = assembled(text, target)
        lines = {int(ln.split(":")[1]) - 1 for ln in done.stderr.splitlines() if ": error:" in ln}
        names = {alone[n][0] for n in lines}
        rejected = names if target == TARGETS[0] else rejected & names
    assert rejected == set()


@needs_mc
def test_the_scalar_instructions_exist():
    span = {"u32": "s8", "i32": "s8", "u64": "s[8:9]", "i64": "s[8:9]"}
    lines = [f"{name} {span[k]}, {span[a]}, {span[b]}" for name, (k, a, b, _, _) in SOP2.items()]
    lines += [f"{name} {span[k]}, {span[a]}" for name, (k, a, _, _) in SOP1.items()]
    assert acceptable("\n".join(lines) + "\n") == list(TARGETS)


@needs_mc
def test_the_wrapper_is_valid_assembly():
    for target in TARGETS:
        assert target in acceptable(kernel_text(target, "s_nop 0", 2, lds_bytes=512))
