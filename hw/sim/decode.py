"""A kernel's instructions decoded once, each to an Op specialised for its operands."""

from __future__ import annotations

import re

from .ds import decode_lds
from .errors import AssemblyError, UnknownInstruction
from .matrix import decode_matrix, share_fragments
from .modes import changed_mode, indexed_move, is_mode
from .op import Op, make_op
from .operands import Context
from .parse import Instruction, Kernel
from .salu import decode_scalar
from .smem import decode_scalar_memory
from .state import Group
from .valu import decode_vector
from .vmem import decode_vector_memory
from .waitcnt import decode_wait

__all__ = ["Code", "code_of", "decode", "register_counts"]

TARGETS = ("gfx908", "gfx90a", "gfx942", "gfx950")
_VECTOR = re.compile(r"\b([va])(?:(\d+)\b|\[\d+:(\d+)\])")


def register_counts(kernel: Kernel) -> tuple[int, int]:
    """VGPRs and AccVGPRs that the code names."""
    highest = {"v": -1, "a": -1}
    for ins in kernel.instructions:
        for text in ins.operands:
            for kind, single, last in _VECTOR.findall(text):
                highest[kind] = max(highest[kind], int(single or last))
    return highest["v"] + 1, highest["a"] + 1


#: Modifiers that some room reads; any other one is refused.
MODIFIERS = frozenset(
    {
        *(
            "offset",
            "offset0",
            "offset1",
            "offen",
            "idxen",
            "glc",
            "slc",
            "dlc",
            "sc0",
            "sc1",
            "scc",
            "nt",
            "lds",
            "gds",
        ),
        *("tfe", "addr64", "clamp", "mul", "div", "op_sel", "op_sel_hi", "neg_lo", "neg_hi", "bitop3"),
        *("src0_sel", "src1_sel", "dst_sel", "dst_unused", "cbsz", "abid", "blgp"),
        *("quad_perm", "row_mirror", "row_half_mirror", "row_shl", "row_shr", "row_ror", "row_bcast", "row_newbcast"),
        *("wave_shl", "wave_shr", "wave_rol", "wave_ror", "row_mask", "bank_mask", "bound_ctrl"),
    }
)


class Code:
    """Decoded instructions, the register rows that they need, and where each label stands."""

    def __init__(self, kernel: Kernel) -> None:
        if kernel.target not in TARGETS:
            raise AssemblyError(f"target {kernel.target} is not one of {', '.join(TARGETS)}")
        vector, acc = register_counts(kernel)
        self.kernel = kernel
        self.acc_base = max(vector, 3)
        self.rows = self.acc_base + acc
        self.context = _context(kernel, self.acc_base)
        self.ops = self._decode_all()
        share_fragments(self.ops, set(kernel.labels.values()))
        self.jump = [self._target(op) for op in self.ops]

    def _decode_all(self) -> list[Op]:
        ops = []
        context = self.context
        joins = set(self.kernel.labels.values())
        for ins in self.kernel.instructions:
            if ins.index in joins and context != self.context:
                raise UnknownInstruction(ins.mnemonic, ins.line, self.kernel.target, "a label inside a changed mode")
            if is_mode(ins):
                context = changed_mode(ins, context)
                ops.append(make_op(ins, _nothing, "other"))
            elif context.index is not None and ins.mnemonic.startswith("v_"):
                ops.append(indexed_move(ins, context))
            else:
                ops.append(decode(ins, context))
        return ops

    def _target(self, op: Op) -> int:
        if not op.target:
            return -1
        if re.fullmatch(r"\d+[fb]", op.target):
            return self._local(op)
        if op.target not in self.kernel.labels:
            raise AssemblyError(f"line {op.ins.line}: no label {op.target} in {self.kernel.name}")
        return self.kernel.labels[op.target]

    def _local(self, op: Op) -> int:
        """The next (f) or last (b) place of a numbered label."""
        number, forward = op.target[:-1], op.target[-1] == "f"
        places = [p for name, p in self.kernel.labels.items() if name.startswith(f"{number}@")]
        ahead = [p for p in places if p > op.ins.index]
        behind = [p for p in places if p <= op.ins.index]
        if not (ahead if forward else behind):
            raise AssemblyError(f"line {op.ins.line}: no label {op.target}")
        return min(ahead) if forward else max(behind)


_KEPT: list[Code] = []


def code_of(kernel: Kernel) -> Code:
    """The decoded kernel; the last few are kept, since tests run one kernel many times."""
    for code in _KEPT:
        if code.kernel is kernel:
            return code
    code = Code(kernel)
    _KEPT.append(code)
    del _KEPT[:-8]
    return code


def _nothing(g: Group) -> None:
    return None


def _context(kernel: Kernel, acc_base: int) -> Context:
    modes = [kernel.descriptor.get(f"float_denorm_mode_{w}", d) for w, d in (("32", 0), ("16_64", 3))]
    rounding = [kernel.descriptor.get(f"float_round_mode_{w}", 0) for w in ("32", "16_64")]
    if any(m not in (0, 3) for m in modes) or any(rounding):
        raise AssemblyError(
            f"{kernel.name}: only round to nearest even, and denormals all kept or all flushed, have a model"
        )
    return Context(kernel.target, acc_base, modes[0] == 3, modes[1] == 3)


def decode(ins: Instruction, ctx: Context) -> Op:
    """The Op of one instruction; raises UnknownInstruction where there is no model."""
    name = ins.mnemonic
    if strange := set(ins.modifiers) - MODIFIERS:
        raise UnknownInstruction(name, ins.line, ctx.target, f"modifier {', '.join(sorted(strange))}")
    try:
        op = _decode(ins, ctx)
    except (KeyError, IndexError, ValueError) as error:
        raise UnknownInstruction(name, ins.line, ctx.target, f"operands {', '.join(ins.operands)} ({error})") from error
    if op is None:
        raise UnknownInstruction(name, ins.line, ctx.target)
    return op


def _decode(ins: Instruction, ctx: Context) -> Op | None:
    name = ins.mnemonic
    if name.startswith("ds_"):
        return decode_lds(ins, ctx)
    if name.startswith(("v_mfma", "v_smfmac")):
        return decode_matrix(ins, ctx)
    if name.startswith("v_"):
        return decode_vector(ins, ctx)
    if name.startswith("s_"):
        return decode_wait(ins, ctx) or decode_scalar_memory(ins, ctx) or decode_scalar(ins, ctx)
    return decode_vector_memory(ins, ctx) or decode_scalar(ins, ctx)
