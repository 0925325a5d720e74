"""What an emitted GEMM gives: no terms, empty outputs, 8-bit outputs, types of D, activations, special values."""

from __future__ import annotations

import dataclasses
from itertools import product
from typing import Any

import numpy as np
import pytest

from closedform.hw import catalogue
from closedform.hw.errors import BadInput
from closedform.operators.gemm import LAYOUTS, Gemm
from closedform.operators.level import Level
from closedform.operators.reference import reference
from closedform.visitors.compute import ComputeVisitor
from closedform.visitors.emit import emit_source

from .gemm_checks import compiles, exact, op_of
from .gemm_host import Host
from .gemm_kernels import derived, simulate
from .gemm_memory import activated

TARGETS = ("mi100", "mi210", "mi300x", "mi355x")

# --- no terms, no elements ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("hw", TARGETS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_terms_derive_the_tiles_of_one_term(hw: str, layout: str) -> None:
    none, one = (derived(hw, op_of(300, 200, K, "f16", layout)).require()[0] for K in (0, 1))
    assert (none.tile_m, none.tile_n, none.wave_m, none.wave_n) == (one.tile_m, one.tile_n, one.wave_m, one.wave_n)


@pytest.mark.parametrize("level", list(Level))
def test_no_terms_give_zero_at_every_level(level: Level) -> None:
    op = op_of(70, 50, 0, "f32")
    inputs = {"A": np.ones((1, 70, 0)), "B": np.ones((1, 50, 0))}
    tiles = derived("mi300x", op).require()[0]
    out = ComputeVisitor(level).run(op.tree(tiles), **inputs)
    assert np.array_equal(out, reference(op, **inputs).out)
    assert np.array_equal(out, np.zeros((1, 70, 50)))


@pytest.mark.parametrize("name", ["M", "N", "batch"])
def test_an_output_without_elements_is_bad_input(name: str) -> None:
    with pytest.raises(BadInput, match=f"{name}=0"):
        dataclasses.replace(op_of(8, 8, 8), **{name: 0})
    with pytest.raises(BadInput, match="K=-1"):
        op_of(8, 8, -1)


@compiles
@pytest.mark.parametrize(("hw", "layout"), [("mi300x", "NN"), ("mi100", "TT"), ("mi355x", "NT")])
def test_no_terms_load_nothing_but_c(hw: str, layout: str) -> None:
    op = op_of(70, 48, 0, "f16", layout, has_c=True, activation="relu")
    for beta, size in ((2.0, 70 * 48 * 2), (0.0, 0)):
        result, _ = exact(hw, op, beta=beta)
        assert result.counts["global_load_bytes"] == size


@pytest.fixture(scope="module")
def host() -> Host:
    return Host("mi300x", op_of(64, 64, 64, has_c=True, out_dtype="f32"))


@compiles
def test_run_takes_no_terms(host: Host) -> None:
    torch = pytest.importorskip("torch")
    a, b, c = torch.ones(40, 0).bfloat16(), torch.ones(24, 0).bfloat16(), torch.randn(40, 24)
    assert torch.equal(host.file.run(a, b, c, beta=2.0)[0], 2 * c)
    assert torch.equal(host.file.reference(a[None], b[None], c[None], beta=2.0)[0], 2 * c.double())
    before = host.loaded_bytes
    assert torch.equal(host.file.run(a, b, c, beta=0.0), torch.zeros(1, 40, 24))
    assert host.loaded_bytes == before


@compiles
def test_run_reads_nothing_that_a_factor_of_zero_leaves_out(host: Host) -> None:
    torch = pytest.importorskip("torch")
    nan, ones = float("nan"), torch.ones(40, 64).bfloat16()
    a, b, c = torch.full((40, 64), nan).bfloat16(), torch.full((24, 64), nan).bfloat16(), torch.full((40, 24), nan)
    for function in (host.file.run, host.file.reference):
        assert torch.equal(function(a[None], b[None], c[None], alpha=0.0, beta=0.0), torch.zeros(1, 40, 24).double())
        got = function(ones[None], ones[None, :24], c[None], beta=0.0)
        assert torch.equal(got.double(), torch.full((1, 40, 24), 64.0).double())


