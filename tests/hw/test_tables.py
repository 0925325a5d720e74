"""The fact tables, and the reader's rejections."""

import csv

import pytest

from closedform.hw import BadInput
from closedform.hw.tables import FACTS, STATUSES, read_facts

KEYS = {
    "fragment_maps.csv": ("name",),
    "gpus.csv": ("gpu", "field"),
    "lds_phases.csv": ("gfx", "access", "access_bytes"),
    "mfma.csv": ("gfx", "instruction", "dtype_a", "dtype_b"),
    "model_atoms.csv": ("gfx", "instruction"),
    "model_gpus.csv": ("gpu", "field"),
    "published_peaks.csv": ("gpu", "unit_kind", "dtype"),
    "targets.csv": ("gfx", "field"),
}


@pytest.mark.parametrize("file", sorted(KEYS))
def test_every_fact_has_a_source(file):
    rows = read_facts(file, key=KEYS[file])
    assert rows
    assert all(row["source"].strip() for row in rows)
    assert all(row["status"] in STATUSES for row in rows if "status" in row)


def written(tmp_path, text):
    path = tmp_path / "facts.csv"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name,value\na,1\n", "no column source"),
        ("value,source\n1,s\n", "no column name"),
        ("", "no column name, source"),
        ("name,value,source\na,1,\n", "line 2: a fact without a source"),
        ("name,value,source\na,1,s\nb,2,   \n", "line 3: a fact without a source"),
        ("name,value,source\na,1\n", "line 2: 2 cells, expected 3"),
        ("name,value,source\na,1,s,x\n", "line 2: 4 cells, expected 3"),
        ("name,value,source\na,1,s\na,2,s\n", "line 3: a second row for a"),
        ("name,value,source,status\na,1,s,guessed\n", "line 2: unknown status 'guessed'"),
    ],
)
def test_malformed_tables_are_refused(tmp_path, text, message):
    with pytest.raises(BadInput, match=message):
        read_facts(written(tmp_path, text), key=("name",))


def test_well_formed_table_is_read(tmp_path):
    path = written(tmp_path, 'name,value,source,status\na,"1, 2",s,read\n')
    assert read_facts(path, key=("name",)) == [{"name": "a", "value": "1, 2", "source": "s", "status": "read"}]


def test_tables_are_the_known_ones_and_have_unix_line_ends():
    assert {path.name for path in FACTS.glob("*.csv")} == set(KEYS)
    for file in KEYS:
        raw = (FACTS / file).read_bytes()
        assert b"\r" not in raw
        assert raw.endswith(b"\n")
        assert len(next(csv.reader([raw.decode().splitlines()[0]]))) >= 4
