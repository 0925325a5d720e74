"""The order of instructions in an emitted attention step, and the request to keep it."""

from __future__ import annotations

from .emit_text import join, piece

__all__ = ["order"]

_SPREAD = '''
def spread(first, second):
    """Two lists of operations as one, each at its own even pace."""
    out, taken = [], 0
    for i, operation in enumerate(first):
        out.append(operation)
        out += second[taken : len(second) * (i + 1) // len(first)]
        taken = len(second) * (i + 1) // len(first)
    return out + second[taken:]
'''

_ORDER = '''
class Order:
    """Operations (kind, count, slots, function) in the order in which they are written, and the request to keep it.

    `count` instructions of a kind that the scheduler can be told about are among the `slots` that they take to issue.
    """

    def __init__(self):
        self.kinds = []

    def do(self, operations):
        for kind, count, _, function in operations:
            self.kinds.append((kind, count))
            function()

    def weave(self, reads, products, others, share, ready=None):
        """The MFMAs of one product with their LDS reads ahead of them, and the others spread over a share of them.

        A group of MFMAs uses one read. Reads are issued two groups ahead, the later one of a pair first: one wait then
        does for both. Others go ahead of a group that is not `ready`.
        """
        reads = [read for i in range(0, len(reads), 2) for read in reversed(reads[i : i + 2])]
        others, mfmas = list(others), sum(len(group) for group in products)
        pace = sum(slots for _, _, slots, _ in others) / (mfmas * share)
        self.do(reads[:2])
        done = spent = 0
        for i, group in enumerate(products):
            while ready is not None and not ready(i):
                spent += others[0][2]
                self.do([others.pop(0)])
            for j, product in enumerate(group):
                self.do([product])
                if i % 2 == 0 and j == 0:
                    self.do(reads[i + 2 : i + 4])
                done += 1
                while others and spent + others[0][2] / 2 <= pace * done:
                    spent += others[0][2]
                    self.do([others.pop(0)])
        self.do(others)

    def keep(self):
        """Asks the scheduler for this order up to here."""
        runs = []
        for kind, count in self.kinds:
            if runs and runs[-1][0] == kind:
                runs[-1][1] += count
            elif count:
                runs.append([kind, count])
        for kind, count in runs:
            rocdl.sched_group_barrier(kind, count, 0)
        self.kinds = []
'''


def order() -> str:
    return join(piece(_SPREAD), piece(_ORDER))
