"""MIG instances of a card in name only: made, listed and removed by the rules of a real card, with
nothing behind them.
"""

from libs.common.devices import mig
from libs.common.errors import Refused
from libs.common.model import GpuId
from services.node_agent.drivers.readings import (
    CreateMigInstance,
    DestroyMigInstance,
    Done,
    Lacking,
    ListMigInstances,
    MigInstance,
)

Instances = dict[int, MigInstance]


def told(
    instances: Instances,
    card: str,
    uuid: GpuId,
    command: CreateMigInstance | DestroyMigInstance | ListMigInstances,
) -> Done | Lacking:
    """`instances` are the card's by their numbers, the lowest free one first. Raises Refused."""
    if not card:
        return Lacking("the card cannot be cut")
    match command:
        case CreateMigInstance(profile, start):
            made = _made(instances, card, uuid, profile, start)
            instances[made.number] = made
            return Done(instances=(made,))
        case DestroyMigInstance(number):
            if instances.pop(number, None) is None:
                raise Refused(f"GPU {uuid} has no MIG instance {number}")
            return Done()
        case ListMigInstances():
            return Done(instances=tuple(sorted(instances.values(), key=lambda each: each.start)))


def _made(instances: Instances, card: str, uuid: GpuId, profile: str, start: int) -> MigInstance:
    place = next((mask for mask in mig.masks(card, profile) if mask & -mask == 1 << start), 0)
    if not place or any(each.slices & place for each in instances.values()):
        raise Refused(f"GPU {uuid} has no room for {profile} at slice {start}")
    number = next(number for number in range(len(instances) + 1) if number not in instances)
    return MigInstance(
        number, f"MIG-{uuid.removeprefix('GPU-')}-{number}", profile, start, place.bit_count()
    )
