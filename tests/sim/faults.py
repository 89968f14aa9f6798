"""The plan of faults: which process, machine or connection is hit, when, and how badly.

A pure function of the seed.

Half of the seeds are swarm runs without some kinds of fault, so that a rare pair of faults is not
always drowned by a third. `calm` is the plan without any fault. `strike` in `world.py` carries out
a blow.
"""

import random
from typing import Final

import msgspec

from tests.sim import hangs, profiles
from tests.sim.weather import Rates

STORM_S: Final = 24.0
# Longer than a lease after the second of two terms.
DEAD_S: Final = 30.0
NODES_MIN: Final = 4
BLOWS_MIN: Final = 5
BLOWS_MAX: Final = 9
SKEW_MAX_S: Final = 3_600.0
KILL_IN_PURGE: Final = 0.02
# The part of the runs in which one node lies.
LYING_PART: Final = 0.25
# The parts in which one server freezes, and in which one tenant asks for as much as it may.
FROZEN_PART: Final = 0.25
GREEDY_PART: Final = 0.05
# Rate at which a library forgets the cancellation of a task that it holds.
CANCELLATION_LOST: Final = 0.5

LEASE_MS: Final = 5_000
LONG_LEASE_MS: Final = 9_000

KILL: Final = "kill"
PAUSE: Final = "pause"
STALL: Final = "log_stalls"
CUT: Final = "cut_off"
POWER_CUT: Final = "power_cut"
REBOOT: Final = "reboot"
DISK_LOST: Final = "disk_lost"
AGENT_DEAD: Final = "agent_dead"
APART: Final = "apart_from_control"
MUTE: Final = "is_not_heard"
DEAF: Final = "hears_nothing"
OUTAGE: Final = "control_plane_down"
CLOCK_STEP: Final = "clock_step"
SECOND: Final = "second_scheduler"
DEAD: Final = "declared_dead"
PLANNED: Final = "planned_stop"
ORPHAN: Final = "supervisor_dead"
REINSTALLED: Final = "reinstalled"
LATE: Final = "joins_late"
REMOVED: Final = "removed"
GPU_ERROR: Final = "gpu_error"
DEVICE_KEPT: Final = "device_kept"
LYING: Final = "lying_node"
FROZEN: Final = "frozen_server"
SERVERS: Final = ("s0", "s1", "s2")
GREEDY: Final = "greedy_tenant"
# Xids: of the application, and of hardware that continues, drains, or is reset at once.
XIDS: Final = (31, 94, 48, 46, 95)
KINDS: Final = (
    *(KILL, KILL, KILL, PAUSE, PAUSE, STALL, CUT, CUT, POWER_CUT, REBOOT),
    *(DISK_LOST, AGENT_DEAD, AGENT_DEAD, AGENT_DEAD, CLOCK_STEP, SECOND, PLANNED, ORPHAN),
)

RATES: Final = {
    "append_refused": 0.02,
    "append_unknown_stored": 0.02,
    "append_unknown_lost": 0.02,
    "append_late": 0.01,
    "append_twice": 0.05,
    "kill_before_store": 0.004,
    "kill_after_store": 0.004,
    "log_silent": 0.05,
    "read_lag": 0.02,
    "bus_lost": 0.05,
    "bus_late": 0.03,
    "bus_twice": 0.05,
    "launch_slow": 0.1,
    "launch_refused": 0.02,
}


class Blow(msgspec.Struct, frozen=True, order=True):
    """A fault that hits a target at a virtual time for a while; `lasts` faults continue after the
    storm.
    """

    at_s: float
    kind: str
    target: str
    length_s: float
    lasts: bool = False


class Trim(msgspec.Struct, frozen=True):
    """The interval at which the log is trimmed, and the number of commits that stay."""

    every_s: float
    keep_commits: int


class Plan(msgspec.Struct, frozen=True):
    """The cluster and all faults of one run."""

    seed: int
    rates: Rates
    blows: tuple[Blow, ...]
    storm_s: float
    skew_max_s: float
    nodes: tuple[int, ...]
    trim: Trim | None = None
    lease_ms: int = LEASE_MS
    lock_users: int = 0
    hash_every: int = 0
    fence: hangs.Fence = hangs.NO_FENCE
    # Commits after which the gateway stores a snapshot; 0: the gateway only records (`client.py`).
    snapshot_every: int = 0

    @property
    def over_s(self) -> float:
        """Return when both the storm and the last lasting blow are over."""
        return max(
            [self.storm_s, *(blow.at_s + blow.length_s for blow in self.blows if blow.lasts)]
        )


