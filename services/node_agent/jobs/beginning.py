"""The beginning of one attempt: what it needs is got together, then a supervisor takes it over;
what failed is said and given back.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from libs.common import reasons
from libs.common.errors import Refused
from libs.common.messages import StartOrder
from libs.common.model import Gpu, NodeId, attempt_key
from libs.common.transport.bus import Bus
from services.node_agent.core import observations as o
from services.node_agent.devices.instances import Instances
from services.node_agent.drivers import Driver
from services.node_agent.health.preflight import Preflight
from services.node_agent.health.scrubbing import Scrub
from services.node_agent.jobs.launching import launch_of
from services.node_agent.jobs.means import Means
from services.node_agent.jobs.protocol import AlreadyStarted, JobSupervisors, Launch, Machine
from services.node_agent.jobs.uploads import fetched
from services.node_agent.runtimes.engine import NO_IMAGE, NoImage


class Ground(NamedTuple):
    """What every attempt begins on."""

    node_id: NodeId
    machine: Machine
    driver: Driver
    instances: Instances
    means: Means
    jobs: JobSupervisors
    bus: Bus
    tell: Callable[[o.Observation], None]
    preflight: Preflight
    scrub: Scrub


async def begin(
    ground: Ground, order: StartOrder, inventory: Sequence[Gpu], wanted: Callable[[], bool]
) -> None:
    """`wanted`: whether it is still to begin. What became of it is told."""
    key = attempt_key(order.job_id, order.attempt)
    try:
        await ground.jobs.launch(await _ready(ground, order, inventory, wanted))
    except NoImage as error:
        _over(
            ground,
            key,
            o.Exit(executed=False, exit_code=NO_IMAGE, reason=reasons.NO_IMAGE, detail=str(error)),
        )
    except AlreadyStarted as error:
        _over(
            ground,
            key,
            o.Exit(
                executed=False, exit_code=None, reason=reasons.SUPERVISOR_LOST, detail=str(error)
            ),
        )
    except Refused as error:
        await ground.means.give_up(key)
        await ground.instances.clear([hold.uuid for hold in order.gpus], ground.tell, key)
        ground.tell(o.LaunchFailed(key, str(error)))
    else:
        ground.tell(o.JobLaunched(key))


async def _ready(
    ground: Ground, order: StartOrder, inventory: Sequence[Gpu], wanted: Callable[[], bool]
) -> Launch:
    key, uuids = attempt_key(order.job_id, order.attempt), [hold.uuid for hold in order.gpus]
    if gone := set(uuids) - {gpu.uuid for gpu in inventory}:
        raise Refused(
            f"{key} cannot be started: GPU {', '.join(sorted(gone))} is not of this node any more"
        )
    await ground.scrub.over(key, uuids)
    await ground.preflight.look(key, uuids)
    if not wanted():  # its devices may have been waited for as long as they are cleared
        raise Refused(f"{key} is not wanted any more")
    launch = await launch_of(
        order,
        ground.node_id,
        ground.machine,
        inventory,
        ground.driver,
        ground.instances,
        ground.bus,
    )
    if order.spec.upload:
        pieces = fetched(order, ground.node_id, ground.bus)
        launch = replace(
            launch, workdir=await ground.jobs.unpack(launch.ref, order.spec.upload, pieces, wanted)
        )
    try:
        return await ground.means.hold(launch, order, inventory, ground.driver.nodes, wanted)
    except Refused:
        if order.spec.upload:
            await ground.jobs.discard(launch.ref)
        raise


def _over(ground: Ground, key: str, how: o.Exit) -> None:
    """Nothing of it was executed, and nothing will be."""
    ground.tell(o.JobLaunched(key))
    ground.tell(o.ProcessExited(key, how))