@compiles
@pytest.mark.parametrize(("batch", "M", "N"), [(0, 4, 8), (2, 0, 8), (2, 4, 0)])
@pytest.mark.parametrize("given", [False, True])
def test_run_of_an_empty_output_launches_nothing(host: Host, batch: int, M: int, N: int, given: bool) -> None:
    torch = pytest.importorskip("torch")
    a, b, c = torch.ones(batch, M, 16).bfloat16(), torch.ones(batch, N, 16).bfloat16(), torch.ones(batch, M, N)
    out, before = torch.empty(batch, M, N) if given else None, host.launches
    got = host.file.run(a, b, c, out=out)
    assert got.shape == (batch, M, N)
    assert got.dtype == torch.float32
    assert host.launches == before
    assert out is None or got is out
    assert host.file.run(a, b[:1], c).shape == (batch, M, N)  # a batch of 1 is broadcast to none


# --- outputs of 8 bits --------------------------------------------------------------------------------------------

NARROW = [
    ("mi300x", "fp8_e4m3fnuz"),
    ("mi300x", "bf8_e5m2fnuz"),
    ("mi355x", "fp8_e4m3fn"),
    ("mi355x", "bf8_e5m2"),
]


@compiles
@pytest.mark.parametrize(("hw", "out"), NARROW)
def test_scale_comes_last_and_saturates(hw: str, out: str) -> None:
    """Sums from within the spacing of small numbers to past the largest one, halfway cases among them."""
    op = op_of(48, 64, 64, "f16", out_dtype=out, has_c=True, activation="relu")
    rng = np.random.default_rng(1)
    a = rng.integers(-3, 4, (1, 48, 64)) * 2.0 ** rng.integers(-4, 5, (1, 48, 1))
    for scale in (1.0, 0.125, 2.0**9):
        _, got = exact(hw, op, inputs={"A": a}, alpha=2.0, beta=0.5, scale=scale)
        largest = np.abs(got).max()
    assert largest == catalogue.get(hw).resolve_dtype(out).max_finite


@compiles
@pytest.mark.parametrize(("hw", "out"), NARROW[::3])
def test_nan_stays_nan_and_infinity_saturates_in_8_bits(hw: str, out: str) -> None:
    op = op_of(16, 16, 0, "f16", out_dtype=out, bias="column")
    most = catalogue.get(hw).resolve_dtype(out).max_finite
    bias = np.array([np.nan, np.inf, -np.inf, 1e38, -1e38, 0.0, -0.0, most, -most, most / 2] + [1.0] * 6)
    _, got = exact(hw, op, inputs={"bias": bias})
    assert np.isnan(got[0, :, 0]).all()
    assert np.array_equal(got[0, 3, 1:5], [most, -most, most, -most])


@compiles
@pytest.mark.parametrize(("dtype", "layout", "N"), [("fp8_e4m3fnuz", "NT", 52), ("i8", "TN", 32), ("f16", "NN", 33)])
def test_scale_of_every_store_width_and_type_of_sums(dtype: str, layout: str, N: int) -> None:
    op = op_of(40, N, 64, dtype, layout, out_dtype="fp8_e4m3fnuz", has_c=True)
    exact("mi300x", op, alpha=0.5, beta=2.0, scale=0.25)


@compiles
def test_run_takes_a_scale_that_defaults_to_one() -> None:
    torch = pytest.importorskip("torch")
    host = Host("mi300x", op_of(32, 32, 32, "fp8_e4m3fnuz", out_dtype="fp8_e4m3fnuz", activation="relu"))
    kind = torch.float8_e4m3fnuz
    a, b = (torch.randint(-2, 3, (1, 32, 32)).float().to(kind) for _ in range(2))
    for options in ({}, {"scale": 1.0}, {"scale": 0.25, "alpha": 2.0}, {"scale": 64.0}):
        want = host.file.reference(a, b, **options).clamp(-240, 240)
        assert torch.equal(host.file.run(a, b, **options).double(), want.float().to(kind).double())
    assert "scale: SCALAR" in emit_source(derived("mi300x", op_of(8, 8, 8, out_dtype="bf8_e5m2fnuz")))
    assert "scale" not in emit_source(derived("mi300x", op_of(8, 8, 8))).replace("no_scale", "")


