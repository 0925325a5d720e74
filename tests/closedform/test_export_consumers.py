"""Exports in the hands of the tools that they are for, as far as those install."""

from __future__ import annotations

import importlib.util
import inspect
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from closedform.hw import catalogue
from closedform.interop.exporting import Export, Place, export_gemm, export_operator
from closedform.operators.attention import Attention
from closedform.operators.conv2d import Conv2d
from closedform.operators.gemm import Gemm

OP = Gemm(1024, 1024, 512, dtype="bf16", layout="NT")


def module(made: Export, folder: Path) -> ModuleType:
    """The written Python module, imported."""
    path = made.write(folder)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


#: A product as Triton kernels write it, with the names of our Configs.
GEMM = """
import triton
import triton.language as tl


@triton.jit
def gemm(a, b, d, M, N, K, BLOCK_SIZE_M: tl.constexpr, BLOCK_SIZE_N: tl.constexpr, BLOCK_SIZE_K: tl.constexpr,
         GROUP_SIZE_M: tl.constexpr):
    tile = tl.program_id(0)
    group = GROUP_SIZE_M * tl.cdiv(N, BLOCK_SIZE_N)
    first = tile // group * GROUP_SIZE_M
    rows = min(tl.cdiv(M, BLOCK_SIZE_M) - first, GROUP_SIZE_M)
    m = (first + tile % group % rows) * BLOCK_SIZE_M + tl.arange(0, BLOCK_SIZE_M)
    n = tile % group // rows * BLOCK_SIZE_N + tl.arange(0, BLOCK_SIZE_N)
    k = tl.arange(0, BLOCK_SIZE_K)
    at, bt = a + m[:, None] * K + k[None, :], b + n[None, :] * K + k[:, None]
    total = tl.zeros((BLOCK_SIZE_M, BLOCK_SIZE_N), dtype=tl.float32)
    for _ in range(0, K, BLOCK_SIZE_K):
        total = tl.dot(tl.load(at), tl.load(bt), total)
        at += BLOCK_SIZE_K
        bt += BLOCK_SIZE_K
    tl.store(d + m[:, None] * N + n[None, :], total.to(d.dtype.element_ty))
"""
BACKEND = ("matrix_instr_nonkdim", "waves_per_eu", "kpack")


