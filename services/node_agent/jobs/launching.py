"""From a start order to what a supervisor receives: command, environment, limits and secrets.

Secrets (`secret_values.py`) reach the supervisor in memory with the rest of the environment;
nothing is written to disk (`supervisor/order.py`).
"""

import asyncio
import os
from collections.abc import Mapping, Sequence

from libs.common.devices import mig
from libs.common.devices.visibility import by_index
from libs.common.errors import Refused
from libs.common.messages import StartOrder
from libs.common.model import AttemptRef, Gpu, GpuId, NodeId, attempt_key
from libs.common.transport.bus import Bus
from services.node_agent.core import serving, shares
from services.node_agent.devices import capabilities
from services.node_agent.devices.instances import Instances
from services.node_agent.diagnosis.launch_hook import hooked
from services.node_agent.directories import accounts
from services.node_agent.directories.protocol import Launch, Machine
from services.node_agent.drivers import Driver
from services.node_agent.jobs.environment import elements_of, environment
from services.node_agent.jobs.limits import limits_of
from services.node_agent.jobs.secret_values import secrets_of
from services.node_agent.machine.cgroups import Limits
from services.node_agent.machine.ports import is_free


async def launch_of(
    order: StartOrder,
    node_id: NodeId,
    machine: Machine,
    inventory: Sequence[Gpu],
    driver: Driver,
    instances: Instances,
    bus: Bus,
) -> Launch:
    """Return the launch of an order.

    Raises Refused if its secrets, its user or its MIG instances are not available. Some MIG
    instances may exist then.
    """
    spec = order.spec
    account = await _account(machine, order)
    base = {**machine.environment, **(account.environment if account is not None else {})}
    is_keyed = spec.serve is not None and spec.serve.keyed
    secrets = await secrets_of(order, node_id, bus) if spec.secrets or is_keyed else {}
    made = await instances.make(order.gpus, attempt_key(order.job_id, order.attempt))
    numbers = {uuid: one.number for uuid, one in made.items()}
    await _make_nodes(driver, numbers)
    env = environment(
        order,
        node_id,
        inventory=inventory,
        base=base,
        instances={uuid: GpuId(one.uuid) for uuid, one in made.items()},
        address=machine.address,
        secrets=secrets,
    )
    return Launch(
        ref=AttemptRef(order.job_id, order.attempt),
        rank=order.rank,
        argv=serving.argv_of(order, machine.address),
        env=_observed(order, machine, env),
        workdir=spec.workdir or (_home(base) if account is None or account.home else ""),
        stdin=spec.stdin,
        output_limit_bytes=spec.output_limit_bytes,
        ignore_lease=spec.ignores_lease,
        account=account,
        limits=_limits(order, machine, inventory=inventory, driver=driver, numbers=numbers),
        gpus=tuple(hold.uuid for hold in order.gpus),
        seq=order.seq,
        incarnation=order.incarnation,
        time_limit_s=spec.time_limit_s,
        grace_s=spec.grace_s,
        probe=serving.probe_of(order),
        slices=mig.slices_of(order.gpus),
        instances=numbers,
        hang_timeout_s=spec.hang_timeout_s,
        parts=share.parts if (share := shares.share_of(order.gpus)) is not None else {},
        tenant=order.tenant,
        elements=elements_of(order),
    )


def _limits(
    order: StartOrder,
    machine: Machine,
    inventory: Sequence[Gpu],
    driver: Driver,
    numbers: Mapping[GpuId, int],
) -> Limits:
    """Return the limits of the attempt. `numbers` are those of its MIG instances by device."""
    return limits_of(
        order,
        inventory,
        numas=machine.numas,
        nodes=driver.nodes,
        closed=capabilities.others(driver.capabilities, numbers),
    )


async def check_indexes(
    order: StartOrder, inventory: Sequence[Gpu], now: Sequence[Gpu], driver: Driver
) -> None:
    """Raise Refused if the indexes in the job's environment may mean other devices now.

    They are those of `inventory`; `now` is the last one, which may be newer.
    """
    held = [gpu for hold in order.gpus for gpu in inventory if gpu.uuid == hold.uuid]
    if not held or not by_index(held, inventory):
        return
    key, current = attempt_key(order.job_id, order.attempt), {gpu.uuid: gpu.index for gpu in now}
    if moved := [gpu for gpu in held if current.get(gpu.uuid) != gpu.index]:
        raise Refused(
            f"{key} cannot be started: GPU {moved[0].uuid} got another index than "
            f"{moved[0].index} while the start was prepared, because the GPUs of this node "
            "changed. Muster places the job again"
        )
    if why := await driver.renumbered(held[0].vendor):
        raise Refused(
            f"{key} cannot be started, because GPU {held[0].index} may not be {held[0].uuid} any "
            f"more: {why}"
        )


async def _make_nodes(driver: Driver, numbers: Mapping[GpuId, int]) -> None:
    """Make the device nodes of a job's MIG instances. Raises Refused."""
    if own := list(capabilities.own(driver.capabilities, numbers)):
        await asyncio.to_thread(capabilities.make_nodes, own)


def _observed(order: StartOrder, machine: Machine, env: dict[str, str]) -> dict[str, str]:
    """Return the environment with what `muster diagnose` needs; containers get none of it."""
    if not machine.diagnose_hook or order.spec.image:
        return env
    key = attempt_key(order.job_id, order.attempt)
    is_collective = bool(order.gpus) and (len(order.gpus) > 1 or order.spec.most_nodes > 1)
    return hooked(env, key, is_collective, is_free)


async def _account(machine: Machine, order: StartOrder) -> accounts.Account | None:
    """Return the job's user; None for the agent's own. Raises Refused."""
    if accounts.shares_agent(machine.users, order.tenant, order.user):
        return None
    return await asyncio.to_thread(
        accounts.account_of, machine.users, machine.numbers, order.tenant, order.user
    )


def _home(base: Mapping[str, str]) -> str:
    """Return the home directory, or `/` if there is none."""
    home = base.get("HOME", "/")
    return home if os.path.isdir(home) else "/"
