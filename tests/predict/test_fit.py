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
        ("M,N,K,dtype,layout,us\n1.5,2,3,bf16,NT,3\n", "M='1.5' is out of range"),
        ("M,N,K,dtype,layout,us\n1e30,2,3,bf16,NT,3\n", "M='1e30' is out of range"),
        ("M,N,K,dtype,layout,us\n1,2,3,bf16,NT,nan\n", "us='nan' is out of range"),
        ("M,N,K,dtype,layout,us\n1,2,3,bf16,NT,0\n", "us='0' is out of range"),
        ("M,N,K,dtype,layout,us\n1,2,3\n", "us='' is not a number"),
        ("M,N,K,us,dtype,layout\n1,2,3,4\n", "layout must be"),
        ("M,N,K,dtype,layout,us,tile_m\n1,2,3,bf16,NT,3,128\n", "all of them or none"),
        ("M,N,K,dtype,layout,us,waves\n1,2,3,bf16,NT,3,0\n", "waves='0' is out of range"),
    ],
)
def test_what_cannot_be_read(tmp_path, text, message):
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(BadInput, match=message):
        read_measurements(path)


def test_what_is_no_text(tmp_path):
    path = tmp_path / "bad.csv"
    path.write_bytes(b"M,N\n\xff")
    with pytest.raises(BadInput, match="not a text in UTF-8, at byte 4"):
        read_measurements(path)


def test_a_mark_of_bytes_and_spaces_do_no_harm(table, tmp_path):
    other = tmp_path / "other.csv"
    other.write_text(table.read_text().replace(",", ", "), encoding="utf-8-sig")
    assert (read_measurements(other).us == read_measurements(table).us).all()
    assert read_measurements(other).layout == read_measurements(table).layout


@pytest.mark.parametrize(("factor", "unit"), [(1e-3, "milliseconds"), (1e-6, "seconds"), (1e3, "nanoseconds")])
def test_another_unit_is_refused(table, factor, unit):
    data = read_measurements(table)
    data.numbers["us"] *= factor
    with pytest.raises(BadInput, match=f"these look like {unit}"):
        calibrate(catalogue.get("mi325x"), data)


def test_one_shape_is_no_table(table):
    data = read_measurements(table)
    for name in ("M", "N", "K"):
        data.numbers[name][:] = 64
    with pytest.raises(BadInput, match="at least 2"):
        calibrate(catalogue.get("mi325x"), data)


def test_tiles_that_the_gpu_does_not_hold_are_left_out(table):
    data = read_measurements(table)
    for name in ("tile_m", "tile_n", "tile_k"):
        data.numbers[name][3] = 1024
    found = calibrate(catalogue.get("mi325x"), data, folds=2)
    assert (found.rows, found.rows_left_out) == (len(SHAPES) - 1, 1)
    assert "1 left out, whose tiles" in str(found)
    for name in ("tile_m", "tile_n", "tile_k"):
        data.numbers[name][:-2] = 1024
    with pytest.raises(BadInput, match="tiles of 2 rows, a fit needs at least 8; row 1: a workgroup on mi325x needs"):
        calibrate(catalogue.get("mi325x"), data)
    data.numbers["tile_m"][0] = 17
    with pytest.raises(BadInput, match="row 1: tile_m=17 is not a multiple"):
        calibrate(catalogue.get("mi325x"), data)


def test_an_unwritable_file_is_bad_input(table):
    result = calibrate(catalogue.get("mi325x"), read_measurements(table), folds=2)
    with pytest.raises(BadInput, match="cannot write"):
        write_constants("/proc/none/constants.csv", result, "a test")
