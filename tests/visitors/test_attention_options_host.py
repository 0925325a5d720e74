"""The host side of emitted attention with masks, logits, lengths, pages and splits: what run() takes and refuses."""

import math

import numpy as np
import pytest

from closedform.emitted_file import recorded_module
from closedform.hw import catalogue
from closedform.hw.sim.testing import sparse_array
from closedform.operators.attention import Attention
from closedform.operators.attention_reference import attention_reference
from closedform.visitors.compile import missing_dependency
from closedform.visitors.emit import emit_source
from closedform.visitors.feasibility import derive

pytestmark = pytest.mark.skipif(missing_dependency() is not None, reason=str(missing_dependency()))

SHAPE = {"batch": 2, "heads": 4, "dtype": "f16"}


class Host:
    """The emitted file of an operator on [9 queries, 21 keys, d = 64], whose launches are recorded."""

    def __init__(self, knobs=None, **options):
        self.launches = []
        self.op = Attention(9, 21, 64, **SHAPE, **options)
        source = emit_source(derive(self.op, catalogue.get("mi300x"), "default", **(knobs or {})))
        self.module = recorded_module(source, lambda *launch: self.launches.append(launch))
        self.given = self.module.example("cpu")

    def run(self, **changed):
        return self.module.run(**{**self.given, **changed})

    @property
    def values(self):
        """Arguments of the last launch."""
        return self.launches[-1][1]


ALL = [
    {"causal": True},
    {"window": 4, "sink": 1, "causal": True},
    {"window": 3},
    {"v_dim": 40, "lse": True},
    {"softcap": 3.0, "softmax_scale": 0.4},
    {"bias": True, "alibi": True},
    {"key_lengths": True, "bshd": True},
    {"varlen": True, "lse": True, "kv_heads": 2},
    {"page": 16, "key_lengths": True, "kv_heads": 1, "bias": True},
    {"page": 128, "key_lengths": True, "bshd": True, "causal": True, "alibi": True},
    {"bshd": True, "lse": True, "bias": True},
]


def logical(op, given):
    """The arguments of run() as inputs [batch, heads, L, d] of the operator."""
    as_array = {name: t.double().numpy() for name, t in given.items()}
    q, k, v = (as_array[name] for name in "qkv")
    if op.varlen:
        q, k, v = (np.stack(np.split(x, op.batch)).transpose(0, 2, 1, 3) for x in (q, k, v))
        return {"Q": q, "K": k, "V": v, "query_lengths": [op.L_q] * op.batch, "key_lengths": [op.L_kv] * op.batch}
    if op.bshd:
        q = q.transpose(0, 2, 1, 3)
    if op.page:
        pages = given["pages"].numpy()
        k, v = (x[pages].reshape(op.batch, -1, *x.shape[2:]).transpose(0, 2, 1, 3) for x in (k, v))
    elif op.bshd:
        k, v = (x.transpose(0, 2, 1, 3) for x in (k, v))
    more = {name: as_array[name] for name in ("bias", "slopes") if name in given}
    more |= {"key_lengths": given["key_lengths"].numpy()} if op.key_lengths else {}
    return {"Q": q, "K": k, "V": v, **more}


