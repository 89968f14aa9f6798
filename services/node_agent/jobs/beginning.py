"""The start of one attempt: prepare what it needs, hand it to a supervisor, and undo
what failed.
"""

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import NamedTuple

from msgspec.structs import replace

from libs.common import reasons
from libs.common.errors import Refused
from libs.common.messages import StartOrder
from libs.common.model import AttemptRef, Gpu, GpuId, NodeId, attempt_key
from libs.common.transport.bus import Bus
from services.node_agent.core import observations as o
from services.node_agent.core.apply import USED_AGAIN
from services.node_agent.core.state import key_of
from services.node_agent.device_work import DeviceWork
from services.node_agent.directories.protocol import (
    AlreadyStarted,
    JobSupervisors,
    Launch,
    Machine,
)
from services.node_agent.drivers import Driver
from services.node_agent.jobs.launching import check_indexes, launch_of
from services.node_agent.jobs.means import Means
from services.node_agent.jobs.secret_values import registry_credentials
from services.node_agent.jobs.uploads import fetched
from services.node_agent.runtimes.faults import EXIT_CODE, NoContainer

logger = logging.getLogger(__name__)


class Ground(NamedTuple):
    """The parts of the agent that every start needs."""

    node_id: NodeId
    machine: Machine
    driver: Driver
    devices: DeviceWork
    means: Means
    jobs: JobSupervisors
    bus: Bus
    tell: Callable[[o.Observation], None]


async def begin(ground: Ground, order: StartOrder, wanted: Callable[[], bool]) -> None:
    """Start an attempt and report the result; `wanted` says whether it should still start.

    If another order started an attempt of this number here, the attempt is refused. That happens
    after a restore, whose log does not know the earlier attempt. An attempt whose start meets a bug
    is refused too: it must not end the agent, which runs other jobs.
    """
    key = attempt_key(order.job_id, order.attempt)
    ground.means.spans.begun(order, time.time_ns())
    try:
        await ground.jobs.launch(await _ready(ground, order, wanted))
    except NoContainer as error:
        _over(
            ground,
            key,
            o.Exit(executed=False, exit_code=EXIT_CODE, reason=error.reason, detail=str(error)),
        )
    except AlreadyStarted as error:
        if error.is_by_other(order.seq, order.incarnation):
            await _refuse(ground, order, USED_AGAIN)
            return
        _over(
            ground,
            key,
            o.Exit(
                executed=False, exit_code=None, reason=reasons.SUPERVISOR_LOST, detail=str(error)
            ),
        )
    except (Refused, OSError) as error:
        await _refuse(ground, order, str(error))
    except Exception as error:
        logger.exception("the start of %s failed", key)
        await _refuse(ground, order, f"the agent failed to start {key}: {error!r}")
    else:
        ground.tell(o.JobLaunched(key))


async def _ready(ground: Ground, order: StartOrder, wanted: Callable[[], bool]) -> Launch:
    """Prepare the devices, the upload and the container of an attempt.

    Raises Refused, NoContainer or OSError; after every error the upload is removed again.
    """
    key, uuids = attempt_key(order.job_id, order.attempt), [hold.uuid for hold in order.gpus]
    _listed(ground, key, uuids)
    await ground.devices.scrub.over(key, uuids)
    await ground.devices.preflight.look(key, uuids)
    if not wanted():  # the wait for its devices may have been long
        raise Refused(f"{key} was stopped before it started")
    inventory = _listed(ground, key, uuids)  # a card may have been divided meanwhile
    await check_indexes(order, inventory, inventory, driver=ground.driver)
    launch = await launch_of(
        order=order,
        node_id=ground.node_id,
        machine=ground.machine,
        inventory=inventory,
        driver=ground.driver,
        instances=ground.devices.instances,
        bus=ground.bus,
    )
    if order.spec.upload:
        launch = replace(launch, workdir=await _unpacked(ground, order, launch.ref, wanted))
    try:
        versions = ground.driver.versions
        launch = await ground.means.resident.prepare(launch, order, inventory, versions, wanted)
        launch = await ground.means.hold(
            launch,
            order,
            inventory=inventory,
            nodes=lambda: ground.driver.nodes,
            wanted=wanted,
            credentials=partial(registry_credentials, order, ground.node_id, ground.bus),
        )
        launch = await ground.devices.filters.ready(launch)
        await check_indexes(order, inventory, ground.devices.inventory, driver=ground.driver)
        return launch
    except Exception:
        await ground.jobs.discard(launch.ref)
        raise


def _listed(ground: Ground, key: str, uuids: Sequence[GpuId]) -> Sequence[Gpu]:
    """Return the inventory. Raises Refused if it does not have these devices."""
    inventory = ground.devices.inventory
    if gone := set(uuids) - {gpu.uuid for gpu in inventory}:
        raise Refused(
            f"{key} cannot be started: GPU {', '.join(sorted(gone))} is no longer on this node"
        )
    return inventory


async def _unpacked(
    ground: Ground, order: StartOrder, ref: AttemptRef, wanted: Callable[[], bool]
) -> str:
    """Unpack the archive that the job brings along; return the directory. Raises Refused."""
    async with AsyncExitStack() as stack:
        if ground.means.uploads is None:
            pieces = fetched(order, ground.node_id, ground.bus)
        else:
            try:
                pieces = await stack.enter_async_context(ground.means.uploads.opened(order, wanted))
            except Refused as error:
                raise Refused(f"{key_of(ref)} cannot be started: {error}") from error
        return await ground.jobs.unpack(ref, order.spec.upload, pieces, wanted)


async def _refuse(ground: Ground, order: StartOrder, why: str) -> None:
    """Undo the preparation of an attempt that was not started, and report why."""
    key = attempt_key(order.job_id, order.attempt)
    try:
        await ground.means.give_up(key)
        await ground.devices.instances.clear([hold.uuid for hold in order.gpus], ground.tell, key)
    except Exception:
        logger.exception("the preparation of %s could not be undone", key)
    ground.tell(o.LaunchFailed(key, why.encode("utf-8", "backslashreplace").decode()))


def _over(ground: Ground, key: str, how: o.Exit) -> None:
    """Report an attempt that was never executed and never will be."""
    ground.tell(o.JobLaunched(key))
    ground.tell(o.ProcessExited(key, how))
