"""TensileLite: a benchmark YAML that pins one kernel by single-value ForkParameters, and grids of tuning rounds.

TensileLite counts column-major: a row-major product is written with M and N exchanged and the letters of A and B too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from closedform.hw.descriptor import HardwareDescriptor
from closedform.hw.dtypes import dtype
from closedform.hw.errors import BadInput, near_names
from closedform.operators.gemm import Gemm

from .kernel import Kernel
from .rules import Refused, Rule, broken_rules
from .tensilelite_rules import RULES, VALID, Solution, invalid_values
from .tensilelite_types import family_of, letters_of
from .tool import Offer, Tool

__all__ = [
    "ROUNDS",
    "TOOL",
    "benchmark",
    "dump_yaml",
    "kernel_of_parameters",
    "load_yaml",
    "parameters_of_offer",
    "pinned",
    "problem_type",
    "round_values",
]

_SOURCE = "validParameters of TensileLite"
WAVES_OF_A_SIDE = (1, 2, 4)
WAVE_TILE_MOST = 32
#: Stream-K that ends with whole tiles; its grid is the compute units.
TWO_TILE_STREAM_K = 3

#: What a tuning round opens, beside the values that the kernel has; one value alone takes the kernel's place.
ROUNDS: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    "split": {
        "GlobalSplitU": (1, 2, 3, 4, 6, 8, 12, 16, 24, 32),
        "GlobalSplitUAlgorithm": ("MultipleBuffer", "MultipleBufferSingleKernel"),
        "StreamK": (0,),
    },
    "mapping": {
        "WorkGroupMapping": (1, 2, 4, 8, 16, 32),
        "WorkGroupMappingXCC": tuple(sorted(VALID["WorkGroupMappingXCC"])),
        "StaggerU": (0, 4, 8, 16, 32),
    },
    "reads": {
        "GlobalReadVectorWidthA": (1, 2, 4, 8, 16),
        "GlobalReadVectorWidthB": (1, 2, 4, 8, 16),
        "LocalReadVectorWidth": (2, 4, 8, 16),
    },
    "stores": {
        "VectorWidthA": (1, 2, 4, 8),
        "VectorWidthB": (1, 2, 4, 8),
        "StoreVectorWidth": (1, 2, 4, 8),
        "LdsPadA": (0, 8, 16, 32),
        "LdsPadB": (0, 8, 16, 32),
    },
    "stream_k": {"GlobalSplitU": (0,), "StreamK": (1, 2, 3)},
}


#: Parameters that a knob of ours decides where the user fixes it; column-major, A is our B.
_KNOBS: Mapping[str, str] = {
    "StaggerU": "stagger",
    "GlobalReadVectorWidthA": "read_b",
    "GlobalReadVectorWidthB": "read_a",
    "LocalReadVectorWidth": "lds_read",
    "StoreVectorWidth": "store",
    "LdsPadA": "pad",
    "LdsPadB": "pad",
}
_ALGORITHMS = {"workspace": "MultipleBuffer", "single": "MultipleBufferSingleKernel"}


def parameters_of_offer(offer: Offer) -> dict[str, Any]:
    """Parameters of the offer's solution, column-major. The offer must have a wave grid and an instruction."""
    k = offer.kernel.transposed()
    assert k.mfma is not None
    assert k.wave_m is not None
    assert k.wave_n is not None
    stages = k.stages or 2
    stream = bool(k.stream_k)
    fixed = offer.fixed
    own = {parameter: fixed[knob] for parameter, knob in _KNOBS.items() if knob in fixed}
    if "split_algorithm" in fixed:
        own["GlobalSplitUAlgorithm"] = _ALGORITHMS[fixed["split_algorithm"]]
    return {
        "MatrixInstruction": [*k.mfma, 1, *_wave_tile(k), k.wave_m, k.wave_n],
        "DepthU": k.tile_k,
        "PrefetchGlobalRead": stages - 1,
        "PrefetchLocalRead": 1,
        "1LDSBuffer": int(stages < 3),
        "TransposeLDS": int(k.layout != "NT"),
        "DirectToLds": 0,
        "GlobalSplitU": 0 if stream else k.split_k or 1,
        "GlobalSplitUAlgorithm": "MultipleBuffer",
        "StreamK": TWO_TILE_STREAM_K if stream else 0,
        "WorkGroupMapping": k.group_m or 1,
        "WorkGroupMappingXCC": k.xcds or 1,
        "StaggerU": 0,
        "GlobalReadVectorWidthA": -1,
        "GlobalReadVectorWidthB": -1,
        "LocalReadVectorWidth": -1,
        "VectorWidthA": -1,
        "VectorWidthB": -1,
        "StoreVectorWidth": -1,
        "LdsPadA": 0,  # the tile may fill the LDS
        "LdsPadB": 0,
        "LdsBlockSizePerPadA": 0,
        "LdsBlockSizePerPadB": 0,
        "SourceSwap": 1,
        "ScheduleIterAlg": 3,
        **own,
    }


