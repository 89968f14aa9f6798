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
    vendor = next((gpu.vendor for gpu in (*held, *inventory)), "")
    uuids = ",".join(gpu.uuid for gpu in held)
    if vendor == "amd":
        divided = any(card_of(gpu.uuid) != gpu.uuid for gpu in inventory)
        return {"ROCR_VISIBLE_DEVICES": indexes(held) if divided else uuids}
    if vendor == "intel":
        return {"ZE_AFFINITY_MASK": indexes(held)}
    return {"CUDA_VISIBLE_DEVICES": uuids, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"} if vendor else {}


def indexes(gpus: Iterable[Gpu]) -> str:
    """Return the devices' numbers on their node, separated by commas."""
    return ",".join(str(gpu.index) for gpu in gpus)
