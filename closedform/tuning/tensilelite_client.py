"""TensileLite's client as evaluator: a benchmark file that pins the candidate is written, run, and its result read."""

from __future__ import annotations

import contextlib
import csv
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from closedform.hw.errors import MissingDependency
from closedform.interop.tensilelite import benchmark, dump_yaml
from closedform.interop.tool import Offer, is_time

from .candidate import Candidate
from .evaluator import EvaluationFailed
from .tensilelite_space import parameters_of_candidate

__all__ = ["TensileliteEvaluator"]

#: The column of a winner's time in result files, written where CSVExportWinner is on.
TIME_COLUMN = "WinnerTimeUS"


@dataclass(frozen=True, slots=True)
class TensileliteEvaluator:
    """Runs `client CONFIG.yaml FOLDER` for a candidate and reads the time from the result files below FOLDER.

    Raises MissingDependency where the client is not installed.
    """

    offer: Offer
    client: Sequence[str]
    timeout_s: float = 600.0
    name: str = "tensilelite"
    repeatable: bool = False

    def __post_init__(self) -> None:
        if not self.client or shutil.which(self.client[0]) is None:
            missing = self.client[0] if self.client else "a client"
            raise MissingDependency(f"{missing} is not a program: --client names TensileLite's Tensile.py")

    def identity(self) -> Mapping[str, object]:
        return {"client": list(self.client)}

    def measure(self, candidate: Candidate) -> float:
        own = parameters_of_candidate(candidate)
        body = benchmark(self.offer)
        group = body["BenchmarkProblems"][0][1]
        group["ForkParameters"] = [{name: [value]} for name, value in own.items()]
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "config.yaml").write_text(dump_yaml(body))
            self._run(folder)
            return _winner_us(folder / "out")

    def _run(self, folder: Path) -> None:
        command = [*self.client, str(folder / "config.yaml"), str(folder / "out")]
        try:
            done = subprocess.run(command, capture_output=True, errors="replace", timeout=self.timeout_s, check=False)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"the client took more than {self.timeout_s:.0f} s") from None
        if done.returncode:
            last = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["no message"]
            raise EvaluationFailed(f"the client ended with status {done.returncode}: {last[0]}")


def _winner_us(folder: Path) -> float:
    """The least time of the result files; EvaluationFailed where the tool rejected the candidate and wrote none."""
    times = []
    for path in sorted(folder.rglob("*.csv")):
        with path.open(newline="", encoding="utf-8", errors="replace") as stream, contextlib.suppress(csv.Error):
            for row in csv.DictReader(stream, skipinitialspace=True):
                with contextlib.suppress(ValueError):
                    times.append(float((row.get(TIME_COLUMN) or "").strip()))
    positive = [us for us in times if is_time(us)]
    if not positive:
        raise EvaluationFailed(f"no {TIME_COLUMN} among the client's results: the solution was rejected")
    return min(positive)
