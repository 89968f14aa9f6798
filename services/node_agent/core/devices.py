"""The troubles of this node's devices, and the resets that mend them: part of the agent's pure
core.

A device may have several troubles at once, each under its reason. The log knows the worst of them,
and hears that the device is well when the last one is gone. An error counts once, however often and
by however many sources it is reported. If a device has two errors, both are kept, so that the
harder verdict applies. A reset waits until no attempt has the device, and while the breaker is
open: a wrong detector must not reset the whole node. What survives a restart: `kept_devices.py`.
"""

from collections.abc import Collection
from typing import Final

import msgspec

from libs.common import facts as f
from libs.common.devices import device_controls as c
from libs.common.devices import error_catalogue as e
from libs.common.devices.error_catalogue import Catalogue, Judgement, Seen
from libs.common.devices.partition import on_cards_of, one_of_each_card
from libs.common.facts import NodeFact
from libs.common.life import gpu_life
from libs.common.model import AttemptRef, GpuId, JobId, NodeId
from services.node_agent.core import hangs

SECOND_NS: Final = 1_000_000_000
# Within this time of its last report an error is the same one, unless another job has the device
# meanwhile.
SAME_NS: Final = 10 * SECOND_NS
# From the mildest to the worst. A device in reset is recorded as resetting, whatever else it has.
HEALTHS: Final = (gpu_life.DEGRADED, gpu_life.OFFLINE, gpu_life.RESETTING)
MENDED_BY_BOOT: Final = (*e.RESETS, e.REBOOT_NODE)
RESET: Final = "reset"
RELEASE: Final = "release"
HOT: Final = "thermal"
OPERATOR: Final = "operator"
# Different errors that are counted per device; further ones are recorded but not counted.
COUNTED_MAX: Final = 64
# Outcomes of a reset that mean: this device cannot be reset.
NO_RESET: Final = (c.LACKING, c.DENIED)
RESET_FAILED: Final = "reset_failed"
WHILE_RESET: Final = "its evidence is saved, then the device is reset and examined"


class Trouble(msgspec.Struct, frozen=True):
    """One fault of a device.

    `verdict` is empty if only waiting helps (too hot, not clean yet). `alone`: see GpuFaulted.
    """

    health: str
    detail: str = ""
    verdict: str = ""
    source: str = ""
    alone: bool = False


# The last recorded state of a device that was not well: it recovered; or the agent does not know
# whether the log has it.
WELL: Final = ("", Trouble(gpu_life.HEALTHY))
UNSURE: Final = ("", Trouble(""))


class Policy(msgspec.Struct, frozen=True):
    """The site's rules for device errors.

    `shadow`: only record what would be done. The breaker holds resets back while more than
    `breaker_percent` of the node's devices (at least one) needed a repair within `breaker_ns`.
    `share_grace_s`: see `shares.end_reason`.
    """

    catalogue: Catalogue = Catalogue("", ())
    site: dict[str, str] = {}
    shadow: bool = False
    breaker_percent: int = 50
    breaker_ns: int = 300 * SECOND_NS
    share_grace_s: int = 60


class Leftover(msgspec.Struct, frozen=True):
    """An attempt that a release check must look for on a device.

    `began_ns`: the boot clock when the attempt got the device; 0: only the driver is asked.
    """

    ref: AttemptRef = AttemptRef(JobId(""), 0)
    processes_gone: bool = True
    began_ns: int = 0


# The leftover of an unknown job: every process that started since the boot counts as its own.
LEFT_BY_UNKNOWN: Final = Leftover(began_ns=1)


