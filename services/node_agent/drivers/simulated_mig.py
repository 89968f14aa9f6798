"""MIG instances of simulated cards: created, listed and removed by the rules of a real card."""

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


def carry_out(
    instances: Instances,
    card: str,
    uuid: GpuId,
    command: CreateMigInstance | DestroyMigInstance | ListMigInstances,
) -> Done | Lacking:
    """Carry out a MIG command on `instances`, the card's instances by number. Raises Refused.

    A new instance gets the lowest free number.
    """
    if not card:
        return Lacking("the card does not support MIG")
    match command:
        case CreateMigInstance(profile, start):
            created = _create(instances, card, uuid=uuid, profile=profile, start=start)
            instances[created.number] = created
            return Done(instances=(created,))
        case DestroyMigInstance(number):
            if instances.pop(number, None) is None:
                raise Refused(f"GPU {uuid} has no MIG instance {number}")
            return Done()
        case ListMigInstances():
            return Done(instances=tuple(sorted(instances.values(), key=lambda each: each.start)))


def _create(instances: Instances, card: str, uuid: GpuId, profile: str, start: int) -> MigInstance:
    place = next((mask for mask in mig.masks(card, profile) if mask & -mask == 1 << start), 0)
    if not place or any(each.slices & place for each in instances.values()):
        raise Refused(f"GPU {uuid} has no room for {profile} at slice {start}")
    number = next(number for number in range(len(instances) + 1) if number not in instances)
    return MigInstance(
        number,
        uuid=f"MIG-{uuid.removeprefix('GPU-')}-{number}",
        profile=profile,
        start=start,
        size=place.bit_count(),
    )
