"""The environment variables with which the vendors' libraries select visible devices. Pure.

An agent sets them for the processes that it starts. A gateway shows them for an allocation.
"""

from collections.abc import Iterable, Sequence

from libs.common.devices.partition import card_of
from libs.common.model import Gpu


def visibility(held: Sequence[Gpu], inventory: Sequence[Gpu]) -> dict[str, str]:
    """Return the variables that show exactly the held devices; a job without devices sees none.

    There is one variable per vendor, because two would be applied one after the other.
    """
    vendor = _vendor(held, inventory)
    names = indexes(held) if by_index(held, inventory) else ",".join(gpu.uuid for gpu in held)
    if vendor == "amd":
        return {"ROCR_VISIBLE_DEVICES": names}
    if vendor == "intel":
        return {"ZE_AFFINITY_MASK": names}
    return {"CUDA_VISIBLE_DEVICES": names, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"} if vendor else {}


def by_index(held: Sequence[Gpu], inventory: Sequence[Gpu]) -> bool:
    """Return whether the variables name the devices by index.

    AMD's library does not know the UUIDs of the parts of a card; Intel's knows no UUIDs.
    """
    vendor = _vendor(held, inventory)
    is_divided = any(card_of(gpu.uuid) != gpu.uuid for gpu in inventory)
    return vendor == "intel" or (vendor == "amd" and is_divided)


def _vendor(held: Sequence[Gpu], inventory: Sequence[Gpu]) -> str:
    return next((gpu.vendor for gpu in (*held, *inventory)), "")


def indexes(gpus: Iterable[Gpu]) -> str:
    """Return the devices' numbers on their node, separated by commas."""
    return ",".join(str(gpu.index) for gpu in gpus)
