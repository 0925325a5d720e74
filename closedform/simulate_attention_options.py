"""Attention with options on the simulator: the emitted file's own run() on CPU tensors, each entry against float64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from .emitted_file import execute_launch, recorded_module, words_of
from .hw.sim import parse_file
from .simulation_case import UNTOUCHED, Array, Executed, How, require_memory, sampled, worst_of

if TYPE_CHECKING:
    from .hw.sim import Result
    from .operators.accuracy import Accuracy
    from .visitors.compile import Compiled
    from .visitors.derivation import Derivation

__all__ = ["AttentionRun", "simulate_options"]


def simulate_options(derivation: Derivation, compiled: Compiled, how: How) -> Executed:
    """Attention with options on random inputs; with a sample the rows of sampled workgroups are compared.

    Raises BadInput where the operands do not fit in memory.
    """
    from .visitors.compute import random_inputs

    op = derivation.op
    require_memory(4 * op.batch * (op.heads * op.L_q + op.key_heads * op.L_kv) * (op.d + op.columns), "smaller lengths")
    case = AttentionRun(derivation, compiled, random_inputs(op, np.random.default_rng(how.seed)), how)
    return Executed(tuple(case.results), case.accuracy(), case.grids[0])


class AttentionRun:
    """Tensors as run() takes them, made of logical inputs [batch, heads, L, d], and the launches that it makes.

    What no query may see is NaN in memory: rows past an entry's keys, pages that no table names; table entries behind
    the last page that is needed are far out of range.
    """

    def __init__(self, derivation: Derivation, compiled: Compiled, inputs: Mapping[str, Array], how: How) -> None:
        from .operators.numerics import rounded
        from .operators.reference import input_dtype
        from .visitors.emit import emit_source

        self.op, self.how = derivation.op, how
        self.tiles, _, _ = derivation.require()
        self.inputs = {name: rounded(x, input_dtype(self.op, name)).astype(np.float64) for name, x in inputs.items()}
        self.program = parse_file(compiled.isa)
        self.module = recorded_module(emit_source(derivation), self._launched)
        self.results: list[Result] = []
        self.grids: list[tuple[int, int, int]] = []
        self.numbers: Array = np.zeros(0, int)
        given = self._given()
        shape = (*given["q"].shape[:-1], self.op.columns)
        self.out = given["q"].new_empty(shape, dtype=getattr(self.module, "TORCH_RESULT", given["q"].dtype))
        self.lse = self._lse() if self.op.lse else None
        words_of(self.out).view(np.uint8)[...] = UNTOUCHED
        scalars = {"scale": self.op.scale} if self.op.softmax_scale is not None else {}
        scalars |= {"cap": float(self.op.softcap)} if self.op.softcap is not None else {}
        results = {"lse": self.lse} if self.op.lse else {}
        self.module.run(**given, out=self.out, **results, **scalars)

    # --- inputs -----------------------------------------------------------------------------------------------------

    def _given(self) -> dict[str, Any]:
        """Arguments of run()."""
        import torch

        op, inputs = self.op, self.inputs
        given = {name: self._stored(inputs[name.upper()]) for name in "qkv"}
        poisoned = op.key_lengths or op.varlen
        if poisoned and not op.varlen:
            for i, keys in enumerate(inputs["key_lengths"].astype(int)):
                for name in "kv":
                    given[name][i, :, keys:] = torch.nan
        if op.varlen:
            given = self._end_to_end(given)
        elif op.page:
            given |= self._paged(given)
            given["q"] = given["q"].transpose(1, 2).contiguous() if op.bshd else given["q"]
        elif op.bshd:
            given = {name: t.transpose(1, 2).contiguous() for name, t in given.items()}
        if op.key_lengths:
            given["key_lengths"] = torch.tensor(inputs["key_lengths"].astype(np.int32))
        for name in [name for name in ("bias", "slopes") if name in inputs]:
            given[name] = torch.tensor(inputs[name].astype(np.float32))
        if op.bias and op.page:
            keys = given["pages"].shape[1] * op.page
            given["bias"] = torch.nn.functional.pad(given["bias"], (0, keys - op.L_kv), value=torch.nan)
        return given

    def _stored(self, values: Array) -> Any:
        import torch

        return torch.tensor(values).to(self.module.TORCH_DTYPE)

    def _end_to_end(self, given: dict[str, Any]) -> dict[str, Any]:
        """Rows of all entries one behind the other, with a row of NaN behind the last."""
        import torch

        packed: dict[str, Any] = {}
        for name, lengths in (("q", "query_lengths"), ("k", "key_lengths"), ("v", "key_lengths")):
            counts = self.inputs[lengths].astype(int)
            rows = [given[name][i, :, :n].transpose(0, 1) for i, n in enumerate(counts)]
            end = torch.full((1, *given[name].shape[1:2], given[name].shape[3]), torch.nan, dtype=given[name].dtype)
            packed[name] = torch.cat([*rows, end]).contiguous()
        for name, lengths in (("cu_q", "query_lengths"), ("cu_kv", "key_lengths")):
            packed[name] = torch.tensor(np.concatenate([[0], np.cumsum(self.inputs[lengths])]).astype(np.int32))
        return packed

    def _paged(self, given: dict[str, Any]) -> dict[str, Any]:
        """Pages in random order with one that nothing names; keys past an entry's are NaN."""
        import torch

        op = self.op
        count = -(-op.L_kv // op.page)
        keys = self.inputs["key_lengths"].astype(int)
        order = np.random.default_rng(self.how.seed).permutation(op.batch * count + 1)[: op.batch * count]
        pages = order.reshape(op.batch, count).astype(np.int32)
        made: dict[str, Any] = {}
        for name in "kv":
            heads, width = given[name].shape[1], given[name].shape[3]
            cache = torch.full((op.batch * count + 1, op.page, heads, width), torch.nan, dtype=given[name].dtype)
            for i in range(op.batch):
                for page, first in zip(pages[i], range(0, keys[i], op.page), strict=False):
                    held = given[name][i, :, first : min(first + op.page, keys[i])].transpose(0, 1)
                    cache[page, : len(held)] = held
            made[name] = cache
        for i in range(op.batch):
            pages[i, -(-keys[i] // op.page) :] = 2**30
        return {**made, "pages": torch.tensor(pages)}

    def _lse(self) -> Any:
        import torch

        op = self.op
        if op.varlen:
            return torch.full((op.heads, int(self.inputs["query_lengths"].sum()) + 1), torch.nan)
        return torch.full((op.batch, op.heads, op.L_q), torch.nan)

    # --- launches ---------------------------------------------------------------------------------------------------

    def _launched(self, kernel: str, values: dict[str, Any], grid: tuple[int, int, int]) -> None:
        """Execute a launch; workspaces start undefined."""
        first = kernel == "attention_kernel"
        workspace = first and self.tiles.splits > 1
        outputs = ("PARTIAL", "PARTIAL_LSE") if workspace else ("O", "LSE")
        partial = workspace or self.op.varlen or self.how.blocks is not None
        options = {"blocks": self._numbers(grid) if first else self._rows(grid), **self.how.run_options}
        self.results.append(execute_launch(self.program, kernel, values, grid, outputs, partial=partial, **options))
        self.grids.append(grid)

    def _numbers(self, grid: tuple[int, int, int]) -> Array:
        """Workgroups that run: all, or a sample, with all splits of the same queries."""
        splits = self.tiles.splits
        entry = grid[0] * grid[1]
        chosen = sampled(entry * grid[2] // splits, None if self.how.blocks is None else -(-self.how.blocks // splits))
        batch, place = chosen // entry, chosen % entry
        self.numbers = np.sort(((batch[:, None] * splits + np.arange(splits)) * entry + place[:, None]).ravel())
        return self.numbers

    def _rows(self, grid: tuple[int, int, int]) -> Array:
        """Workgroups of the merge whose queries were worked on."""
        touched = self._touched()
        numbers = np.arange(int(np.prod(grid)))
        row, head, batch = numbers % grid[0], numbers // grid[0] % grid[1], numbers // (grid[0] * grid[1])
        return numbers[touched[batch, head, row]]

    def _touched(self) -> Array:
        """[batch, heads, L_q]: queries whose workgroups ran."""
        op, block = self.op, self.tiles.block_q
        grid = self.grids[0] if self.grids else (-(-op.L_q // block), op.heads, op.batch * self.tiles.splits)
        touched = np.zeros((op.batch, op.heads, grid[0] * block), bool)
        for number in self.numbers:
            x, head, z = number % grid[0], number // grid[0] % grid[1], number // (grid[0] * grid[1])
            x = grid[0] - 1 - x if op.causal and not op.varlen else x
            touched[z // self.tiles.splits, head, x * block : (x + 1) * block] = True
        return touched[:, :, : max(op.L_q, 1)]

    # --- results ----------------------------------------------------------------------------------------------------

    def accuracy(self) -> Accuracy | None:
        """Every query whose workgroup ran, against float64; rows of other entries must be as they were."""
        from dataclasses import replace

        from .operators.accuracy import compare, compare_lse
        from .operators.attention_reference import attention_entries, entry_reference

        op, touched = self.op, self._touched()
        parts, first = [], 0
        for i, entry in enumerate(attention_entries(op, self.inputs)):
            out, lse = self._of_entry(i, first, entry.L_q)
            first += entry.L_q
            for head in range(op.heads):
                rows = np.flatnonzero(touched[i, head, : entry.L_q])
                if not len(rows):
                    continue
                alone = replace(entry.of_rows(rows), **self._of_head(entry, head, rows))
                one = replace(op, L_q=max(len(rows), 1), batch=1, heads=1, kv_heads=0)
                exact, exact_lse = entry_reference(one, alone)
                with np.errstate(all="ignore"):
                    parts.append(compare(one, out[head, rows][None], exact))
                    if lse is not None:
                        parts.append(compare_lse(one, lse[head, rows][None], exact_lse))
        return worst_of(parts) if parts else None

    @staticmethod
    def _of_head(entry: Any, head: int, rows: Array) -> dict[str, Any]:
        group = entry.q.shape[0] // entry.k.shape[0]
        kv = slice(head // group, head // group + 1)
        found = {"q": entry.q[head : head + 1, rows], "k": entry.k[kv], "v": entry.v[kv]}
        if entry.bias is not None:
            found["bias"] = entry.bias[head : head + 1, rows]
        if entry.slopes is not None:
            found["slopes"] = entry.slopes[head : head + 1]
        return found

    def _of_entry(self, i: int, first: int, queries: int) -> tuple[Array, Array | None]:
        """O [heads, L_q, columns] and log-sum-exp [heads, L_q] of an entry, in float64."""
        out = self.out.double().numpy()
        if self.op.varlen:
            rows = slice(first, first + queries)
            lse = None if self.lse is None else self.lse.numpy()[:, rows]
            return out[rows].transpose(1, 0, 2), lse
        lse = None if self.lse is None else self.lse.numpy()[i]
        return out[i].transpose(1, 0, 2) if self.op.bshd else out[i], lse
