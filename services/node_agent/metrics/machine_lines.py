"""The metrics of a node's machine: the disk that holds the agent's state.

Test: tests/integration/test_scraping.py.
"""

import asyncio
import shutil
from typing import Final

from services.node_agent.metrics.lines import family, labels
from services.node_agent.metrics.series import GAUGE

DISK: Final = ("muster_node_disk_bytes", "Size of the disk with the agent's state")
DISK_FREE: Final = ("muster_node_disk_free_bytes", "Free bytes of the disk with the agent's state")


async def machine_lines(node: str, state: str) -> list[str]:
    """Return the lines; none while the disk cannot be read."""
    try:
        disk = await asyncio.to_thread(shutil.disk_usage, state)
    except OSError:
        return []
    return disk_lines(node, disk.total, disk.free)


def disk_lines(node: str, total_bytes: int, free_bytes: int) -> list[str]:
    place = labels({"Hostname": node})
    return [
        *family(*DISK, GAUGE, [(place, total_bytes)]),
        *family(*DISK_FREE, GAUGE, [(place, free_bytes)]),
    ]
