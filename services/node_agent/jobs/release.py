"""The release check: are an attempt's processes gone, its devices closed, and their memory free?

The result is the receipt in JobReleased; it names what is left, by process if possible. A device
that another attempt still uses cannot be checked: the last attempt on it is asked. Tests:
tests/integration/test_release.py.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

from libs.common.model import GpuId
from services.node_agent.core import actions as a
from services.node_agent.core import observations as o
from services.node_agent.core.attempt_facts import GONE, PROCESSES
from services.node_agent.core.state import key_of
from services.node_agent.devices.device_holders import holders, without_nodes
from services.node_agent.devices.instances import Instances
from services.node_agent.directories.protocol import JobSupervisors
from services.node_agent.drivers import Driver
from services.node_agent.health.scrubbing import NOT_CLEARED, Scrub, Scrubbed
from services.node_agent.jobs.means import Means

NOT_CLEAN: Final = "not done: only free devices are scrubbed"


class Found(NamedTuple):
    """The results of a release check, before the devices are scrubbed."""

    left: Sequence[str]
    checks: Mapping[str, str]
    held: Mapping[GpuId, str]
    cut: Mapping[GpuId, str]
    holders: str


async def check(
    action: a.CheckRelease,
    driver: Driver,
    jobs: JobSupervisors,
    instances: Instances,
    scrub: Scrub,
    alone: Sequence[GpuId],
    look_s: float,
    means: Means,
) -> o.ReleaseChecked:
    """Check what an attempt left. `alone` are its devices that no other attempt uses.

    Its MIG instances are removed once its processes are gone. Devices that are clean then are
    scrubbed. Driver calls and the scrub have their own deadlines. Everything else must end within
    `look_s` seconds; after that nothing is known, so no device counts as clean.
    """
    try:
        async with asyncio.timeout(look_s) as deadline:
            left, checks_of_means, held, cut, holders_seen = await _look(
                action,
                driver=driver,
                jobs=jobs,
                instances=instances,
                alone=alone,
                deadline=deadline,
                means=means,
            )
    except TimeoutError:
        return unknown(action, f"not known: the release check took longer than {look_s:.0f} s")
    except OSError as error:
        return unknown(action, f"not known: the release check failed: {error}")
    if not left and scrub.wanted:
        # These devices are not scrubbed now: another attempt has them, or a sibling is not clean.
        # The next start scrubs them.
        await scrub.owe(uuid for uuid in action.gpus if held or uuid not in alone)
    scrubbed = await scrub.of(alone) if not left and not held and alone else Scrubbed(NOT_CLEAN)
    held = {**held, **{uuid: f"{NOT_CLEARED}{why}" for uuid, why in scrubbed.failed.items()}}
    checks = {
        PROCESSES: f"left: {', '.join(left)}" if left else GONE,
        "devices": "held" if held else "free",
        **checks_of_means,
    }
    if action.cut:
        checks["mig"] = (
            "not looked for: processes are left" if left else "; ".join(cut.values()) or "gone"
        )
    if holders_seen:
        checks |= {"holders": holders_seen}
    if holders_seen or (scrub.wanted and action.gpus):
        checks |= {"scrub": scrubbed.result}
    return o.ReleaseChecked(key_of(action.ref), checks, not left and not held, held)


async def _look(
    action: a.CheckRelease,
    driver: Driver,
    jobs: JobSupervisors,
    instances: Instances,
    alone: Sequence[GpuId],
    deadline: asyncio.Timeout,
    means: Means,
) -> Found:
    """Return what the attempt left, and why its devices are not clean. Removes MIG instances."""
    left: Sequence[str] = () if action.processes_gone else await jobs.leftovers(action.ref)
    checks_of_means, more = await means.let_go(key_of(action.ref))
    left, kept = [*left, *more], await means.left(alone)
    nodes = {uuid: driver.nodes[uuid] for uuid in alone if driver.nodes.get(uuid)}
    unseen = without_nodes(driver, alone)
    with _stopped(deadline):
        cut = {} if left else await instances.release(action.gpus, key_of(action.ref))
        held = {**await driver.unclean(alone), **cut}
    opened = (
        await asyncio.to_thread(holders, nodes, action.began_ns, means.resident.processes())
        if nodes and action.began_ns
        else {}
    )
    for uuid, why in (
        *kept.items(),
        *((uuid, f"open in process {', '.join(processes)}") for uuid, processes in opened.items()),
    ):
        held = {**held, uuid: "; ".join(filter(None, (why, held.get(uuid))))}
    if left:
        held = {**dict.fromkeys(action.gpus, f"processes are left: {', '.join(left)}"), **held}
    seen = _holders(opened, unseen, action.began_ns) if nodes or unseen else ""
    return Found(left=left, checks=checks_of_means, held=held, cut=cut, holders=seen)


@contextmanager
def _stopped(deadline: asyncio.Timeout) -> Iterator[None]:
    """Suspend a deadline inside the block.

    A driver is called for one device after the other, so a call may wait for its turn while another
    device hangs or is reset. That says nothing about the devices of this check.
    """
    loop, until_s = asyncio.get_running_loop(), deadline.when()
    assert until_s is not None, "a release check has a deadline"
    left_s = until_s - loop.time()
    deadline.reschedule(None)
    try:
        yield
    finally:
        deadline.reschedule(loop.time() + left_s)


def unknown(action: a.CheckRelease, why: str) -> o.ReleaseChecked:
    """Return the result of a check that did not end: no device of the attempt is clean."""
    checks = {PROCESSES: why, "devices": "held" if action.gpus else "free"}
    return o.ReleaseChecked(key_of(action.ref), checks, False, dict.fromkeys(action.gpus, why))


def _holders(opened: Mapping[GpuId, Sequence[str]], unseen: Sequence[GpuId], began_ns: int) -> str:
    """Return the holders for the receipt. Devices that were not checked are not called free."""
    processes = ", ".join(one for each in opened.values() for one in each)
    why = (
        f"no device node of {', '.join(unseen)} was found"
        if unseen
        else ""
        if began_ns
        else "the start of the job is unknown"
    )
    return "; ".join(filter(None, (processes, why and f"not known: {why}"))) or "none"