def _wave_tile(k: Kernel) -> tuple[int, int]:
    assert k.mfma is not None
    assert k.wave_m is not None
    assert k.wave_n is not None
    return k.tile_m // (k.mfma[0] * k.wave_m), k.tile_n // (k.mfma[1] * k.wave_n)


def _grid(offer: Offer) -> bool:
    k = offer.kernel
    return k.mfma is None or k.mfma[3] != 1 or k.wave_m not in WAVES_OF_A_SIDE or k.wave_n not in WAVES_OF_A_SIDE


def _whole(offer: Offer) -> bool:
    """Whether a wave's part is no whole number of instructions, or of more than a side may have."""
    k = offer.kernel
    if _grid(offer):
        return False
    assert k.mfma is not None
    tile = _wave_tile(k)
    exact = tile[0] * k.mfma[0] * (k.wave_m or 1) == k.tile_m and tile[1] * k.mfma[1] * (k.wave_n or 1) == k.tile_n
    return not exact or not min(tile) >= 1 or max(tile) > WAVE_TILE_MOST


def _solution_rule(rule: Rule[Solution]) -> Rule[Offer]:
    """A rule of solutions on what an offer becomes."""

    def broken(offer: Offer) -> bool:
        return not _grid(offer) and rule.broken(_solution(offer, parameters_of_offer(offer)))

    return Rule(rule.name, rule.text, rule.source, broken, rule.since)


def _solution(offer: Offer, parameters: Mapping[str, Any]) -> Solution:
    k = offer.kernel.transposed()
    own = {**parameters, "MIWaveTile": _wave_tile(k), "MIWaveGroup": (k.wave_m, k.wave_n)}
    return Solution(own, k.layout or "NN", offer.hw.num_cus, (dtype(offer.op.dtype).bits / 8,) * 2)


def _lds(offer: Offer, pad: int = 0) -> bool:
    """Whether A and B exceed the LDS, with `pad` elements or the fixed ones behind every row of either image."""
    k, pad = offer.kernel, pad or offer.fixed.get("pad", 0)
    images = 2 if (k.stages or 2) > 2 else 1
    needed = images * (k.tile_m + k.tile_n) * (k.tile_k + pad) * offer.elem_bytes
    return needed > offer.hw.lds_max_per_workgroup_bytes


def _invalid(offer: Offer) -> tuple[str, ...]:
    return invalid_values(parameters_of_offer(offer))


_OFFER_RULES: tuple[Rule[Offer], ...] = (
    Rule("waves", "1, 2 or 4 along each side, and an instruction of one block", _SOURCE, _grid),
    Rule("wave tile", f"1 to {WAVE_TILE_MOST} whole instructions of a wave along each side", _SOURCE, _whole),
    Rule("groups", "waves do not share a k step here", _SOURCE, lambda o: o.kernel.wave_k != 1),
    Rule("prefetch", "1 to 3 tiles under way", _SOURCE, lambda o: not 1 <= (o.kernel.stages or 2) <= 3),
    Rule("values", "those of its validParameters", _SOURCE, lambda o: not _grid(o) and bool(_invalid(o))),
    Rule(
        "Stream-K",
        "its workgroups are the compute units, fixed at run time (TENSILE_STREAMK_FIXED_GRID)",
        _SOURCE,
        lambda o: (o.fixed.get("stream_k") or o.hw.num_cus) != o.hw.num_cus,
    ),
    Rule("LDS", "A and B, twice unless 1LDSBuffer, fit MaxLDS", _SOURCE, _lds),
    *(_solution_rule(rule) for rule in RULES),
)


#: Where a bias has an element for: UseBias counts 1 for its own rows, which are our columns, and 2 for its columns.
_BIASES = {"column": 1, "row": 2}
#: Activations by its names; its gelu is the one by tanh, and it has none by the error function.
_ACTIVATIONS = {"relu": "relu", "gelu_tanh": "gelu", "silu": "silu"}


