"""The emitted text and the main loop that it compiles to."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from closedform.hw import catalogue
from closedform.hw.errors import BadInput, InfeasibleError
from closedform.operators.attention import Attention
from closedform.visitors.attention_schedule import keys_of_v_block
from closedform.visitors.compile import missing_dependency
from closedform.visitors.emit import emit_source, kernel_name
from closedform.visitors.feasibility import derive

from .attention_kernels import TARGETS, Case, compiled

needs_compiler = pytest.mark.skipif(missing_dependency() is not None, reason=str(missing_dependency()))
GOLDEN = [
    Case("mi100", "f32", 128, L=16384, heads=1),
    Case("mi300x", "f16", 128),
    Case("mi300x", "bf16", 72, "lds"),
    Case("mi210", "f16", 96, "fma"),
    Case("mi355x", "bf16", 40, fixed=(("atom", "16x16"),)),
]
LOOPS = [Case(hw, dtype, d) for hw in TARGETS for dtype, d in (("f32", 128), ("f16", 64), ("bf16", 128))]


@pytest.mark.parametrize("case", GOLDEN, ids=str)
def test_emitted_text_is_the_golden_text(case, golden):
    golden(f"{kernel_name(case.derivation())}.py", emit_source(case.derivation()))


@pytest.mark.parametrize("case", GOLDEN, ids=str)
def test_the_text_is_python_that_needs_only_flydsl_and_torch(case):
    tree = ast.parse(emit_source(case.derivation()))
    modules = {n.module or "" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    modules |= {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    assert {m.split(".")[0] for m in modules} <= {"flydsl", "torch", "functools", "math", "sys"}
    functions = {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}
    assert {"run", "reference", "main", "compile_only", "attention_kernel"} <= functions
    names = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)} | {
        n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute)
    }
    assert functions - {"__init__", "main"} <= names | {"run", "compile_only"}, "a function that nothing calls"


def test_the_bytes_do_not_depend_on_the_hash_seed():
    program = (
        "import hashlib; from closedform.hw import catalogue; from closedform.operators.attention import Attention\n"
        "from closedform.visitors.emit import emit_source; from closedform.visitors.feasibility import derive\n"
        "text = emit_source(derive(Attention(300, 200, 72, dtype='bf16'), catalogue.get('mi300x')))\n"
        "print(hashlib.sha256(text.encode()).hexdigest())"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed, "PATH": ""},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1


def test_lengths_and_batch_are_run_time_and_leave_the_code_alone():
    texts = [
        emit_source(derive(Attention(n, n, 128, heads=64, dtype="f16"), catalogue.get("mi300x"))) for n in (4096, 8192)
    ]
    code = [re.sub(r'"""Fused.*?"""|L_q=\d+|L_kv=\d+', "", t, flags=re.DOTALL) for t in texts]
    assert code[0] == code[1]


def test_only_the_default_model_is_emitted():
    with pytest.raises(BadInput, match="default"):
        emit_source(derive(Attention(64, 64, 64), catalogue.get("paper_a"), "paper"))


def test_nothing_is_emitted_without_tiles():
    derivation = derive(Attention(64, 64, 128, variant="lds"), catalogue.get("mi300x"), tile_kv=64, tile_q=32, waves=1)
    with pytest.raises(InfeasibleError, match="73728"):
        emit_source(derivation)


def main_loop(isa: str) -> list[str]:
    """Instructions of the loop over the K/V tiles, blocks behind a predicate included: the one with the most MFMAs."""
    from closedform.hw.sim.decode import Code
    from closedform.hw.sim.flow import natural_loops
    from closedform.hw.sim.parse import parse_text

    kernel = parse_text(isa).kernel()
    text = [ins.text.strip() for ins in kernel.instructions]
    loops = [[text[i] for i in loop.all] for loop in natural_loops(Code(kernel))]
    return max(loops, key=lambda body: sum(line.startswith("v_mfma") for line in body))


def lds_bytes(body: list[str], kind: str) -> int:
    widths = {"b8": 1, "b16": 2, "b32": 4, "b64": 8, "b96": 12, "b128": 16}
    total = 0
    for line in body:
        found = re.match(rf"ds_{kind}(2?)(?:st64)?_(b\d+)\b", line)
        if found:
            total += widths[found[2]] * (2 if found[1] else 1)
    return total


def interior_step(case: Case):
    """The generic step of the case's tree."""
    derivation = case.derivation()
    (block,) = derivation.op.tree(derivation.tiles).interior()
    (wave,) = block.interior()
    (step,) = wave.interior()
    return step