# --- types of D ---------------------------------------------------------------------------------------------------


@compiles
@pytest.mark.parametrize(
    ("dtype", "out"), [("f64", "f32"), ("f64", "f16"), ("f64", "bf16"), ("f32", "f16"), ("f32", "bf16"), ("i8", "bf16")]
)
def test_wide_sums_are_rounded_once(dtype: str, out: str) -> None:
    op = op_of(32, 32, 64, dtype, out_dtype=out, has_c=True, bias="row", activation="relu")
    rng = np.random.default_rng(2)
    a = rng.integers(-100, 101, (1, 32, 64)) * (1.0 if dtype == "i8" else 2.0**-6)
    exact("mi300x", op, inputs={"A": a}, alpha=0.5, beta=2.0)


@compiles
def test_whole_outputs_are_scaled_and_rounded_to_even() -> None:
    """Sums beyond the 24 bits of f32 stay exact; halves go to even; what is too large saturates."""
    op = op_of(32, 48, 4096, "i8", has_c=True, bias="column")
    a = np.full((1, 32, 4096), 127)
    b = np.where(np.arange(48)[:, None] % 2 == 0, 127, 126) * np.ones((1, 48, 4096))
    for alpha, most in ((1.0, None), (2.0**-13, None), (1e9, 2**31 - 1), (-1e9, -(2**31))):
        _, got = exact("mi300x", op, inputs={"A": a, "B": b}, alpha=alpha, beta=1.0)
        assert most is None or (got == most).all()


@pytest.mark.parametrize(
    ("dtype", "fields", "rule"),
    [
        ("f32", {"out_dtype": "f64"}, "output type"),
        ("bf16", {"out_dtype": "i32"}, "output type"),
        ("f64", {"out_dtype": "fp8_e4m3fnuz"}, "output type"),
        ("f64", {"activation": "gelu"}, "activation"),
        ("f64", {"activation": "gelu_tanh"}, "activation"),
        ("f64", {"activation": "silu"}, "activation"),
        ("i8", {"activation": "silu"}, "activation"),
    ],
)
def test_types_that_cannot_be_right_are_refused(dtype: str, fields: dict[str, str], rule: str) -> None:
    reason = derived("mi300x", op_of(64, 64, 64, dtype, **fields)).infeasible
    assert reason is not None
    assert reason.resource == rule


@pytest.mark.parametrize(("hw", "out"), [("mi210", "fp8_e4m3fnuz"), ("mi300x", "bf8_e5m2"), ("mi355x", "bf8_e5m2fnuz")])
def test_an_8_bit_output_of_another_target_is_bad_input(hw: str, out: str) -> None:
    with pytest.raises(BadInput, match=out):
        derived(hw, op_of(64, 64, 64, "f16", out_dtype=out))


# --- activations --------------------------------------------------------------------------------------------------

ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "silu")


def activation_of_c(name: str) -> Gemm:
    """A kernel without terms: the activation of C."""
    return op_of(256, 256, 0, "f32", has_c=True, activation=name)