def problem_type(offer: Offer) -> dict[str, Any]:
    """The ProblemType of the offer's product, column-major."""
    op, layout = offer.op, offer.kernel.transposed().layout or "NN"
    letters = letters_of(op.dtype)
    found = {
        "OperationType": "GEMM",
        "DataType": letters,
        "DestDataType": letters_of(op.result),
        "ComputeDataType": {"f64": "D", "i8": "I"}.get(dtype(op.dtype).family, "S"),
        "HighPrecisionAccumulate": dtype(op.dtype).bits < 32,
        "TransposeA": layout[0] == "T",
        "TransposeB": layout[1] == "T",
        "UseBeta": True,
        "Batched": True,
    }
    found |= {"F32XdlMathOp": "X"} if op.dtype == "xf32" else {}
    if _has_bias(op):
        found |= {"UseBias": _BIASES[op.bias], "BiasDataTypeList": [found["ComputeDataType"]]}
    if op.activation in _ACTIVATIONS:
        found |= {"Activation": True, "ActivationType": _ACTIVATIONS[op.activation]}
    return found


def _has_bias(op: Gemm) -> bool:
    """Whether the product has a bias that the file says: of i8 the type of a bias is not ours."""
    return op.bias != "none" and dtype(op.dtype).family != "i8"


def round_values(offer: Offer, name: str) -> dict[str, list[Any]]:
    """What a round opens around the offer's kernel: of each parameter the kernel's own value and those that TensileLite
    takes beside the kernel's others. A parameter with one value in the round has that one.

    Raises Refused where a parameter has no value, and BadInput for an unknown round.
    """
    if name not in ROUNDS:
        raise BadInput(f"no tuning round {name!r}: {near_names(name, ROUNDS)}")
    fixed = {parameter: values[0] for parameter, values in ROUNDS[name].items() if len(values) == 1}
    base = parameters_of_offer(offer) | fixed
    found = {parameter: [value] for parameter, value in fixed.items()}
    for parameter, values in ROUNDS[name].items():
        if parameter in fixed:
            continue
        tried = [base[parameter], *(value for value in values if value != base[parameter])]
        broken = {value: broken_rules(RULES, _solution(offer, base | {parameter: value})) for value in tried}
        padded = parameter.startswith("LdsPad")
        found[parameter] = [v for v in tried if not broken[v] and not (padded and _lds(offer, pad=v))]
        if not found[parameter]:
            reasons = "; ".join(rule.described for rule in broken[tried[-1]])
            raise Refused(f"the round {name} has no {parameter} around this kernel: {reasons}")
    return found