class Devices(msgspec.Struct):
    """All troubles of the node's devices.

    `recorded` is the last recorded trouble of each device that the log does not know as well.
    `recent` holds the errors seen lately, with the jobs that had the device. `repair_ns` is the
    time at which a device last came to need a repair. `resetting` are those in reset.
    `breaker_closes_ns` is when the breaker may close (0: no reset waits for it). `counts`: how
    often each error was recorded since the agent started. `unsaved`: the file on disk is out of
    date.
    """

    policy: Policy = Policy()
    boot_id: str = ""
    count: int = 0
    troubles: dict[GpuId, dict[str, Trouble]] = {}
    recorded: dict[GpuId, tuple[str, Trouble]] = {}
    recent: dict[str, tuple[int, tuple[AttemptRef, ...]]] = {}
    repair_ns: dict[GpuId, int] = {}
    resetting: dict[GpuId, None] = {}
    checks: dict[GpuId, dict[str, str]] = {}
    unrecorded: list[NodeFact] = []
    breaker_closes_ns: int = 0
    left: dict[GpuId, Leftover] = {}
    unsaved: bool = False
    counts: dict[GpuId, dict[str, int]] = {}


def add_trouble(devices: Devices, uuid: GpuId, reason: str, trouble: Trouble) -> None:
    """Add or replace the trouble of a device under this reason."""
    troubles = devices.troubles.setdefault(uuid, {})
    devices.unsaved |= troubles.get(reason) != trouble
    troubles[reason] = trouble


def quarantine(devices: Devices, uuid: GpuId, why: str, left: Leftover) -> None:
    """Quarantine a device on which an attempt left something, until the same check
    finds nothing.
    """
    devices.left[uuid] = left
    add_trouble(devices, uuid, gpu_life.QUARANTINED, Trouble(gpu_life.OFFLINE, why, source=RELEASE))


def clear_trouble(devices: Devices, uuid: GpuId, reason: str) -> None:
    """Remove the trouble of this reason; others stay."""
    troubles = devices.troubles.get(uuid, {})
    devices.unsaved |= troubles.pop(reason, None) is not None
    if reason == gpu_life.QUARANTINED:
        devices.left.pop(uuid, None)
    if not troubles:
        devices.troubles.pop(uuid, None)


def unavailable_reason(devices: Devices, uuids: Collection[GpuId], joins: bool = False) -> str:
    """Return why one of these devices takes no new work, as one word; empty if all do.

    `joins`: the work needs the links between them.
    """
    worst = [found for uuid in uuids if (found := _worst(devices, uuid)) is not None]
    away = [reason for reason, trouble in worst if trouble.health != gpu_life.DEGRADED]
    return next(iter(away + [reason for reason, trouble in worst if joins and trouble.alone]), "")


def needs_reboot_or_replacement(devices: Devices, uuid: GpuId) -> bool:
    """Return whether only a restart of the machine or a repair brings the device back.

    Checking it again finds nothing new.
    """
    troubles = devices.troubles.get(uuid, {}).values()
    return any(
        trouble.verdict in (e.REBOOT_NODE, e.REPLACE) and trouble.health != gpu_life.DEGRADED
        for trouble in troubles
    )


def quarantined(devices: Devices) -> list[GpuId]:
    """Return the quarantined devices."""
    return [uuid for uuid, troubles in devices.troubles.items() if gpu_life.QUARANTINED in troubles]


def judge(devices: Devices, seen: Seen) -> Judgement:
    """Return the verdict of the catalogue and the site on an error."""
    return e.judge(seen, devices.policy.catalogue, devices.policy.site)


def note_error(
    devices: Devices, seen: f.GpuErrorSeen, now_ns: int, reach: e.Reach = "device"
) -> bool:
    """Record an error; return whether it has consequences.

    A repeated error has none, nor has any error in shadow mode. A fabric error is one cause however
    many devices it reaches, so the breaker does not count them.
    """
    if _is_repeated(devices, f"{seen.uuid} {seen.error}", seen.jobs, now_ns):
        return False
    _record(devices, seen)
    if not seen.shadow and seen.verdict not in e.KEEPS_DEVICE:
        fabric = reach == e.FABRIC
        if not fabric:
            devices.repair_ns[seen.uuid] = now_ns
        health = gpu_life.DEGRADED if fabric else gpu_life.OFFLINE
        add_trouble(
            devices,
            seen.uuid,
            seen.error,
            Trouble(health, seen.detail, seen.verdict, seen.source, alone=fabric),
        )
    return not seen.shadow


