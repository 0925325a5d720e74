"""Finding a GPU without one: the driver's listing is text."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from closedform.device import Device, detect, launch_device, parse_topology
from closedform.hw import catalogue
from closedform.hw.errors import NoDevice

GPUS = [name for name in catalogue.names() if not name.startswith("paper_")]
VERSIONS = {"gfx908": 90008, "gfx90a": 90010, "gfx942": 90402, "gfx950": 90500}


def write_node(root: Path, number: int, properties: dict[str, int], memory_bytes: int = 0) -> None:
    node = root / str(number)
    bank = node / "mem_banks" / "0"
    bank.mkdir(parents=True)
    (node / "properties").write_text("".join(f"{key} {value}\n" for key, value in properties.items()))
    (bank / "properties").write_text(f"heap_type 1\nsize_in_bytes {memory_bytes}\n")


def node_of(gpu: str) -> dict[str, int]:
    hw = catalogue.get(gpu)
    return {
        "simd_count": 4 * hw.num_cus,
        "simd_per_cu": 4,
        "gfx_target_version": VERSIONS[hw.gfx],
        "max_engine_clk_fcompute": hw.clock_mhz,
    }


@pytest.mark.parametrize("gpu", GPUS)
def test_every_catalogued_gpu_is_found_by_name(tmp_path: Path, gpu: str) -> None:
    write_node(tmp_path, 0, {"cpu_cores_count": 64, "simd_count": 0, "gfx_target_version": 0})
    write_node(tmp_path, 1, node_of(gpu), catalogue.get(gpu).hbm_bytes)
    device = detect(tmp_path)
    assert device is not None
    assert device.name == gpu
    assert device.hardware() == catalogue.get(gpu)
    assert device.differences(catalogue.get(gpu)) == []


def test_a_partition_keeps_the_cus_that_were_found() -> None:
    device = Device("gfx942", 38, memory_bytes=192 * 10**9)
    assert device.name == "mi300x"
    found = device.hardware()
    assert found is not None
    assert found.num_cus == 38


def test_a_device_is_only_compared() -> None:
    differences = Device("gfx942", 38).differences(catalogue.get("mi210"))
    assert len(differences) == 2
    assert "gfx90a" in differences[0]
    assert "104" in differences[1]


def test_other_gpus_are_passed_over(tmp_path: Path) -> None:
    write_node(tmp_path, 1, {"simd_count": 80, "simd_per_cu": 2, "gfx_target_version": 110000})
    write_node(tmp_path, 10, node_of("mi210"))
    device = detect(tmp_path)
    assert device is not None
    assert device.gfx == "gfx90a"
    assert Device("gfx1100", 40).name is None
    assert Device("gfx1100", 40).hardware() is None


def test_no_driver_means_no_device(tmp_path: Path) -> None:
    assert detect(tmp_path / "nothing") is None


def test_cpu_nodes_are_no_device() -> None:
    assert parse_topology("cpu_cores_count 64\nsimd_count 0\n") is None


def fake_torch(**changes: object) -> ModuleType:
    """As much of torch as finding a device uses: a ROCm build that sees an MI300X."""
    hw = catalogue.get("mi300x")
    properties = SimpleNamespace(
        name="AMD Instinct MI300X",
        gcnArchName="gfx942:sramecc+:xnack-",
        multi_processor_count=hw.num_cus,
        total_memory=hw.hbm_bytes,
    )
    torch = ModuleType("torch")
    values: dict[str, object] = {
        "__version__": "2.13.0",
        "version": SimpleNamespace(hip="7.0"),
        "cuda": SimpleNamespace(
            is_available=lambda: True,
            current_device=lambda: 0,
            get_device_properties=lambda index: properties,
        ),
    }
    for name, value in (values | changes).items():
        setattr(torch, name, value)
    return torch


def test_torch_device_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", fake_torch())
    device = launch_device()
    assert (device.gfx, device.num_cus, device.name) == ("gfx942", 304, "mi300x")
    assert "MI300X" in device.describe()


@pytest.mark.parametrize(
    ("torch", "says"),
    [
        (None, "not installed"),
        (fake_torch(version=SimpleNamespace(hip=None)), "not a ROCm build"),
        (fake_torch(cuda=SimpleNamespace(is_available=lambda: False)), "sees no AMD GPU"),
        (
            fake_torch(
                cuda=SimpleNamespace(
                    is_available=lambda: True,
                    current_device=lambda: 0,
                    get_device_properties=lambda index: SimpleNamespace(
                        name="Radeon", gcnArchName="gfx1100", multi_processor_count=40
                    ),
                )
            ),
            "gfx1100",
        ),
    ],
)
def test_launching_without_a_gpu_says_why(monkeypatch: pytest.MonkeyPatch, torch: ModuleType | None, says: str) -> None:
    monkeypatch.setitem(sys.modules, "torch", torch)
    with pytest.raises(NoDevice, match=says):
        launch_device()
