"""Planted bugs about devices that are not well; see `planted.py`."""

import pytest

from libs.common.cluster import GpuView


def a_faulted_device_is_as_good_as_any(patch: pytest.MonkeyPatch) -> None:
    """Work is placed wherever a device is there, whatever its node says of it."""
    patch.setattr(GpuView, "takes_work", property(lambda view: view.present))