def _record(devices: Devices, seen: f.GpuErrorSeen) -> None:
    """Record an error and count it."""
    devices.unrecorded.append(seen)
    counts = devices.counts.setdefault(seen.uuid, {})
    if seen.error in counts or len(counts) < COUNTED_MAX:
        counts[seen.error] = counts.get(seen.error, 0) + 1


def note_hang(devices: Devices, seen: f.GpuErrorSeen) -> None:
    """Record that a job hung on the device.

    A hang is one cause however many devices the job had, so the breaker does not count them.
    """
    _record(devices, seen)
    if not seen.shadow:
        add_trouble(
            devices,
            seen.uuid,
            seen.error,
            Trouble(gpu_life.OFFLINE, seen.detail, seen.verdict, seen.source),
        )


def change_trouble(
    devices: Devices, uuid: GpuId, reason: str, trouble: Trouble | None, checks: dict[str, str]
) -> None:
    """Add a lasting trouble, or remove it (None) by these checks.

    If no job of ours was on a quarantined device, only its driver is asked whether it is free.
    """
    if trouble is not None:
        add_trouble(devices, uuid, reason, trouble)
        if reason == gpu_life.QUARANTINED:
            devices.left.setdefault(uuid, Leftover())
        return
    clear_trouble(devices, uuid, reason)
    if checks:
        devices.checks[uuid] = checks


def _is_repeated(devices: Devices, key: str, jobs: tuple[AttemptRef, ...], now_ns: int) -> bool:
    """Return whether the error was seen lately on the same jobs.

    A flood of one error counts once for as long as it lasts.
    """
    devices.recent = {
        name: one for name, one in devices.recent.items() if now_ns < one[0] + SAME_NS
    }
    before = devices.recent.get(key)
    known = before is not None and all(ref in before[1] for ref in jobs)
    devices.recent[key] = (now_ns, before[1] if known and before is not None else jobs)
    return known


def begin_resets(devices: Devices, held: Collection[GpuId], now_ns: int) -> dict[GpuId, str]:
    """Return the devices to reset now, each with the reasons.

    A device is due if it is free and its worst verdict is a reset, or an operator asked for one.
    The breaker does not hold back an operator's reset. Of one card only one device is reset at a
    time: the others are reset with it.
    """
    busy = on_cards_of(devices.troubles, devices.resetting)
    free = [uuid for uuid in devices.troubles if uuid not in held and uuid not in busy]
    due = [
        uuid
        for uuid in free
        if _hardest_verdict(devices, uuid) in e.RESETS or _operator_asked(devices, uuid)
    ]
    devices.breaker_closes_ns = _breaker_closes_ns(devices, now_ns) if due else 0
    if devices.breaker_closes_ns:
        due = [uuid for uuid in due if _operator_asked(devices, uuid)]
    reasons = {uuid: ", ".join(devices.troubles[uuid]) for uuid in one_of_each_card(due)}
    for uuid in reasons:
        devices.resetting[uuid] = None
        add_trouble(
            devices,
            uuid,
            RESET,
            Trouble(gpu_life.RESETTING, WHILE_RESET, _hardest_verdict(devices, uuid)),
        )
    return reasons


def _hardest_verdict(devices: Devices, uuid: GpuId) -> str:
    """Return the hardest verdict on a device; empty if there is none."""
    verdicts = [
        trouble.verdict for trouble in devices.troubles.get(uuid, {}).values() if trouble.verdict
    ]
    return max(verdicts, key=e.VERDICTS.index, default="")


def _operator_asked(devices: Devices, uuid: GpuId) -> bool:
    """Return whether an operator asked for a reset of the device."""
    return any(
        trouble.source == OPERATOR and trouble.verdict
        for trouble in devices.troubles[uuid].values()
    )


