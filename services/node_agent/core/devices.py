"""What is wrong with this node's devices, and what is done about it: part of the agent's pure core.

A device may have several troubles at once, each under its reason; the log is told the worst of
them, and that it is well when the last is gone. An error counts once however often and by however
many it is told; two errors of one device are both kept, so that the harder verdict stands. A reset
waits until nobody has the device, and for the breaker: a fault of the finder must not take the
whole node.
"""

from collections.abc import Collection, Sequence
from typing import Final

import msgspec

from libs.common import facts as f
from libs.common.devices import device_controls as c
from libs.common.devices import error_catalogue as e
from libs.common.devices.error_catalogue import Catalogue, Judgement, Seen
from libs.common.devices.partition import on_cards_of, one_of_each_card
from libs.common.facts import NodeFact
from libs.common.life import gpu_life
from libs.common.model import AttemptRef, Gpu, GpuId, JobId, NodeId
from services.node_agent.core import hangs

# In the state directory.
FILE: Final = "devices.json"
SECOND_NS: Final = 1_000_000_000
# So long after it was last told an error is the same one, unless another job has the device
# meanwhile.
SAME_NS: Final = 10 * SECOND_NS
# From the mildest: what is being reset is said to be.
HEALTHS: Final = (gpu_life.DEGRADED, gpu_life.OFFLINE, gpu_life.RESETTING)
MENDED_BY_BOOT: Final = (*e.RESETS, e.REBOOT_NODE)
RESET: Final = "reset"
RELEASE: Final = "release"
HOT: Final = "thermal"
OPERATOR: Final = "operator"
# Names of errors that are counted for each device; the rest is only recorded.
COUNTED_MAX: Final = 64
# Outcomes of a reset that there is none.
NO_RESET: Final = (c.LACKING, c.DENIED)
RESET_FAILED: Final = "reset_failed"
WHILE_RESET: Final = "its evidence is saved, then it is reset and looked at"


class Trouble(msgspec.Struct, frozen=True):
    """One fault of a device. `verdict` is empty where only waiting helps (too hot, not clean yet).
    `alone`: see GpuFaulted.
    """

    health: str
    detail: str = ""
    verdict: str = ""
    source: str = ""
    alone: bool = False


# What the log was last told of a device that was not well: that it is; and where nobody knows
# whether it was told.
WELL: Final = ("", Trouble(gpu_life.HEALTHY))
UNSURE: Final = ("", Trouble(""))


class Policy(msgspec.Struct, frozen=True):
    """`shadow`: only say what would be done.

    The breaker holds resets back while more than so much of the node's devices (at least one) have
    come to need a repair within its time. `share_grace_s`: see `shares.too_long`.
    """

    catalogue: Catalogue = Catalogue("", ())
    site: dict[str, str] = {}
    shadow: bool = False
    breaker_percent: int = 50
    breaker_ns: int = 300 * SECOND_NS
    share_grace_s: int = 60


class Left(msgspec.Struct, frozen=True):
    """The look that found something on a device: whose it was, and since when (boot clock; 0: the
    driver alone is asked).
    """

    ref: AttemptRef = AttemptRef(JobId(""), 0)
    processes_gone: bool = True
    began_ns: int = 0


# Of whose look nothing is known: all that began since the boot counts.
LEFT_BY_SOMEBODY: Final = Left(began_ns=1)


class Kept(msgspec.Struct, frozen=True):
    """What outlives the agent: the troubles, every device of which the log may think that it is not
    well, and what was left by whom.
    """

    boot_id: str
    troubles: dict[GpuId, dict[str, Trouble]]
    known: tuple[GpuId, ...]
    left: dict[GpuId, Left] = {}


