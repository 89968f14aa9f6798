"""Waits while the GPUs of a vendor may get other indexes, and says why an index may be wrong.

Indexes change when a card is divided, and when GPUs leave or join the PCI bus. Tests:
tests/integration/test_device_indexes.py, tests/drivers/test_intel.py.
"""

import asyncio
from collections.abc import Collection
from typing import Final

# How often a waiting command looks whether the next inventory is complete.
AGAIN_S: Final = 0.1
LISTED_AGAIN: Final = (
    "the GPUs of this node are being divided or listed again. Try again in a minute; if this "
    "lasts, restart the agent of this node"
)
CHANGED: Final = (
    "the GPUs of this node changed since the agent numbered them ({changes}). Restart the agent of "
    "this node"
)


async def ended(vendor: str, renumbering: Collection[str], wait_s: float) -> bool:
    """Return whether the vendor is not in `renumbering`, or leaves it within `wait_s` seconds."""
    end_s = asyncio.get_running_loop().time() + wait_s
    while vendor in renumbering and asyncio.get_running_loop().time() < end_s:
        await asyncio.sleep(AGAIN_S)
    return vendor not in renumbering
