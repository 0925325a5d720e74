"""GPUs that only the latency model knows."""

import pytest

from closedform.hw import BadInput, catalogue
from closedform.hw.model_gpus import model_gpu_names
from closedform.hw.occupancy import occupancy_of


def test_they_are_found_but_not_listed():
    assert model_gpu_names() == ("h200",)
    assert "h200" not in catalogue.names()
    assert catalogue.get("H200") is catalogue.get("H200")


def test_h200():
    hw = catalogue.get("h200")
    assert (hw.num_cus, hw.wavefront_size, hw.simds_per_cu) == (132, 32, 4)
    assert hw.vgpr_file * hw.simds_per_cu * hw.wavefront_size == 65536
    assert hw.lds_max_per_workgroup_bytes == 227 * 1024
    # The datasheet's dense peaks hold at 1830 MHz, below the boost clock.
    assert hw.peak_tflops("bf16") * 1830 / 1980 == pytest.approx(989.4, abs=0.1)
    assert hw.peak_tflops("fp8") * 1830 / 1980 == pytest.approx(1978.9, abs=0.1)
    assert occupancy_of(hw, 4, 168, 0, 96 * 1024).workgroups_per_cu == 2


def test_its_fp8_is_not_that_of_cdna3():
    with pytest.raises(BadInput, match="fp8_e4m3fn"):
        catalogue.get("h200").resolve_dtype("fp8_e4m3fnuz")