class Devices(msgspec.Struct):
    """`said` is what the log was last told of a device that is not well; `recent` are the errors
    seen lately, with the jobs that had the device; `repair_ns` is when a device last came to need a
    repair, `resetting` those that are being reset, `look_at_ns` when the breaker may have closed
    (0: it is not waited for).

    `counts`: how often each error was recorded since the agent began.
    """

    policy: Policy = Policy()
    boot_id: str = ""
    count: int = 0
    troubles: dict[GpuId, dict[str, Trouble]] = {}
    said: dict[GpuId, tuple[str, Trouble]] = {}
    recent: dict[str, tuple[int, tuple[AttemptRef, ...]]] = {}
    repair_ns: dict[GpuId, int] = {}
    resetting: dict[GpuId, None] = {}
    checks: dict[GpuId, dict[str, str]] = {}
    unsaid: list[NodeFact] = []
    look_at_ns: int = 0
    left: dict[GpuId, Left] = {}
    unkept: bool = False
    counts: dict[GpuId, dict[str, int]] = {}


def hurt(devices: Devices, uuid: GpuId, reason: str, trouble: Trouble) -> None:
    troubles = devices.troubles.setdefault(uuid, {})
    devices.unkept |= troubles.get(reason) != trouble
    troubles[reason] = trouble


def was_left(devices: Devices, uuid: GpuId, why: str, left: Left) -> None:
    """Something of an attempt is on the device: it is quarantined until the same look finds
    nothing.
    """
    devices.left[uuid] = left
    hurt(devices, uuid, gpu_life.QUARANTINED, Trouble(gpu_life.OFFLINE, why, source=RELEASE))


def cleared(devices: Devices, uuid: GpuId, reason: str) -> None:
    """One cause is gone; others stay."""
    troubles = devices.troubles.get(uuid, {})
    devices.unkept |= troubles.pop(reason, None) is not None
    if reason == gpu_life.QUARANTINED:
        devices.left.pop(uuid, None)
    if not troubles:
        devices.troubles.pop(uuid, None)


def out(devices: Devices, uuids: Collection[GpuId], joins: bool = False) -> str:
    """Return why one of these devices takes no new work, in a word; empty if all do.

    `joins`: the work needs the links between them.
    """
    worst = [found for uuid in uuids if (found := _worst(devices, uuid)) is not None]
    away = [reason for reason, trouble in worst if trouble.health != gpu_life.DEGRADED]
    return next(iter(away + [reason for reason, trouble in worst if joins and trouble.alone]), "")


def is_gone(devices: Devices, uuid: GpuId) -> bool:
    """Whether only a start of the machine, or somebody's hand, brings it back: no look at it tells
    more.
    """
    troubles = devices.troubles.get(uuid, {}).values()
    return any(
        trouble.verdict in (e.REBOOT_NODE, e.REPLACE) and trouble.health != gpu_life.DEGRADED
        for trouble in troubles
    )


def quarantined(devices: Devices) -> list[GpuId]:
    """Those on which something was left."""
    return [uuid for uuid, troubles in devices.troubles.items() if gpu_life.QUARANTINED in troubles]


def judged(devices: Devices, seen: Seen) -> Judgement:
    return e.judge(seen, devices.policy.catalogue, devices.policy.site)


def erred(devices: Devices, seen: f.GpuErrorSeen, now_ns: int, reach: e.Reach = "device") -> bool:
    """Whether anything follows of an error: not when it is the same again, or nothing shall.

    An error of the fabric is one cause however many devices it reaches, so the breaker does not
    count them.
    """
    if _is_known(devices, f"{seen.uuid} {seen.error}", seen.jobs, now_ns):
        return False
    _record(devices, seen)
    if not seen.shadow and seen.verdict not in e.KEEPS_DEVICE:
        fabric = reach == e.FABRIC
        if not fabric:
            devices.repair_ns[seen.uuid] = now_ns
        health = gpu_life.DEGRADED if fabric else gpu_life.OFFLINE
        hurt(
            devices,
            seen.uuid,
            seen.error,
            Trouble(health, seen.detail, seen.verdict, seen.source, alone=fabric),
        )
    return not seen.shadow


def _record(devices: Devices, seen: f.GpuErrorSeen) -> None:
    devices.unsaid.append(seen)
    counts = devices.counts.setdefault(seen.uuid, {})
    if seen.error in counts or len(counts) < COUNTED_MAX:
        counts[seen.error] = counts.get(seen.error, 0) + 1


