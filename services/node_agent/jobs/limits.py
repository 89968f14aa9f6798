"""The host resources that an attempt may use: processors and memory near its devices, and its own
device nodes only.

A job that asked for no processors or memory is not limited, but its processors still lie beside its
devices. Its memory may then come from anywhere: a limit that it did not ask for must not end it.
"""

from collections.abc import Iterable, Mapping, Sequence

from libs.common.messages import StartOrder
from libs.common.model import Gpu, GpuId
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
    """Return the limits of an attempt.

    `numas`: see `sysfs.numas`; empty for simulated devices. `nodes`: see `drivers.Driver`. `closed`
    are denied too.
    """
    spec = order.spec
    cpus, memory_nodes = _nearby_hosts(order, inventory, numas)
    return Limits(
        cpus_milli=spec.cpus_milli,
        memory_bytes=spec.memory_bytes,
        cpus=cpus,
        memory_nodes=memory_nodes,
        denied=denied_of([hold.uuid for hold in order.gpus], nodes, closed),
    )


def denied_of(
    held: Iterable[GpuId], nodes: DeviceNodes, closed: Iterable[tuple[int, int]]
) -> list[list[int]]:
    """Return the device nodes that an attempt with these devices may not open, in order.

    A node that one of its own devices has too is not denied.
    """
    given = {node for uuid in held for node in nodes.get(uuid, ())}
    all_nodes = {node for each in nodes.values() for node in each}
    return [list(node) for node in sorted((all_nodes - given) | set(closed))]


def _nearby_hosts(
    order: StartOrder, inventory: Sequence[Gpu], numas: Mapping[int, Numa]
) -> tuple[str, str]:
    """Return the processors and memory nodes beside the devices.

    Empty if the machine does not say where a device is (-1), or if there is not enough beside it.
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
