"""The answer of a node about the memory that its broker has granted: agent -> gateway.

Pure. Tests: tests/unit/test_memory_view.py.
"""

from typing import Final

import msgspec

from libs.common.model import JobId

# The name of host memory among the devices.
HOST_MEMORY: Final = "host"


class DeviceMemory(msgspec.Struct, frozen=True):
    """A device, or host memory, as the broker knows it. `unusable` is why it gives no memory."""

    device: str
    capacity_bytes: int
    granted_bytes: int
    unusable: str = ""


class UsedMemory(msgspec.Struct, frozen=True):
    """The bytes that an attempt holds of one device for one purpose, in its own words."""

    job_id: JobId
    attempt: int
    device: str
    purpose: str
    granted_bytes: int


class MemoryReport(msgspec.Struct, frozen=True):
    """Everything that the broker has granted. `restarts` counts the brokers that began."""

    devices: tuple[DeviceMemory, ...] = ()
    used: tuple[UsedMemory, ...] = ()
    restarts: int = 0
