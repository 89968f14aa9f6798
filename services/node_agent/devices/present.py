"""The last readings of the devices, for gateways that ask.

Pure. Tests: tests/unit/test_present_readings.py.
"""

from collections.abc import Mapping
from typing import Final

from libs.common.messages.sample_messages import DeviceReadings, ReadingsReport
from libs.common.model import GpuId
from services.node_agent.drivers.readings import Reading, Sample

UNKNOWN: Final = -1


def report_of(samples: Mapping[GpuId, Sample]) -> ReadingsReport:
    """Return the readings that people look at."""
    return ReadingsReport(
        tuple(
            DeviceReadings(
                uuid=uuid,
                busy_percent=_known(sample.busy_percent),
                memory_used_bytes=_known(sample.memory_used_bytes),
                memory_total_bytes=_known(sample.memory_total_bytes),
                power_mw=_known(sample.power_mw),
                temperature_c=_known(sample.temperature_c),
                clock_mhz=_known(sample.clock_mhz),
                stale=sample.stale,
                simulated=sample.simulated,
            )
            for uuid, sample in samples.items()
        )
    )


def _known(reading: Reading) -> int:
    return reading if isinstance(reading, int) else UNKNOWN