def plan(seed: int) -> Plan:
    """Return the cluster (GPUs per node) and its faults."""
    dice = random.Random(f"plan {seed}")
    nodes = tuple(dice.choice((2, 2, 4)) for _ in range(dice.randint(NODES_MIN, 6)))
    off = set_off(dice) if dice.random() < 0.5 else ()
    rates = Rates(
        **{
            name: rate * dice.choice((0.5, 1.0, 2.0))
            for name, rate in RATES.items()
            if name not in off
        }
    )
    kinds = [kind for kind in KINDS if kind not in off] or [KILL]
    blows = [
        _blow(dice, dice.choice(kinds), len(nodes))
        for _ in range(dice.randint(BLOWS_MIN, BLOWS_MAX))
    ]
    skew_max_s = dice.choice((0.0, 2.0, SKEW_MAX_S))
    trim, extra = _trimming(random.Random(f"trim {seed}"))
    rates.kill_in_purge = KILL_IN_PURGE if trim is not None else 0.0
    rates.cancellation_lost = CANCELLATION_LOST
    lease_ms, more = _control_lost(random.Random(f"control {seed}"), len(nodes))
    loss = _long_absence(random.Random(f"loss {seed}"), len(nodes), lease_ms)
    again = _reinstalled(random.Random(f"reinstalled {seed}"), len(nodes))
    dead = _declared(random.Random(f"dead {seed}"), len(nodes))
    members = _come_and_go(random.Random(f"members {seed}"), len(nodes))
    errors = _devices_err(random.Random(f"devices {seed}"), len(nodes))
    kept = _devices_kept(random.Random(f"kept {seed}"), len(nodes))
    lies = _lies(random.Random(f"lies {seed}"), len(nodes))
    frozen = _frozen(random.Random(f"frozen {seed}"))
    greed = _greed(random.Random(f"greed {seed}"))
    hung = hangs.planned(random.Random(f"hung {seed}"), len(nodes))
    storm_s = max([STORM_S, *(blow.at_s + blow.length_s for blow in dead)])
    chosen = profiles.planned(random.Random(f"profile {seed}"), STORM_S)
    groups = (extra, more, loss, again, dead, members, errors, kept, lies, frozen, greed)
    told = (blow for group in groups for blow in group)
    all_blows = tuple(sorted((*blows, *told, *(Blow(*each) for each in (*hung, *chosen)))))
    return Plan(
        seed=seed,
        rates=rates,
        blows=all_blows,
        storm_s=storm_s,
        skew_max_s=skew_max_s,
        nodes=nodes,
        trim=trim,
        lease_ms=lease_ms,
    )


def _trimming(dice: random.Random) -> tuple[Trim | None, tuple[Blow, ...]]:
    """Trim the log in half of the runs, much harder than in production, and kill the trimmer.

    Uses its own dice.
    """
    if dice.random() < 0.5:
        return None, ()
    blows = tuple(
        Blow(dice.uniform(1.0, STORM_S - 2.0), KILL, "trimmer", dice.choice((0.05, 2.0)))
        for _ in range(dice.randint(0, 3))
    )
    return Trim(dice.choice((0.3, 1.0, 3.0)), dice.choice((1, 5, 40))), blows


def calm(seed: int) -> Plan:
    """Return the same cluster without a fault."""
    return msgspec.structs.replace(
        plan(seed), rates=Rates(), blows=(), storm_s=0.0, skew_max_s=0.0, trim=None
    )


def _control_lost(dice: random.Random, nodes: int) -> tuple[int, list[Blow]]:
    """Cut the control plane off from all or some agents in every other run.

    The lease is then long enough for agents to ask each other before it ends.
    """
    if dice.random() < 0.5:
        return LEASE_MS, []
    kinds = [dice.choice((OUTAGE, OUTAGE, APART, APART, APART)) for _ in range(dice.randint(1, 3))]
    return LONG_LEASE_MS, [
        Blow(
            dice.uniform(1.0, STORM_S - 4.0),
            kind,
            f"n{dice.randrange(nodes)}",
            dice.choice((5.0, 9.0, 15.0, 22.0)),
        )
        for kind in kinds
    ]


def _long_absence(dice: random.Random, nodes: int, lease_ms: int) -> list[Blow]:
    """Keep a node away until long after the storm in two of three runs, so that it is surely
    declared lost.
    """
    if dice.random() < 0.33:
        return []
    kind, node = dice.choice((CUT, CUT, APART, AGENT_DEAD)), f"n{dice.randrange(nodes)}"
    at_s = dice.uniform(STORM_S - 8.0, STORM_S - 1.0)
    return [
        Blow(
            at_s,
            kind,
            f"agent-{node}" if kind == AGENT_DEAD else node,
            STORM_S - at_s + 3.0 * lease_ms / 1e3,
            lasts=True,
        )
    ]


def _reinstalled(dice: random.Random, nodes: int) -> list[Blow]:
    """Start an agent with an empty state directory under its old name in every fourth run.

    It starts before the leases of its predecessor end.
    """
    if dice.random() >= 0.25:
        return []
    return [
        Blow(
            dice.uniform(2.0, STORM_S - 4.0),
            REINSTALLED,
            f"agent-n{dice.randrange(nodes)}",
            dice.choice((0.05, 1.0, 4.0)),
        )
    ]


def _declared(dice: random.Random, nodes: int) -> list[Blow]:
    """Keep a machine dead for longer than any lease in every third run; an operator declares it
    dead.
    """
    return (
        [Blow(dice.uniform(1.0, 12.0), DEAD, f"n{dice.randrange(nodes)}", DEAD_S)]
        if dice.random() < 1 / 3
        else []
    )