def hung(devices: Devices, seen: f.GpuErrorSeen) -> None:
    """A job hung on it: one cause however many devices it had, so the breaker does not
    count them.
    """
    _record(devices, seen)
    if not seen.shadow:
        hurt(
            devices,
            seen.uuid,
            seen.error,
            Trouble(gpu_life.OFFLINE, seen.detail, seen.verdict, seen.source),
        )


def ails(
    devices: Devices, uuid: GpuId, reason: str, trouble: Trouble | None, checks: dict[str, str]
) -> None:
    """None: not any more, by these checks.

    Of what is left on a device that no job of ours was on, its driver alone is asked.
    """
    if trouble is not None:
        hurt(devices, uuid, reason, trouble)
        if reason == gpu_life.QUARANTINED:
            devices.left.setdefault(uuid, Left())
        return
    cleared(devices, uuid, reason)
    if checks:
        devices.checks[uuid] = checks


def _is_known(devices: Devices, key: str, jobs: tuple[AttemptRef, ...], now_ns: int) -> bool:
    """A flood of one error is known as long as it lasts; another job that has it too is news."""
    devices.recent = {
        name: one for name, one in devices.recent.items() if now_ns < one[0] + SAME_NS
    }
    before = devices.recent.get(key)
    known = before is not None and all(ref in before[1] for ref in jobs)
    devices.recent[key] = (now_ns, before[1] if known and before is not None else jobs)
    return known


def begin_resets(devices: Devices, held: Collection[GpuId], now_ns: int) -> dict[GpuId, str]:
    """The devices to reset now, and why: nobody has them, and what they need most is a reset, or an
    operator asked for one: such a one the breaker does not hold back.

    Of one card one at a time: the others are reset with it.
    """
    busy = on_cards_of(devices.troubles, devices.resetting)
    free = [uuid for uuid in devices.troubles if uuid not in held and uuid not in busy]
    due = [uuid for uuid in free if _needs(devices, uuid) in e.RESETS or _is_asked(devices, uuid)]
    devices.look_at_ns = _closes_ns(devices, now_ns) if due else 0
    if devices.look_at_ns:
        due = [uuid for uuid in due if _is_asked(devices, uuid)]
    reasons = {uuid: ", ".join(devices.troubles[uuid]) for uuid in one_of_each_card(due)}
    for uuid in reasons:
        devices.resetting[uuid] = None
        hurt(devices, uuid, RESET, Trouble(gpu_life.RESETTING, WHILE_RESET, _needs(devices, uuid)))
    return reasons


def _needs(devices: Devices, uuid: GpuId) -> str:
    verdicts = [
        trouble.verdict for trouble in devices.troubles.get(uuid, {}).values() if trouble.verdict
    ]
    return max(verdicts, key=e.VERDICTS.index, default="")


def _is_asked(devices: Devices, uuid: GpuId) -> bool:
    """Whether an operator asked for a reset of it."""
    return any(
        trouble.source == OPERATOR and trouble.verdict
        for trouble in devices.troubles[uuid].values()
    )


