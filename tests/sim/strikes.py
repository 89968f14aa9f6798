"""Carries out the planned faults of a run; `faults.py` plans them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from libs.common.devices.error_catalogue import Seen
from services.node_agent.core.observations import DeviceErrorSeen
from tests.sim import deep, faults, hangs, leading, profiles
from tests.sim.bus import CONTROL
from tests.sim.faults import Blow
from tests.sim.liar import Liar
from tests.sim.settings import SETTINGS

if TYPE_CHECKING:
    from tests.sim.world import World

# A farewell waits for a follower that takes over, and reaches a node with its next heartbeat; then
# its agent may be away for longer than a lease and its margin.
HEARD_OF_STOP_S: Final = 1.6
OUTLIVED_S: Final = 16.0
# Planned stops whose time in milliseconds has this rest are the leader's alone.
ALONE: Final = 7
ALONE_REST: Final = 3


def strike(world: World, blow: Blow) -> None:
    """Carry out one planned fault."""
    match blow.kind:
        case faults.KILL | faults.AGENT_DEAD | faults.REINSTALLED | faults.LATE:
            leading.struck(world, blow.target).strike(blow.length_s)
            if blow.kind == faults.REINSTALLED:
                world.machines[world.slots[blow.target].host].reinstall()
        case faults.PAUSE:
            leading.struck(world, blow.target).process.pause(blow.length_s)
        case faults.STALL:
            world.stall(blow.length_s)
        case faults.CUT | faults.MUTE | faults.DEAF | faults.APART:
            _part(world, blow)
        case faults.OUTAGE:
            world.network.cut[CONTROL] = world.loop.now + blow.length_s
            world.stall(blow.length_s)
        case faults.CLOCK_STEP:
            world.slots[blow.target].clock.skew_s = blow.length_s
        case faults.ORPHAN:
            world.machines[blow.target].kill_supervisor()
        case faults.PLANNED:
            _planned_stop(world, blow)
        case faults.SECOND:
            _second_scheduler(world, blow)
        case faults.GPU_ERROR:
            _device_errs(world, blow)
        case faults.DEVICE_KEPT:
            machine = world.machines[blow.target]
            machine.kept_until[
                machine.gpus[int(blow.length_s * 1_000) % len(machine.gpus)].uuid
            ] = world.loop.now + blow.length_s
        case faults.LYING:
            Liar(world, blow.target, world.loop.now + blow.length_s).begin()
        case hangs.HUNG:
            hangs.hang_supervisors(world, blow.target, blow.length_s)
        case hangs.WATCHDOG_HUNG:
            hangs.end_watchdog(world, blow.target, 0.0)
        case hangs.WATCHDOG_LOST:
            hangs.end_watchdog(world, blow.target, blow.length_s)
        case profiles.PROFILE:
            profiles.choose(world, blow.target)
        case faults.FROZEN:
            world.servers.freeze(blow)
        case faults.REMOVED | faults.GREEDY:
            pass  # the operator's alone, and the users' (`greed.py`)
        case kind if kind in deep.KINDS:
            deep.strike(world, blow)
        case _:
            _power_cut(world, blow)


def _part(world: World, blow: Blow) -> None:
    """Let nothing pass, to or from a machine, in one direction or both."""
    network = world.network
    ways = {
        faults.CUT: network.cut,
        faults.MUTE: network.mute,
        faults.DEAF: network.deaf,
        faults.APART: network.apart,
    }
    ways[blow.kind][blow.target] = world.loop.now + blow.length_s


def _planned_stop(world: World, blow: Blow) -> None:
    """Stop all schedulers as planned; kill the named agent, if any, once it has its long lease.

    Its jobs then outlive the next term's patience. In some of the stops the leader stops alone,
    hands over, and leaves no long lease.
    """
    leaders = [name for name, _ in world.leading()]
    everyone = [name for name in world.slots if name.startswith("scheduler-")]
    alone = int(blow.at_s * 1_000) % ALONE == ALONE_REST
    for name in everyone if leaders and not alone else leaders:
        world.slots[name].stop.set()
        world.slots[name].held_until = world.loop.now + blow.length_s
    if blow.target:
        world.loop.call_later(
            HEARD_OF_STOP_S, world.slots[f"agent-{blow.target}"].strike, OUTLIVED_S
        )


def _device_errs(world: World, blow: Blow) -> None:
    """Report a device error by the driver and by the kernel's log, if an agent is alive."""
    slot, machine = world.slots[f"agent-{blow.target}"], world.machines[blow.target]
    if not slot.process.alive or slot.service is None:
        return
    gpu = machine.random.choice(machine.gpus)
    error = Seen("nvidia", gpu.model, "", f"xid {int(blow.length_s)}")
    for source in ("driver", "kernel_log"):
        slot.process.deliver(
            slot.service.tell,
            DeviceErrorSeen(gpu.uuid, error, source),
            delay_s=world.dice.uniform(0.0, 0.3),
        )


def _second_scheduler(world: World, blow: Blow) -> None:
    """Pause the leader past its term, so that the standby takes over, and then wake it up."""
    for name, _ in world.leading():
        world.slots[name].process.pause(SETTINGS.term_ms / 1e3 + blow.length_s)


def _power_cut(world: World, blow: Blow) -> None:
    machine = world.machines[blow.target]
    if not machine.up:
        return
    world.slots[f"agent-{blow.target}"].process.kill()
    machine.power_off(blow.kind == faults.DISK_LOST)
    if blow.kind == faults.DISK_LOST:
        world.disks_lost[blow.target] = None
    world.loop.call_later(blow.length_s, world.power_on, machine)