def _breaker_closes_ns(devices: Devices, now_ns: int) -> int:
    """Return when the open breaker may close; 0 if it is closed."""
    lately = sorted(
        at_ns for at_ns in devices.repair_ns.values() if now_ns < at_ns + devices.policy.breaker_ns
    )
    allowed = max(1, devices.count * devices.policy.breaker_percent // 100)
    return lately[-allowed - 1] + devices.policy.breaker_ns if len(lately) > allowed else 0


def note_reset(
    devices: Devices,
    uuid: GpuId,
    problem: str,
    checks: dict[str, str],
    refused: str = "",
    asked: bool = False,
) -> None:
    """Note the end of a reset.

    A device that came out well loses the troubles that a reset mends. Otherwise it needs a restart
    of the machine, unless the driver refused a reset that only the operator wanted. If the device
    cannot be reset and its only trouble is a job that hung, it is used again: it was proved free.
    If an operator asked for the reset, he says that the cause is mended, so a device that came out
    well also loses the troubles that otherwise wait for a restart of the machine.
    """
    mended = MENDED_BY_BOOT if asked else e.RESETS
    devices.resetting.pop(uuid, None)
    clear_trouble(devices, uuid, RESET)
    if problem and refused and _hardest_verdict(devices, uuid) not in e.RESETS:
        return
    needs = [
        reason
        for reason, trouble in devices.troubles.get(uuid, {}).items()
        if trouble.verdict in e.RESETS
    ]
    if refused in NO_RESET and needs == [hangs.ERROR]:
        checks = {"reset": f"not done: {problem}"}
    elif problem:
        add_trouble(
            devices, uuid, RESET_FAILED, Trouble(gpu_life.OFFLINE, problem, e.REBOOT_NODE, RESET)
        )
        return
    for reason in [
        name
        for name, trouble in devices.troubles.get(uuid, {}).items()
        if trouble.verdict in mended
    ]:
        clear_trouble(devices, uuid, reason)
    devices.checks[uuid] = checks


def facts(devices: Devices, node_id: NodeId, errors_max: int) -> list[NodeFact]:
    """Return what the log does not know yet: up to `errors_max` errors, and each device whose worst
    trouble changed.
    """
    found, devices.unrecorded = devices.unrecorded[:errors_max], devices.unrecorded[errors_max:]
    for uuid in list(dict.fromkeys((*devices.recorded, *devices.troubles))):
        worst = _worst(devices, uuid) or WELL
        if worst == devices.recorded.get(uuid):
            continue
        devices.recorded[uuid] = worst
        well = worst is WELL
        found.append(_recovered(devices, node_id, uuid) if well else _fault(node_id, uuid, *worst))
    return found


def _recovered(devices: Devices, node_id: NodeId, uuid: GpuId) -> NodeFact:
    """Return the GpuRecovered fact of a device."""
    return f.GpuRecovered(node_id=node_id, uuid=uuid, checks=devices.checks.pop(uuid, {}))


def _fault(node_id: NodeId, uuid: GpuId, reason: str, trouble: Trouble) -> NodeFact:
    """Return the GpuFaulted fact of a trouble."""
    fields = msgspec.structs.asdict(trouble)
    return f.GpuFaulted(node_id=node_id, uuid=uuid, reason=reason, **fields)


def _worst(devices: Devices, uuid: GpuId) -> tuple[str, Trouble] | None:
    """Return the worst trouble: by health, then by verdict, then the first.

    `alone` holds if any trouble sets it.
    """
    troubles = devices.troubles.get(uuid, {})
    worst = max(
        troubles.items(),
        key=lambda one: (HEALTHS.index(one[1].health), _rank(one[1].verdict)),
        default=None,
    )
    if worst is None or worst[1].alone or not any(trouble.alone for trouble in troubles.values()):
        return worst
    return worst[0], msgspec.structs.replace(worst[1], alone=True)


def _rank(verdict: str) -> int:
    """Return the rank of a verdict; -1 for none."""
    return e.VERDICTS.index(verdict) if verdict in e.VERDICTS else -1