def tile_share(case: Case) -> int:
    """Bytes that a lane writes to LDS for one K and one V tile; where units are few, some lanes have none."""
    tiles, op = case.derivation().tiles, case.derivation().op
    threads, elements = tiles.waves * 64, tiles.tile_kv * tiles.d_pad
    vec, run = 16 // op.elem_bytes, tiles.layout(op).dv_run
    k = -(-elements // (vec * threads)) * 16
    block = run * keys_of_v_block(tiles.tile_kv, tiles.d_pad, run, threads)
    return k + (k if op.elem_bytes == 4 else -(-elements // (block * threads)) * block * 2)


@needs_compiler
@pytest.mark.compile
class TestMainLoop:
    @pytest.mark.parametrize("case", LOOPS, ids=str)
    def test_lds_writes_are_those_of_k_and_v(self, case):
        """No exponential goes through LDS: a lane writes its share of one K and one V tile, and nothing else."""
        assert lds_bytes(main_loop(compiled(case).isa), "write") == tile_share(case)

    def test_the_variant_through_lds_writes_more(self):
        chained, through = Case("mi300x", "f16", 128), Case("mi300x", "f16", 128, "lds")
        tiles, share = through.derivation().tiles, tile_share(through)
        exponentials = tiles.tile_q * tiles.tile_kv * 2 // 64
        assert lds_bytes(main_loop(compiled(through).isa), "write") == share + exponentials
        assert lds_bytes(main_loop(compiled(chained).isa), "write") < share + exponentials

    @pytest.mark.parametrize("case", LOOPS, ids=str)
    def test_mfmas_are_those_of_the_two_products(self, case):
        tiles = case.derivation().tiles
        atom = tiles.atom
        body = main_loop(compiled(case).isa)
        mfmas = [line.split()[0] for line in body if line.startswith("v_mfma")]
        assert set(mfmas) == {atom.instruction}
        assert len(mfmas) * atom.flops == 4 * tiles.tile_q * tiles.tile_kv * tiles.d_pad
        assert len(mfmas) == sum(1 for _ in interior_step(case).children()), "the tree has other atoms than the loop"

    @pytest.mark.parametrize("case", LOOPS, ids=str)
    def test_two_barriers_and_no_scratch(self, case):
        body = main_loop(compiled(case).isa)
        assert sum(line.startswith("s_barrier") for line in body) == 2
        assert not any(line.startswith(("scratch_", "buffer_store")) for line in body)

    @pytest.mark.parametrize("case", LOOPS, ids=str)
    def test_an_lds_read_of_k_feeds_all_its_mfmas(self, case):
        """Each 16-byte fragment is read once and used by every query tile."""
        tiles, op = case.derivation().tiles, case.derivation().op
        reads = lds_bytes(main_loop(compiled(case).isa), "read")
        assert reads <= 2 * tiles.tile_kv * tiles.d_pad * op.elem_bytes // 64


def test_kernels_that_differ_have_names_that_differ():
    cases = [Case("mi300x", dtype, d, v) for dtype in ("f16", "bf16") for d in (64, 72) for v in ("chained", "lds")]
    assert len({kernel_name(case.derivation()) for case in cases}) == len(cases)


def test_no_golden_file_is_left_over():
    folder = Path(__file__).parent.parent / "golden" / "visitors" / Path(__file__).stem
    wanted = {f"{kernel_name(case.derivation())}.py" for case in GOLDEN}
    assert {path.name for path in folder.iterdir()} == wanted
