"""Device tests: one CDNA GPU, seen by a ROCm build of torch; without one all are skipped with the reason."""

from __future__ import annotations

import pytest

from closedform.device import launch_device
from closedform.hw.descriptor import HardwareDescriptor
from closedform.hw.errors import NoDevice


@pytest.fixture(scope="session")
def gpu() -> HardwareDescriptor:
    """The catalogued descriptor of the GPU found, with the CUs found."""
    try:
        found = launch_device().hardware()
    except NoDevice as error:
        pytest.skip(f"no CDNA GPU: {error}")
    assert found is not None
    return found
