"""Planted bugs about devices and the facts about them; see `planted.py`."""

import asyncio

import pytest

from libs.common.devices import device_controls
from libs.common.life import gpu_life
from libs.common.state.cluster import GpuView
from services.node_agent import device_work


def faulted_devices_take_work(patch: pytest.MonkeyPatch) -> None:
    """Jobs are placed on every online device, whatever health its node reports."""
    patch.setattr(
        GpuView,
        "takes_work",
        property(lambda view: view.present and view.service == gpu_life.ONLINE),
    )


def operators_device_service_is_ignored(patch: pytest.MonkeyPatch) -> None:
    """A healthy device takes work although an operator took it out of service."""
    patch.setattr(
        GpuView,
        "takes_work",
        property(lambda view: view.present and view.health in gpu_life.USABLE),
    )


def a_quarantined_device_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    """The agent never checks a quarantined device again."""

    async def watch(*arguments: object, **named: object) -> None:
        await asyncio.Event().wait()

    patch.setattr(device_work, "watch", watch)


def device_controls_are_not_restored(patch: pytest.MonkeyPatch) -> None:
    """A control that must last is applied only once."""
    patch.setattr(device_controls, "lasts", lambda control, value: False)
