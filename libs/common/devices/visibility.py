"""Which devices a process sees: the variables that the vendors' libraries read. Pure.

A node's agent gives them to what it starts, and a gateway says them to whoever holds an allocation.
"""

from collections.abc import Iterable, Sequence

from libs.common.devices.partition import card_of
from libs.common.model import Gpu


def visibility(held: Sequence[Gpu], inventory: Sequence[Gpu]) -> dict[str, str]:
    """One variable per vendor, never two that are applied one after the other.

    A job without devices sees none.
    """
    vendor = next((gpu.vendor for gpu in (*held, *inventory)), "")
    uuids = ",".join(gpu.uuid for gpu in held)
    if vendor == "amd":
        divided = any(card_of(gpu.uuid) != gpu.uuid for gpu in inventory)
        return {"ROCR_VISIBLE_DEVICES": indexes(held) if divided else uuids}
    if vendor == "intel":
        return {"ZE_AFFINITY_MASK": indexes(held)}
    return {"CUDA_VISIBLE_DEVICES": uuids, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"} if vendor else {}


def indexes(gpus: Iterable[Gpu]) -> str:
    """As their node numbers them."""
    return ",".join(str(gpu.index) for gpu in gpus)