@pytest.mark.parametrize("hw", ["mi300x", "mi355x"])
def test_triton_compiles_a_gemm_with_every_config(hw: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Config objects built, pruned and compiled by the AMD backend, without a GPU, within the LDS."""
    triton = pytest.importorskip("triton", reason="triton is not installed: pip install triton")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    gpu = catalogue.get(hw)
    ours = module(export_gemm(OP, gpu, "triton", count=2), tmp_path)
    (tmp_path / "product.py").write_text(GEMM)
    monkeypatch.syspath_prepend(tmp_path)
    kernel = importlib.import_module("product").gemm
    sys.modules.pop("product")
    assert ours.early_config_prune(ours.CONFIGS, {}) == ours.CONFIGS
    predicted = [ours.perf_model(**config.all_kwargs()) for config in ours.CONFIGS]
    assert predicted == sorted(predicted)
    assert ours.perf_model(BLOCK_SIZE_M=1) == float("inf")
    for config in ours.CONFIGS:
        assert isinstance(config, triton.Config)
        words = config.all_kwargs()
        constants = {name: value for name, value in words.items() if name.startswith(("BLOCK", "GROUP"))}
        types = {**dict.fromkeys("abd", "*bf16"), **dict.fromkeys("MNK", "i32")}
        source = ASTSource(kernel, {**types, **dict.fromkeys(constants, "constexpr")}, constants)
        options = {name: words[name] for name in BACKEND} | {n: words[n] for n in ("num_warps", "num_stages")}
        compiled = triton.compile(source, target=GPUTarget("hip", gpu.gfx, 64), options=options)
        assert f"x{words['matrix_instr_nonkdim']}x" in compiled.asm["amdgcn"]
        assert compiled.metadata.shared <= gpu.lds_max_per_workgroup_bytes


@pytest.mark.filterwarnings("ignore")
def test_inductor_takes_the_configurations(tmp_path: Path) -> None:
    pytest.importorskip("torch._inductor.template_heuristics.triton", reason="torch without Inductor's templates")
    ours = module(export_gemm(OP, catalogue.get("mi300x"), "inductor", count=3), tmp_path)
    first = ours.CONFIGS[0]
    assert len(ours.CONFIGS) == 3
    assert first.kpack == 2
    assert first.block_m * first.block_n >= 256 * first.num_warps


def test_flydsl_loads_the_artifact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the identity of a GPU that is not here; on another one it is not used."""
    autotune = pytest.importorskip("flydsl.autotune", reason="flydsl is not installed")
    hw = catalogue.get("mi355x")
    made = export_gemm(OP, hw, "flydsl", place=Place(artifact="tuned.gemm", device="AMD Instinct MI355X"))
    made.write(tmp_path)
    monkeypatch.setenv("FLYDSL_AUTOTUNE_CONFIG_DIR", str(tmp_path))
    device = {"name": "AMD Instinct MI355X", "arch": "gfx950", "compute_units": 256}
    monkeypatch.setattr(autotune, "_device_descriptor", lambda _=None: device)

    def product(M, N, K, block_m, block_n, block_k, stages, split_k, m_waves, n_waves, k_waves, group_m):  # type: ignore[no-untyped-def]
        """Takes our names."""

    def loaded() -> Any:
        tuner = autotune.autotune(configs=[], key=["M", "N", "K"], artifact_name="tuned.gemm")(product)
        call = (OP.M, OP.N, OP.K)
        return tuner._load_artifact(tuner._artifact_ref(call, {}, required=True), call, {})

    assert loaded().to_dict() == json.loads(made.text)["config"]
    configs = module(export_gemm(OP, hw, "flydsl", form="py", count=2), tmp_path).CONFIGS
    assert [type(config) for config in configs] == [autotune.Config] * 2
    assert configs[0].compiler_opts()
    device["compute_units"] = 128
    assert loaded() is None


def test_nvmatmulheuristics_has_every_field() -> None:
    """Its configuration class takes what the file has, under the same names, and its layouts know ours."""
    theirs = pytest.importorskip("nvMatmulHeuristics", reason="nvidia-matmul-heuristics is not installed")
    made = export_gemm(OP, catalogue.get("mi300x"), "nvmatmul", count=3)
    body = json.loads(made.text)
    assert body["problem"]["layout"] in theirs.NvMatmulHeuristicsMatmulLayout.__members__
    assert all(words.pop("RUNTIME_S") > 0 for words in body["configs"])
    configs = set()
    for words in body["configs"]:
        config = theirs.GemmConfig()
        assert set(words) <= set(vars(config))
        for name, value in words.items():
            setattr(config, name, value)
        configs.add(config)
    assert len(configs) == 3


#: A product as TileLang kernels write it, with our keywords as its parameters.
TILELANG = """
import tilelang.language as T


def product(M, N, K, block_M, block_N, block_K, num_stages, thread_num, k_pack, enable_rasteration, panel_size):
    @T.prim_func
    def main(A: T.Tensor((M, K), "bfloat16"), B: T.Tensor((N, K), "bfloat16"), C: T.Tensor((M, N), "bfloat16")):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=thread_num) as (bx, by):
            a = T.alloc_shared((block_M, block_K), "bfloat16")
            b = T.alloc_shared((block_N, block_K), "bfloat16")
            c = T.alloc_fragment((block_M, block_N), "float32")
            T.use_swizzle(panel_size=panel_size, enable=enable_rasteration)
            T.clear(c)
            for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=num_stages):
                T.copy(A[by * block_M, k * block_K], a)
                T.copy(B[bx * block_N, k * block_K], b)
                T.gemm(a, b, c, transpose_B=True)
            T.copy(c, C[by * block_M, bx * block_N])

    return main
"""


def test_tilelang_builds_a_gemm_from_every_dictionary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The keywords are those of a kernel function, and its tuner takes the list."""
    tilelang = pytest.importorskip("tilelang", reason="tilelang is not installed")
    configs = json.loads(export_gemm(OP, catalogue.get("mi300x"), "tilelang", count=3).text)
    (tmp_path / "tilelang_product.py").write_text(TILELANG)
    monkeypatch.syspath_prepend(tmp_path)
    product = importlib.import_module("tilelang_product").product
    sys.modules.pop("tilelang_product")
    assert tilelang.autotune(configs=configs)(tilelang.jit(product)) is not None
    for words in configs:
        text = product(OP.M, OP.N, OP.K, **words).script()
        assert str(words["block_K"]) in text


#: Flash attention as TileLang kernels write it, with our keywords as its parameters.
TILELANG_ATTENTION = """
import tilelang.language as T


def attention(batch, heads, length, d, block_M, block_N, num_split_q, threads, num_stages, enable_rasterization, k_pack,
              panel_size, qk_coalesced_width, v_coalesced_width):
    shape = (batch, length, heads, d)

    @T.prim_func
    def main(Q: T.Tensor(shape, "float16"), K: T.Tensor(shape, "float16"), V: T.Tensor(shape, "float16"),
             O: T.Tensor(shape, "float16")):
        with T.Kernel(num_split_q, batch * heads, threads=threads) as (block, head):
            T.use_swizzle(panel_size, enable=enable_rasterization)
            q = T.alloc_shared((block_M, d), "float16")
            k = T.alloc_shared((block_N, d), "float16")
            v = T.alloc_shared((block_N, d), "float16")
            s = T.alloc_fragment((block_M, block_N), "float32")
            p = T.alloc_fragment((block_M, block_N), "float16")
            o = T.alloc_fragment((block_M, d), "float32")
            T.clear(o)
            first, h = head // heads, head % heads
            T.copy(Q[first, block * block_M : (block + 1) * block_M, h, :], q, coalesced_width=qk_coalesced_width)
            for i in T.Pipelined(T.ceildiv(length, block_N), num_stages=num_stages):
                T.copy(K[first, i * block_N : (i + 1) * block_N, h, :], k, coalesced_width=qk_coalesced_width)
                T.copy(V[first, i * block_N : (i + 1) * block_N, h, :], v, coalesced_width=v_coalesced_width)
                T.clear(s)
                T.gemm(q, k, s, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                T.copy(s, p)
                T.gemm(p, v, o, policy=T.GemmWarpPolicy.FullRow)
            T.copy(o, O[first, block * block_M : (block + 1) * block_M, h, :])

    return main
"""


def test_tilelang_builds_an_attention_from_every_dictionary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tilelang = pytest.importorskip("tilelang", reason="tilelang is not installed")
    op = Attention(1024, 1024, 64, heads=8, dtype="f16")
    configs = json.loads(export_operator(op, catalogue.get("mi300x"), "tilelang", count=2).text)
    (tmp_path / "tilelang_attention.py").write_text(TILELANG_ATTENTION)
    monkeypatch.syspath_prepend(tmp_path)
    attention = importlib.import_module("tilelang_attention").attention
    sys.modules.pop("tilelang_attention")
    assert tilelang.autotune(configs=configs)(tilelang.jit(attention)) is not None
    for words in configs:
        text = attention(op.batch, op.heads, op.L_q, op.d, **words).script()
        assert f"({words['block_M']}, {op.d})" in text
        assert f"({words['block_N']}, {op.d})" in text


#: Flash attention as Triton kernels write it, with the names of our Configs.
ATTENTION = """
import triton
import triton.language as tl


@triton.jit
def attention(q, k, v, o, L_q, L_kv, scale, d: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    rows, base = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M), tl.program_id(1)
    columns, keys = tl.arange(0, d), tl.arange(0, BLOCK_N)
    place = base * L_q * d + rows[:, None] * d + columns[None, :]
    queries = tl.load(q + place, mask=rows[:, None] < L_q, other=0.0)
    most = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    out = tl.zeros([BLOCK_M, d], tl.float32)
    for first in range(0, L_kv, BLOCK_N):
        inside = first + keys < L_kv
        at = base * L_kv * d + (first + keys)[:, None] * d + columns[None, :]
        scores = tl.dot(queries, tl.trans(tl.load(k + at, mask=inside[:, None], other=0.0))) * scale
        scores = tl.where(inside[None, :], scores, float("-inf"))
        new = tl.maximum(most, tl.max(scores, 1))
        p, factor = tl.exp2(scores - new[:, None]), tl.exp2(most - new)
        total = total * factor + tl.sum(p, 1)
        value = tl.load(v + at, mask=inside[:, None], other=0.0)
        out = tl.dot(p.to(value.dtype), value, out * factor[:, None])
        most = new
    tl.store(o + place, (out / total[:, None]).to(o.dtype.element_ty), mask=rows[:, None] < L_q)
"""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("dtype", "word"), [("bf16", "*bf16"), ("f32", "*fp32")])
@pytest.mark.parametrize("hw", ["mi210", "mi300x", "mi355x"])
def test_triton_compiles_an_attention_with_every_config(
    hw: str, dtype: str, word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within the LDS that the module counts, and the GPU's."""
    triton = pytest.importorskip("triton", reason="triton is not installed: pip install triton")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    gpu, op = catalogue.get(hw), Attention(1000, 1000, 128, heads=8, dtype=dtype)
    ours = module(export_operator(op, gpu, "triton", count=2), tmp_path)
    (tmp_path / "flash.py").write_text(ATTENTION)
    monkeypatch.syspath_prepend(tmp_path)
    kernel = importlib.import_module("flash").attention
    sys.modules.pop("flash")
    assert ours.early_config_prune(ours.CONFIGS, {}) == ours.CONFIGS
    for config in ours.CONFIGS:
        words = config.all_kwargs()
        constants = {name: words[name] for name in ("BLOCK_M", "BLOCK_N")} | {"d": op.d}
        types = {**dict.fromkeys("qkvo", word), "L_q": "i32", "L_kv": "i32", "scale": "fp32"}
        source = ASTSource(kernel, {**types, **dict.fromkeys(constants, "constexpr")}, constants)
        options = {name: words[name] for name in BACKEND} | {n: words[n] for n in ("num_warps", "num_stages")}
        compiled = triton.compile(source, target=GPUTarget("hip", gpu.gfx, 64), options=options)
        assert f"x{words['matrix_instr_nonkdim']}x" in compiled.asm["amdgcn"]
        assert compiled.metadata.shared <= ours.lds_bytes(words) <= gpu.lds_max_per_workgroup_bytes


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("op", "name", "attribute"),
    [
        (Attention(1024, 1024, 64, heads=8, dtype="f16"), "ROCmFlexConfig", "flex_attn_fwd_autotune_configs"),
        (Conv2d(8, 64, 56, 56, 64, 3, 3, pad=1, dtype="f16"), "ROCmConvConfig", "conv_configs"),
    ],
    ids=["attention", "conv2d"],
)
@pytest.mark.parametrize("hw", ["mi300x", "mi355x"])
def test_inductor_takes_other_operators(op: Any, name: str, attribute: str, hw: str, tmp_path: Path) -> None:
    theirs = pytest.importorskip("torch._inductor.template_heuristics.triton", reason="torch without its templates")
    made = export_operator(op, catalogue.get(hw), "inductor", count=2)
    ours = module(made, tmp_path)
    assert [type(config) for config in ours.CONFIGS] == [getattr(theirs, name)] * 2
    assert {config.kpack for config in ours.CONFIGS} == {1 if hw == "mi355x" else 2}
    assert attribute in made.text
    assert f"self.{attribute}:" in inspect.getsource(theirs.BaseConfigHeuristic)  # an object of it needs a driver


@pytest.mark.parametrize(
    ("op", "arguments"),
    [
        (Attention(4096, 4096, 128, heads=16, dtype="bf16"), "block_m flat_work_group_size path_tag"),
        (Conv2d(8, 64, 56, 56, 64, 3, 3, pad=1, dtype="bf16"), "TILE_M TILE_N WAVE_M WAVE_N WGM"),
    ],
    ids=["attention", "conv2d"],
)
def test_flydsl_loads_artifacts_of_other_operators(
    op: Any, arguments: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    autotune = pytest.importorskip("flydsl.autotune", reason="flydsl is not installed")
    hw = catalogue.get("mi355x")
    made = export_operator(op, hw, "flydsl", place=Place(artifact="tuned", device="GPU"))
    made.write(tmp_path)
    monkeypatch.setenv("FLYDSL_AUTOTUNE_CONFIG_DIR", str(tmp_path))
    device = {"name": "GPU", "arch": "gfx950", "compute_units": 256}
    monkeypatch.setattr(autotune, "_device_descriptor", lambda _=None: device)
    key = json.loads(made.text)["identity"]["key"]
    scope: dict[str, Any] = {}
    exec(f"def kernel({', '.join([*key, *arguments.split()])}): pass", scope)
    tuner = autotune.autotune(configs=[], key=list(key), artifact_name="tuned")(scope["kernel"])
    call = tuple(key.values())
    assert (
        tuner._load_artifact(tuner._artifact_ref(call, {}, required=True), call, {}).to_dict()
        == (json.loads(made.text)["config"])
    )
    configs = module(export_operator(op, hw, "flydsl", form="py"), tmp_path).CONFIGS
    assert [config.to_dict() for config in configs] == [json.loads(made.text)["config"]]
