"""Calibration: what a fit recovers, and what it refuses."""

import csv

import numpy as np
import pytest

from closedform.hw import BadInput, catalogue
from closedform.predict.calibrate import calibrate, read_measurements, write_constants
from closedform.predict.constants import load_constants
from closedform.predict.select import gemm_selector

SHAPES = [(m, n, k) for m in (16, 512, 4096) for n in (1024, 4096) for k in (512, 4096, 16384)]


@pytest.fixture
def table(tmp_path):
    """Best latencies of a device with twice the launch time and less HBM than the model expects."""
    hw = catalogue.get("mi325x")
    slower = gemm_selector(hw, "bf16", "NT")
    path = tmp_path / "timings.csv"
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["M", "N", "K", "dtype", "layout", "us"])
        for shape in SHAPES:
            writer.writerow([*shape, "bf16", "NT", 1.3 * slower.times(*shape).min() + 2])
    return path


def test_a_fit_recovers_a_slower_device(table, tmp_path):
    result = calibrate(catalogue.get("mi325x"), read_measurements(table), folds=3)
    assert result.rows == result.shapes == len(SHAPES)
    assert result.before > 1.3
    assert result.after < 1.06
    assert result.cross_validated < 1.15
    out = tmp_path / "constants.csv"
    write_constants(out, result, "a test")
    loaded = load_constants(out)["staged", "mi325x"]
    assert loaded["launch_us"] == pytest.approx(result.constants["launch_us"], rel=1e-4)
    assert np.isfinite(list(result.to_json()["constants"].values())).all()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("M,N,K,dtype,us\n", "no column layout"),
        ("M,N,K,dtype,layout,us\n1,2,x,bf16,NT,3\n", "line 2: K='x' is not a number"),
        ("M,N,K,dtype,layout,us\n1,2,3,bf16,NT,-3\n", "out of range"),
        ("M,N,K,dtype,layout,us\n1,2,3,bf16,XY,3\n", "layout must be"),
        ("M,N,K,dtype,layout,us\n1,2,3,bf16,NT,3\n", "needs at least 8"),
    ],
)
def test_what_cannot_be_read(tmp_path, text, message):
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(BadInput, match=message):
        read_measurements(path)