def on_values(name: str, values: Any, hw: str = "mi300x") -> tuple[Any, Any]:
    """(D, float64) of an activation of f32 values, which come as C of a kernel without terms."""
    side = 256
    padded = np.zeros(-(-len(values) // side) * side, np.float32)
    padded[: len(values)] = values
    op = activation_of_c(name)
    c = padded.reshape(1, -1, side)
    result, out, _ = simulate(hw, op, dataclasses.replace(op, M=c.shape[1]), beta=1.0, inputs={"C": c})
    assert result.ok, str(result)
    return out.ravel()[: len(values)], activated(name, values.astype(np.float64))


def spread(count: int) -> Any:
    """f32 values of both signs, over the range where activations bend and over every exponent."""
    rng = np.random.default_rng(3)
    near, far = np.linspace(-17.0, 17.0, count), np.exp2(rng.uniform(-100, 30, count)) * rng.choice([-1, 1], count)
    return np.concatenate([near, far]).astype(np.float32)


@compiles
@pytest.mark.parametrize("count", [30000, pytest.param(2000000, marks=pytest.mark.slow)])
def test_gelu_is_that_of_the_error_function_in_f32(count: int) -> None:
    """The bound that the emitted docstring states: 2^-21 |x|, and 2^-16 of every normal result."""
    x = spread(count)
    got, want = on_values("gelu", x)
    error = np.abs(got - want)
    assert (error <= 2.0**-21 * np.abs(x)).all()
    normal = np.abs(want) >= 2.0**-126
    assert (error[normal] <= 2.0**-16 * np.abs(want[normal])).all()
    close = x > -1
    assert (error[close] <= 2.0**-21 * np.abs(want[close]) + 2.0**-126).all()


@compiles
@pytest.mark.parametrize("name", ["silu", "gelu_tanh"])
def test_silu_and_the_tanh_form_are_accurate_in_f32(name: str) -> None:
    x = spread(30000)
    got, want = on_values(name, x)
    error = np.abs(got - want)
    assert (error <= 2.0**-21 * np.abs(x)).all()
    normal = np.abs(want) >= 2.0**-118  # what is smaller is 0: its exponential overflows
    assert (error[normal] <= 2.0**-16 * np.abs(want[normal])).all()


def test_gelu_differs_from_its_tanh_form() -> None:
    x = np.linspace(-4, 4, 1001)
    assert 1e-4 < np.abs(activated("gelu", x) - activated("gelu_tanh", x)).max() < 1e-3
    torch = pytest.importorskip("torch")
    for name, form in (("gelu", "none"), ("gelu_tanh", "tanh")):
        want = torch.nn.functional.gelu(torch.tensor(x), approximate=form).numpy()
        assert np.allclose(activated(name, x), want, rtol=1e-12, atol=1e-15)


@compiles
@pytest.mark.parametrize(("hw", "name"), [*product(["mi300x"], ACTIVATIONS), ("mi100", "gelu"), ("mi355x", "silu")])
def test_activations_of_special_values(hw: str, name: str) -> None:
    """NaN stays NaN; +inf stays; -inf gives the limit 0; large numbers do not overflow on the way."""
    x = np.array([np.nan, np.inf, -np.inf, 3e38, -3e38, 1e20, -1e20, 130.0, -130.0, 0.0, -0.0, 1e-38], np.float32)
    got, want = on_values(name, x, hw)
    assert np.array_equal(got, want.astype(np.float32), equal_nan=True)
    assert got[2] == 0
    assert np.isnan(got[0])


@compiles
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_reference_agrees_with_the_kernel_on_special_values(name: str) -> None:
    torch = pytest.importorskip("torch")
    host = Host("mi300x", activation_of_c(name))
    c = torch.tensor([[[float("nan"), float("inf"), float("-inf"), 2.0, -3.0, 0.0, 1e20, -1e20]]])
    a, b = torch.zeros(1, 1, 0), torch.zeros(1, 8, 0)
    got, want = host.file.run(a, b, c), host.file.reference(a, b, c)
    assert torch.allclose(got.double(), want, rtol=1e-6, atol=1e-9, equal_nan=True)


@compiles
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_factors_of_zero_ignore_nan_and_terms_spread_it(dtype: str) -> None:
    op = op_of(32, 32, 40, dtype, has_c=True, bias="row")
    nan, inf = np.full((1, 32, 1), np.nan), np.full((1, 32, 1), np.inf)
    exact("mi300x", op, beta=0.0, inputs={"C": nan})
    exact("mi300x", op, beta=0.0, inputs={"C": inf})
    exact("mi300x", op, alpha=0.0, beta=1.0, inputs={"A": nan, "B": inf})
    exact("mi300x", op, alpha=0.0, beta=0.0, inputs={"A": nan, "C": nan})
    a = np.ones((1, 32, 40))
    a[0, 3, 39], a[0, 5, 0], a[0, 6, 7], a[0, 7, :2] = np.nan, np.inf, -np.inf, (np.inf, -np.inf)
    _, got = exact("mi300x", op, beta=1.0, inputs={"A": a, "B": np.ones((1, 32, 40))})
    assert np.isnan(got[0, [3, 7]]).all()
    assert (got[0, 5] == np.inf).all()
    assert (got[0, 6] == -np.inf).all()
    assert np.isfinite(np.delete(got[0], [3, 5, 6, 7], axis=0)).all()
