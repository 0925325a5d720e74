"""GPUs from files."""

import json

import pytest

from closedform.hw import BadInput, find, get, load_file

WHOLE = {
    "name": "mine",
    "gfx": "gfx942",
    "num_cus": 20,
    "num_xcds": 1,
    "clock_mhz": 2000,
    "hbm_bytes": 96 * 10**9,
    "hbm_bytes_per_s": 4e12,
    "l2_bytes": 4194304,
    "l2_bytes_per_s": 4e12,
    "mall_bytes": 0,
}


@pytest.fixture
def written(tmp_path):
    def write(content, name="gpu.toml"):
        path = tmp_path / name
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    return write


def test_a_base_with_overrides(written):
    hw = load_file(written('base = "MI300X"\nnum_cus = 228\nnum_xcds = 6\n[sources]\nnum_xcds = "the box"\n'))
    assert (hw.name, hw.num_cus, hw.num_xcds, hw.gfx) == ("gpu", 228, 6, "gfx942")
    assert hw.peak_tflops("xf32") == pytest.approx(490.3, abs=0.1)
    assert hw.atoms == get("mi300x").atoms
    assert hw.sources["num_cus"] == "gpu.toml"
    assert hw.sources["num_xcds"] == "the box"
    assert hw.sources["hbm_bytes"] == get("mi300x").sources["hbm_bytes"]


def test_everything_given_and_atoms_filtered(written):
    path = written({**WHOLE, "atoms": ["v_mfma_f32_16x16x4_f32", "v_mfma_f32_16x16x32_fp8_fp8"]}, "gpu.json")
    hw = find(str(path))
    assert (hw.name, hw.num_cus, hw.lds_bytes, hw.mall_bytes_per_s) == ("mine", 20, 65536, None)
    assert sorted(atom.k for atom in hw.atoms) == [4, 32]
    assert hw.peak_tflops("f32") == pytest.approx(20 * 2000 * 256 / 1e6)


def test_another_target_brings_its_own_facts(written):
    hw = load_file(written('base = "mi300x"\ngfx = "gfx950"\n'))
    assert (hw.lds_bytes, hw.num_cus, hw.fp8_flavour) == (163840, 304, "ocp")
    assert {atom.gfx for atom in hw.atoms} == {"gfx950"}


def test_a_whole_number_does_for_a_rate(written):
    assert load_file(written({**WHOLE, "hbm_bytes_per_s": 4 * 10**12}, "g.json")).hbm_bytes_per_s == 4e12


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_cu": 3}, "unknown field 'num_cu': did you mean num_cus"),
        ({"num_cus": 1.5}, "num_cus: .* not 1.5"),
        ({"num_cus": "304"}, "num_cus: .* not '304'"),
        ({"num_cus": True}, "num_cus: .* not True"),
        ({"num_cus": None}, "num_cus: .* not None"),
        ({"num_cus": 0}, "num_cus must be a whole number of at least 1, not 0"),
        ({"num_cus": -3}, "num_cus must be a whole number of at least 1, not -3"),
        ({"hbm_bytes_per_s": float("nan")}, "hbm_bytes_per_s: .*finite"),
        ({"hbm_bytes_per_s": float("inf")}, "hbm_bytes_per_s: .*finite"),
        ({"hbm_bytes_per_s": -1.0}, "hbm_bytes_per_s must be a positive number, not -1.0"),
        ({"hbm_bytes_per_s": 0}, "hbm_bytes_per_s must be a positive number, not 0"),
        ({"vgpr_unified": "yes"}, "vgpr_unified: .* not 'yes'"),
        ({"vgpr_unified": 1}, "vgpr_unified: .* not 1"),
        ({"direct_to_lds_bytes": [4, "x"]}, "direct_to_lds_bytes.1: .* not 'x'"),
        ({"direct_to_lds_bytes": 4}, "direct_to_lds_bytes: .* not 4"),
        ({"fp8_flavour": "nv"}, "fp8_flavour must be fnuz, ocp or absent"),
        ({"gfx": "gfx1100"}, "gfx: unknown target 'gfx1100'"),
        ({"gfx": 942}, "gfx: .* not 942"),
        ({"base": "mi300"}, "base: unknown GPU 'mi300': did you mean mi300x"),
        ({"atoms": ["v_mfma_f32_16x16x4f64"]}, "atoms: not instructions of gfx942: 'v_mfma_f32_16x16x4f64'"),
        ({"atoms": "v_mfma_f32_16x16x4_f32"}, "atoms: .*list"),
        ({"sources": {"num_cu": "x"}}, "sources: unknown field 'num_cu': did you mean num_cus"),
        ({"sources": {"num_cus": 1}}, "sources.num_cus: .* not 1"),
        ({"num_xcds": 21}, "num_xcds exceeds num_cus"),
        ({"lds_bytes": 1024}, "lds_max_per_workgroup_bytes exceeds lds_bytes"),
    ],
)
def test_malformed_files_are_refused(written, changes, message):
    with pytest.raises(BadInput, match=message) as caught:
        load_file(written({**WHOLE, **changes}, "bad.json"))
    assert "bad.json: " in str(caught.value)
    assert caught.value.exit_status == 2


def test_every_error_is_named_at_once(written):
    text = (
        'base = "mi300"\nnum_cu = 228\nnum_xcds = -6\nclock_mhz = "x"\nlds_bytes = true\n'
        "hbm_bytes_per_s = nan\n"
        '[sources]\nnumcus = "a"\n'
    )
    with pytest.raises(BadInput) as caught:
        load_file(written(text))
    message = str(caught.value)
    assert "7 errors" in message
    for word in ("mi300", "num_cu'", "num_xcds", "clock_mhz", "lds_bytes", "hbm_bytes_per_s", "numcus"):
        assert word in message


def test_all_missing_facts_are_named_at_once(written):
    with pytest.raises(BadInput) as caught:
        load_file(written('gfx = "gfx942"\n'))
    for field in set(WHOLE) - {"name", "gfx"}:
        assert f"{field} is missing" in str(caught.value)


def test_an_empty_file_asks_for_a_target(written):
    with pytest.raises(BadInput, match="1 error: gfx is missing: name the target, or a base"):
        load_file(written(""))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("g.json", "[1]", "holds a list"),
        ("g.json", "3", "holds a int"),
        ("g.json", "{", "is not valid JSON"),
        ("g.toml", "num_cus = ", "is not valid TOML"),
        ("g.toml", "num_cus = 1\nnum_cus = 2", "is not valid TOML"),
    ],
)
def test_files_that_are_no_table_are_refused(written, name, content, message):
    with pytest.raises(BadInput, match=message):
        find(str(written(content, name)))


def test_unreadable_files_are_refused(tmp_path):
    with pytest.raises(BadInput, match="cannot read"):
        find(str(tmp_path / "absent.toml"))
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadInput, match="cannot read"):
        find(str(tmp_path / "binary.toml"))


def test_atoms_of_a_base_must_be_of_the_new_target(written):
    with pytest.raises(BadInput, match="atoms: not instructions of gfx942"):
        load_file(written('base = "paper_a"\ngfx = "gfx942"\n'))
