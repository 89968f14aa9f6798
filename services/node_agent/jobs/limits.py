"""What of the host one attempt may use: the processors and the memory that its job asked for, near
its devices where the machine says where that is; and of the devices no other than its own.

A job that asked for nothing is bound by nothing, but its processors still lie beside its devices.
Memory is taken from elsewhere only where a job did not say how much it needs: a bound that was not
asked for must not end it.
"""

from collections.abc import Iterable, Mapping, Sequence

from libs.common.messages import StartOrder
from libs.common.model import Gpu
from services.node_agent.drivers import DeviceNodes
from services.node_agent.drivers.sysfs import Numa
from services.node_agent.machine.cgroups import Limits


def limits_of(
    order: StartOrder,
    inventory: Sequence[Gpu],
    numas: Mapping[int, Numa],
    nodes: DeviceNodes,
    closed: Iterable[tuple[int, int]] = (),
) -> Limits:
    """`numas`: see `sysfs.numas`; nothing where devices are in name only.

    `nodes`: see `drivers.Driver`; `closed` are denied too.
    """
    spec = order.spec
    held = {hold.uuid for hold in order.gpus}
    given = {node for uuid in held for node in nodes.get(uuid, ())}
    denied = [
        list(node)
        for node in sorted({node for each in nodes.values() for node in each} - given | set(closed))
    ]
    cpus, memory_nodes = _near(order, inventory, numas)
    return Limits(
        cpus_milli=spec.cpus_milli,
        memory_bytes=spec.memory_bytes,
        cpus=cpus,
        memory_nodes=memory_nodes,
        denied=denied,
    )


def _near(
    order: StartOrder, inventory: Sequence[Gpu], numas: Mapping[int, Numa]
) -> tuple[str, str]:
    """Empty where one of its devices lies nowhere (-1 is not node 0), or where what lies there is
    not enough.
    """
    held = {hold.uuid for hold in order.gpus}
    places = sorted({gpu.numa for gpu in inventory if gpu.uuid in held})
    if not places or not all(place in numas for place in places):
        return "", ""
    found = [numas[place] for place in places]
    if 1_000 * sum(len(numa.cpus) for numa in found) < order.spec.cpus_milli:
        return "", ""
    fits = 0 < order.spec.memory_bytes <= sum(numa.memory_bytes for numa in found)
    return ",".join(str(cpu) for numa in found for cpu in numa.cpus), ",".join(
        map(str, places)
    ) if fits else ""