def benchmark(offer: Offer, opened: Mapping[str, list[Any]] | None = None) -> dict[str, Any]:
    """The benchmark file of the offer's kernel; `opened` has the values of parameters that are not pinned."""
    op, hw = offer.op, offer.hw
    forks = [{name: (opened or {}).get(name, [value])} for name, value in parameters_of_offer(offer).items()]
    a, b, d = op.leading
    strides = [] if (op.lda, op.ldb, op.ldd) == (0, 0, 0) else [d, d, b, a]  # of D, C, A and B, ours exchanged
    final: list[dict[str, Any]] = [{"ProblemSizes": [{"Exact": [op.N, op.M, op.batch, op.K, *strides]}]}]
    problem = problem_type(offer)
    if "UseBias" in problem:
        final.append({"BiasTypeArgs": problem["BiasDataTypeList"]})
    if "ActivationType" in problem:
        final.append({"ActivationArgs": [[{"Enum": problem["ActivationType"]}]]})
    parameters = {
        "InitialSolutionParameters": None,
        "BenchmarkCommonParameters": [{"KernelLanguage": ["Assembly"]}],
        "ForkParameters": forks,
        "BenchmarkJoinParameters": None,
        "BenchmarkFinalParameters": final,
    }
    return {
        "GlobalParameters": {
            "NumWarmups": 30,
            "EnqueuesPerSync": 50,
            "NumElementsToValidate": 0,
            "RotatingBufferSize": max(512, 2 * hw.mall_bytes // 2**20),
            "MaxLDS": hw.lds_max_per_workgroup_bytes,
            "DeviceLDS": hw.lds_bytes,
            "DataInitTypeAB": 12,
            "KernelTime": True,
            "PrintSolutionRejectionReason": True,
            "CSVExportWinner": 1,
        },
        "BenchmarkProblems": [[problem, parameters]],
        "LibraryLogic": {
            "ScheduleName": hw.gfx,
            "DeviceNames": [hw.name],
            "ArchitectureName": hw.gfx,
            "LibraryType": "Equality",
        },
    }


def load_yaml(text: str) -> Any:
    """The contents of a YAML file. Raises BadInput for what is no YAML."""
    import yaml

    try:
        return yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise BadInput("not YAML" + ("" if mark is None else f" from line {mark.line + 1} on")) from None


def _write(offers: tuple[Offer, ...]) -> str:
    return dump_yaml(benchmark(offers[0]))


def dump_yaml(body: dict[str, Any]) -> str:
    """YAML with lists in one line, as tuning files have them."""
    import yaml

    text: str = yaml.safe_dump(body, sort_keys=False, default_flow_style=None, width=120)
    return text


def pinned(body: Any) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """ProblemType and parameters of each problem of a benchmark file; BadInput where a parameter has several values."""
    found = []
    for problem, *groups in body["BenchmarkProblems"]:
        for group in groups:
            own: dict[str, Any] = {}
            for fork in [*(group.get("BenchmarkCommonParameters") or []), *(group.get("ForkParameters") or [])]:
                for name, values in fork.items():
                    if len(values) != 1:
                        raise BadInput(f"{name} has {len(values)} values: a kernel needs one")
                    own[name] = values[0]
            found.append((problem, own))
    return found


def kernel_of_parameters(problem: Mapping[str, Any], own: Mapping[str, Any], hw: HardwareDescriptor) -> Kernel:
    """The kernel, row-major, of a pinned solution with a nine-element MatrixInstruction."""
    from closedform.decoding.matrix_instruction import nine_of

    nine = nine_of(own["MatrixInstruction"])
    tile = nine.macro_tile
    kind = family_of(str(problem["DataType"]))
    kind = "xf32" if problem.get("F32XdlMathOp") == "X" else kind
    out = family_of(str(problem.get("DestDataType", problem["DataType"])))
    letters = "NT"[bool(problem["TransposeA"])] + "NT"[bool(problem["TransposeB"])]
    prefetch = own.get("PrefetchGlobalRead")
    stream = own.get("StreamK")
    split = own.get("GlobalSplitU")
    return Kernel(
        tile_m=tile[0],
        tile_n=tile[1],
        tile_k=own["DepthU"],
        dtype=hw.resolve_dtype(kind).name,
        out_dtype=hw.resolve_dtype(out).name,
        layout=letters,
        mfma=(nine.m, nine.n, nine.k, nine.blocks),
        wave_m=nine.wave_m,
        wave_n=nine.wave_n,
        stages=None if prefetch is None else prefetch + 1,
        split_k=None if split is None else max(1, split),
        stream_k=None if stream is None else hw.num_cus if stream else 0,
        group_m=own.get("WorkGroupMapping"),
        xcds=own.get("WorkGroupMappingXCC"),
    ).transposed()


def _read(text: str, hw: HardwareDescriptor) -> tuple[Kernel, ...]:
    body = load_yaml(text)
    if not isinstance(body, dict) or "BenchmarkProblems" not in body:
        raise BadInput("not a benchmark file of TensileLite: no BenchmarkProblems")
    return tuple(kernel_of_parameters(problem, own, hw) for problem, own in pinned(body))


def _remarks(offer: Offer) -> tuple[str, ...]:
    op, count, found = offer.op, offer.kernel.stream_k, []
    if op.bias != "none" and not _has_bias(op):
        found.append(f"bias of the product: of {op.dtype} a file of TensileLite does not say it")
    if op.activation not in ("none", *_ACTIVATIONS):
        found.append(f"activation of the product: TensileLite has no {op.activation}")
    if count and count != offer.hw.num_cus:
        found.append(
            f"Stream-K of {count} workgroups: TensileLite takes the compute units, or TENSILE_STREAMK_FIXED_GRID"
        )
    return tuple(found)


_CARRIES = (
    *("dtype", "out_dtype", "layout", "mfma", "wave_m", "wave_n"),
    *("stages", "split_k", "stream_k", "group_m", "xcds"),
)
TOOL = Tool(
    "tensilelite",
    "TensileLite",
    ".yaml",
    _CARRIES,
    _OFFER_RULES,
    _write,
    _read,
    many=False,
    knobs=(*_KNOBS.values(), "split_algorithm"),
    features=("batch", "beta", "strides", "bias", "activation"),
    remarks=_remarks,
)