@pytest.mark.parametrize("options", ALL, ids=str)
def test_the_reference_is_the_operators(options):
    import torch

    host = Host(**options)
    op, given = host.op, host.given
    want, want_lse = attention_reference(op, logical(op, given))
    slopes = (given["slopes"],) if op.alibi else ()
    rows = torch.arange(op.L_q)
    for i in range(op.batch):
        out, lse = host.module.attend(rows, *host.module.entry_of(i, **given), *slopes)
        assert np.allclose(out.numpy(), want.out[i], rtol=1e-12, atol=1e-12)
        assert np.allclose(lse.numpy(), want_lse.out[i, ..., 0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("options", ALL, ids=str)
def test_run_takes_the_example(options):
    host = Host(**options)
    result = host.run()
    out, lse = result if host.op.lse else (result, None)
    assert tuple(out.shape) == (*host.given["q"].shape[:-1], host.op.columns)
    if host.op.lse:
        assert tuple(lse.shape) == ((4, 18) if host.op.varlen else (2, 4, 9))
    assert [name for name, _, _ in host.launches] == ["attention_kernel"]
    assert host.launches[0][2] == (1, 4, 2)


def test_split_keys_are_merged_by_a_second_kernel():
    host = Host({"splits": 3}, lse=True)
    host.run()
    assert [(name, grid) for name, _, grid in host.launches] == [
        ("attention_kernel", (1, 4, 6)),
        ("merge_kernel", (9, 4, 2)),
    ]
    assert host.values["splits"] == 3
    host.run(splits=5)
    assert host.launches[2][2] == (1, 4, 10)
    for wrong in (0, -1, 2**15):
        with pytest.raises(ValueError, match="splits"):
            host.run(splits=wrong)


# --- layouts ----------------------------------------------------------------------------------------------------------


def test_tensors_are_given_to_the_kernel_as_batch_heads_rows():
    host = Host(bshd=True)
    host.run()
    q = host.given["q"]
    assert host.values["Q"].data_ptr() == q.data_ptr()
    assert tuple(host.values["Q"].shape) == (2, 4, 9, 64)
    assert host.values["Q"].stride() == q.transpose(1, 2).stride()


def test_strided_tensors_are_used_in_place():
    import torch

    host = Host(causal=True)
    qkv = torch.randn(2, 21, 3, 4, 64).half()
    q, k, v = (qkv[:, :n, i].transpose(1, 2) for i, n in ((0, 9), (1, 21), (2, 21)))
    host.run(q=q, k=k, v=v)
    for name, t in (("Q", q), ("K", k), ("V", v)):
        assert host.values[name].data_ptr() == t.data_ptr()
        assert host.values[name].stride() == t.stride()


def test_tensors_that_the_kernel_cannot_address_are_copied():
    import torch

    def launched(_, values, __):
        values["O"].fill_(3.0)
        seen.append(values)

    seen = []
    derivation = derive(Attention(9, 21, 64, **SHAPE, causal=True), catalogue.get("mi300x"))
    module = recorded_module(emit_source(derivation), launched)
    given = module.example("cpu")
    columns = {name: t.transpose(2, 3).contiguous().transpose(2, 3) for name, t in given.items()}
    out = torch.zeros(2, 4, 64, 9).half().transpose(2, 3)
    assert module.run(**columns, out=out) is out
    for name, t in columns.items():
        assert seen[0][name.upper()].stride(3) == 1
        assert torch.equal(seen[0][name.upper()], t)
    assert (out == 3).all()
    unaligned = torch.zeros(2 * 4 * 9 * 64 + 1).half()[1:].view(2, 4, 9, 64)
    module.run(**{**given, "q": unaligned})
    assert seen[1]["Q"].data_ptr() % 16 == 0


@pytest.mark.parametrize("shape", [(2, 4, 9, 21), (1, 4, 1, 21), (1, 1, 1, 21), (2, 1, 9, 1), (9, 21), (21,), (1,)])
def test_a_bias_is_broadcast(shape):
    import torch

    host = Host(bias=True)
    bias = torch.randn(shape)
    host.run(bias=bias)
    assert tuple(host.values["BIAS"].shape) == (2, 4, 9, 21)
    assert torch.equal(host.values["BIAS"], bias.expand(2, 4, 9, 21))
    assert host.values["BIAS"].stride(3) == 1


def test_a_broadcast_bias_takes_no_memory():
    import torch

    host = Host(bias=True)
    bias = torch.randn(1, 4, 1, 21)
    host.run(bias=bias)
    assert host.values["BIAS"].data_ptr() == bias.data_ptr()
    assert host.values["BIAS"].stride() == (0, 21, 0, 1)


# --- what is refused --------------------------------------------------------------------------------------------------


def refused(host, match, **changed):
    with pytest.raises(ValueError, match=match):
        host.run(**changed)
    assert not host.launches


def test_entries_end_to_end_are_checked():
    import torch

    host = Host(varlen=True, lse=True)
    q, k = host.given["q"], host.given["k"]
    offsets = host.given["cu_q"]
    nothing = torch.zeros(1, dtype=torch.int32)
    refused(host, "batch", cu_q=nothing, cu_kv=nothing)
    refused(host, "cu_q must be", cu_q=offsets.long())
    refused(host, "cu_q must be", cu_q=torch.zeros(6, dtype=torch.int32)[::2])
    refused(host, "cu_kv must be", cu_kv=offsets[:2])
    refused(host, "most_rows", cu_q=torch.tensor([0, 9, 1800], dtype=torch.int32))
    refused(host, "most_rows", most_rows=19)
    refused(host, "most_rows", most_rows=-1)
    refused(host, "3-D", q=q[None])
    refused(host, "3-D", q=q[0, 0])
    refused(host, "L_q at least 1", q=q[:0])
    refused(host, "head dims", q=q[..., :32])
    refused(host, "do not agree", k=k[:5])
    refused(host, "do not agree", k=k[:, :2], v=k[:, :2])
    refused(host, "float16", q=q.float())
    refused(host, "lse must be", lse=torch.empty(2, 4, 9))


def test_entries_may_all_be_empty():
    import torch

    host = Host(varlen=True)
    k, nothing = host.given["k"], torch.zeros(3, dtype=torch.int32)
    host.run(cu_q=nothing, cu_kv=nothing)
    host.run(k=k[:0], v=k[:0], cu_kv=nothing)
    assert [grid for _, _, grid in host.launches] == [(1, 4, 2)] * 2


def test_pages_are_checked():
    import torch

    host = Host(page=16, key_lengths=True)
    k, v, pages = (host.given[name] for name in ("k", "v", "pages"))
    refused(host, "pages must be", pages=pages.long())
    refused(host, "pages must be", pages=pages[:1])
    refused(host, "pages must be", pages=pages[0])
    refused(host, "pages of 8 keys", k=k[:, :8], v=v[:, :8])
    refused(host, "do not agree", v=v[:2])
    refused(host, "key_lengths must be", key_lengths=host.given["key_lengths"].long())
    refused(host, "key_lengths must be", key_lengths=torch.zeros(3, dtype=torch.int32))
    far = torch.from_numpy(sparse_array((4, 16, 4, 64), (2**31, 256, 64, 1), np.float16))
    refused(host, "limited to", k=far)
    refused(host, "limited to", v=far)


@pytest.mark.parametrize(
    ("options", "changed", "match"),
    [
        ({"bias": True}, {"bias": (2, 4, 9, 20)}, "does not broadcast"),
        ({"bias": True}, {"bias": (2, 2, 9, 21)}, "does not broadcast"),
        ({"bias": True}, {"bias": (1, 2, 4, 9, 21)}, "does not broadcast"),
        ({"alibi": True}, {"slopes": (3,)}, "slopes must be"),
        ({"causal": True}, {"k": (2, 4, 21, 64)}, "float16"),
        ({"bshd": True}, {"out": (2, 4, 9, 64)}, "float16"),
    ],
    ids=str,
)
def test_shapes_and_types_are_checked(options, changed, match):
    import torch

    refused(Host(**options), match, **{name: torch.zeros(shape) for name, shape in changed.items()})


def test_the_type_of_a_bias_and_numbers_are_checked():
    host = Host(bias=True, softcap=3.0, softmax_scale=0.5)
    refused(host, "float32", bias=host.given["bias"].half())
    for wrong in (0.0, -1.0, math.inf, math.nan):
        refused(host, "cap", cap=wrong)
        refused(host, "scale", scale=wrong)


def test_the_layout_of_out_is_that_of_q():
    import torch

    host = Host(bshd=True)
    refused(host, "do not agree", out=torch.zeros(2, 4, 9, 64).half())


# --- main() -----------------------------------------------------------------------------------------------------------


def test_results_that_are_not_finite_are_errors_unless_they_should_be():
    import torch

    max_error = Host(lse=True, causal=True).module.max_error
    want = torch.tensor([[1.0, -math.inf], [0.0, 0.0]]).double()
    assert max_error(want.clone(), want) == 0.0
    assert max_error(torch.tensor([[1.5, -math.inf], [0.0, 0.0]]), want) == 0.5
    for wrong in ([[1.0, 0.0], [0.0, 0.0]], [[math.nan, -math.inf], [0.0, 0.0]], [[1.0, -math.inf], [0.0, math.inf]]):
        assert max_error(torch.tensor(wrong), want) == math.inf