def _closes_ns(devices: Devices, now_ns: int) -> int:
    """When the breaker that is open may close; 0 when it is closed."""
    lately = sorted(
        at_ns for at_ns in devices.repair_ns.values() if now_ns < at_ns + devices.policy.breaker_ns
    )
    allowed = max(1, devices.count * devices.policy.breaker_percent // 100)
    return lately[-allowed - 1] + devices.policy.breaker_ns if len(lately) > allowed else 0


def was_reset(
    devices: Devices,
    uuid: GpuId,
    problem: str,
    checks: dict[str, str],
    refused: str = "",
    asked: bool = False,
) -> None:
    """What a reset mends is over when the device came out of it well, all else stays; for another
    one only a start of the machine is left, unless its driver `refused` to begin and nothing but an
    operator wanted it.

    Where there is no reset, a device on which only a job hung is used on: it was proved free, and
    nothing else speaks against it. An operator who asks for a reset says that the cause is mended:
    a device that comes out of it well shows all that a start of the machine would show, so no start
    is waited for.
    """
    mended = MENDED_BY_BOOT if asked else e.RESETS
    devices.resetting.pop(uuid, None)
    cleared(devices, uuid, RESET)
    if problem and refused and _needs(devices, uuid) not in e.RESETS:
        return
    needs = [
        reason
        for reason, trouble in devices.troubles.get(uuid, {}).items()
        if trouble.verdict in e.RESETS
    ]
    if refused in NO_RESET and needs == [hangs.ERROR]:
        checks = {"reset": f"not done: {problem}"}
    elif problem:
        hurt(devices, uuid, RESET_FAILED, Trouble(gpu_life.OFFLINE, problem, e.REBOOT_NODE, RESET))
        return
    for reason in [
        name
        for name, trouble in devices.troubles.get(uuid, {}).items()
        if trouble.verdict in mended
    ]:
        cleared(devices, uuid, reason)
    devices.checks[uuid] = checks


def facts(devices: Devices, node_id: NodeId, errors_max: int) -> list[NodeFact]:
    """What the log does not know yet: errors, of which the rest waits for the next call, and each
    device that is not as it was last said to be.
    """
    found, devices.unsaid = devices.unsaid[:errors_max], devices.unsaid[errors_max:]
    for uuid in list(dict.fromkeys((*devices.said, *devices.troubles))):
        worst = _worst(devices, uuid) or WELL
        if worst == devices.said.get(uuid):
            continue
        devices.said[uuid] = worst
        well = worst is WELL
        found.append(_recovered(devices, node_id, uuid) if well else _fault(node_id, uuid, *worst))
    return found


def kept(devices: Devices) -> bytes:
    """For the next agent, before the log is told: also which devices were not well once, for the
    log may not have heard that they are.
    """
    devices.unkept = False
    known = tuple(dict.fromkeys((*devices.troubles, *devices.said)))
    return msgspec.json.encode(Kept(devices.boot_id, devices.troubles, known, devices.left))


def begin(
    devices: Devices, boot_id: str, gpus: Sequence[Gpu], data: bytes, gone: Collection[str] = ()
) -> None:
    """With what the agent before this one kept: the log is told all of it again.

    What passes by itself is found again, if it has not passed. A machine that was started again has
    reset its devices: those that answer are well, and no process was left by anybody. `gpus` are
    those that their driver shows: a device that is not shown is never said to have recovered; one
    that is `gone` is forgotten.
    """
    devices.boot_id, devices.count = boot_id, len(gpus)
    before = msgspec.json.decode(data, type=Kept) if data else Kept(boot_id, {}, ())
    mended = MENDED_BY_BOOT if before.boot_id != boot_id else ()
    present = [gpu.uuid for gpu in gpus]
    for uuid in (uuid for uuid in before.known if uuid not in gone):
        devices.said[uuid] = UNSURE
        for reason, trouble in before.troubles.get(uuid, {}).items():
            stays = (trouble.verdict and reason != RESET) or reason == gpu_life.QUARANTINED
            if stays and not (uuid in present and trouble.verdict in mended):
                hurt(devices, uuid, reason, trouble)
            if reason == gpu_life.QUARANTINED:
                devices.left[uuid] = Left() if mended else before.left.get(uuid, LEFT_BY_SOMEBODY)
        if uuid not in present and uuid not in devices.troubles:
            del devices.said[uuid]
        elif mended and uuid not in devices.troubles:
            devices.checks[uuid] = {"boot": "another", "driver": "answers"}


def _recovered(devices: Devices, node_id: NodeId, uuid: GpuId) -> NodeFact:
    return f.GpuRecovered(node_id=node_id, uuid=uuid, checks=devices.checks.pop(uuid, {}))


def _fault(node_id: NodeId, uuid: GpuId, reason: str, trouble: Trouble) -> NodeFact:
    told = msgspec.structs.asdict(trouble)
    return f.GpuFaulted(node_id=node_id, uuid=uuid, reason=reason, **told)


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
    return e.VERDICTS.index(verdict) if verdict in e.VERDICTS else -1
