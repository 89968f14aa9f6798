"""Planted bugs about devices and what is said of them; see `planted.py`."""

import pytest

from libs.common import gpu_life
from libs.common.cluster import GpuView


def a_faulted_device_is_as_good_as_any(patch: pytest.MonkeyPatch) -> None:
    """Work is placed wherever a device is there, whatever its node says of it."""
    patch.setattr(GpuView, "takes_work", property(lambda view: view.present))


def what_operators_say_of_devices_is_not_heard(patch: pytest.MonkeyPatch) -> None:
    """A device takes work as soon as it is well."""
    patch.setattr(GpuView, "takes_work", property(lambda view: view.present and view.health in gpu_life.USABLE))