def _come_and_go(dice: random.Random, nodes: int) -> list[Blow]:
    """Let one node join late in every other run, and remove another in two of three runs that have
    nodes to spare.

    A length says that the jobs of the removed node may end first.
    """
    late, gone = dice.sample(range(nodes), 2)
    found = (
        [Blow(0.0, LATE, f"agent-n{late}", dice.uniform(2.0, STORM_S - 4.0))]
        if dice.random() < 0.5
        else []
    )
    at_s, wait_s = dice.uniform(3.0, STORM_S - 2.0), dice.choice((0.0, 0.0, 1.0))
    return (
        [*found, Blow(at_s, REMOVED, f"n{gone}", wait_s)]
        if nodes > NODES_MIN and dice.random() < 0.67
        else found
    )


def _devices_kept(dice: random.Random, nodes: int) -> list[Blow]:
    """Keep devices open for a while in half of the runs, although their jobs may have ended.

    The time is shorter or longer than a release may take.
    """
    return [
        Blow(
            dice.uniform(1.0, STORM_S),
            DEVICE_KEPT,
            f"n{dice.randrange(nodes)}",
            dice.uniform(1.0, 15.0),
        )
        for _ in range(dice.choice((0, 0, 2, 4)))
    ]


def _lies(dice: random.Random, nodes: int) -> list[Blow]:
    """Have one node lie until the storm is over, in a quarter of the runs."""
    if dice.random() >= LYING_PART:
        return []
    at_s = dice.uniform(1.0, 6.0)
    return [Blow(at_s, LYING, f"n{dice.randrange(nodes)}", STORM_S - at_s)]


def _frozen(dice: random.Random) -> list[Blow]:
    """Freeze one of the servers in a quarter of the runs, for less or more than its clients wait
    for it.
    """
    if dice.random() >= FROZEN_PART:
        return []
    return [
        Blow(
            dice.uniform(1.0, STORM_S - 4.0),
            FROZEN,
            dice.choice(SERVERS),
            dice.choice((0.5, 2.0, 9.0, 30.0)),
        )
    ]


def _greed(dice: random.Random) -> list[Blow]:
    """Let one tenant be greedy in one of twenty runs, and withdraw all that it asked for before the
    storm is over.
    """
    if dice.random() >= GREEDY_PART:
        return []
    at_s = dice.uniform(0.5, 8.0)
    return [Blow(at_s, GREEDY, "greedy", STORM_S - 2.0 - at_s)]


def _devices_err(dice: random.Random, nodes: int) -> list[Blow]:
    """Inject device errors in two of three runs; a blow's length is the Xid."""
    count = dice.choice((0, 2, 5))
    return [
        Blow(
            dice.uniform(1.0, STORM_S),
            GPU_ERROR,
            f"n{dice.randrange(nodes)}",
            float(dice.choice(XIDS)),
        )
        for _ in range(count)
    ]


def set_off(dice: random.Random) -> tuple[str, ...]:
    """Return the kinds of fault that a swarm run does without."""
    names = sorted({*RATES, *KINDS})
    return tuple(dice.sample(names, dice.randint(3, len(names) - 4)))


def _blow(dice: random.Random, kind: str, nodes: int) -> Blow:
    at_s = dice.uniform(1.0, STORM_S - 2.0)
    node = f"n{dice.randrange(nodes)}"
    process = dice.choice(
        ("scheduler-a", "scheduler-a", "scheduler-b", "quota", "gateway", "audit", f"agent-{node}")
    )
    match kind:
        case "kill":
            return Blow(at_s, kind, process, dice.choice((0.05, 1.0, 4.0)))
        case "pause":
            return Blow(at_s, kind, process, dice.choice((0.5, 2.0, 9.0, 12.0)))
        case "log_stalls":
            return Blow(at_s, kind, "log", dice.choice((1.0, 4.0, 9.0)))
        case "cut_off":
            return Blow(
                at_s,
                kind,
                dice.choice((node, node, "control")),
                dice.choice((1.0, 5.0, 9.0, 12.0, 15.0)),
            )
        case "power_cut" | "disk_lost":
            return Blow(at_s, kind, node, dice.choice((4.0, 12.0)))
        case "reboot":
            return Blow(at_s, kind, node, dice.choice((0.5, 2.0, 4.0)))
        case "agent_dead":
            return Blow(at_s, kind, f"agent-{node}", dice.choice((2.0, 6.0, 9.0, 13.0, 16.0)))
        case "supervisor_dead":
            return Blow(at_s, kind, node, 0.0)
        case "planned_stop":
            return Blow(at_s, kind, node, dice.choice((0.05, 3.0)))
        case "clock_step":
            return Blow(at_s, kind, process, dice.uniform(-SKEW_MAX_S, SKEW_MAX_S))
        case _:
            return Blow(at_s, kind, "scheduler-b", dice.choice((0.5, 3.0)))
