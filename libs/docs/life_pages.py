"""docs/*-life.md: a diagram and a table for each table of libs/common/life/."""

from collections.abc import Iterable
from typing import Final

from libs.common.facts import KINDS
from libs.common.life import gpu_life as gpu
from libs.common.life import job_life as job
from libs.common.life import kept_life as kept
from libs.common.life import lock_life as lock
from libs.common.life import node_life as node
from libs.common.subjects import WRITER_OF
from libs.docs.markdown import block, code, page, prose, table

Life = dict[tuple[str, str], str]

JOB: Final = """
A job waits, runs on its nodes, releases their devices and ends. Each arrow is an event: the kind of
a fact, with a qualifier if one kind has two meanings, or an event that follows from the job's
members.
"""
GPU: Final = """
A GPU has two independent states. The scheduler decides its use: available, allocated or in use. The
node's agent records its health: healthy, degraded, resetting or offline. Neither waits for the
other; a placement considers both.
"""
NODE: Final = """
A node is healthy, degraded (one of its devices is not healthy), unreachable or removed. `:hurt` in
an event means that one of the node's devices is not healthy after it. A lost node that registers
again stays unreachable until the scheduler records NodeReturned, when agent and scheduler agree on
what runs there. After `node.replaced` the node is unreachable until the scheduler records NodeLost
for the previous incarnation.
"""

KEPT: Final = """
An entry is one tier of a model on one node: compile products (artefact), weight files in memory
(host), loaded weights on devices (gpu) or a second engine (standby). The scheduler chooses the
node. For host, the node measures the bytes first. The scheduler grants bytes, and the node fills
and verifies the entry. Artefact uses no memory and needs no grant.
"""

LOCK: Final = """
A claim is one client's request for a lock. Claims wait in the order of the log. The scheduler
grants a free lock to the first of them, renews it when its holder asks, and frees it when the
holder releases it or its time to live has passed. A lock has at most one claim that is held.
"""

# Events that are not kinds of facts, with their causes.
FOLLOWS: Final = {
    "members.started": "(every member has started)",
    "members.ended": "(no member runs any more)",
    "node.replaced": "(an agent with another state directory registered)",
    "gpu.moved": "(another node now reports one of the node's devices)",
}
BY_THE_TABLES: Final = (
    "An event without a row for the current state changes nothing. Every reader counts it as "
    "ignored, by the same rule (`libs/common/fold.py`). The scheduler checks its decisions "
    "against the same table before it appends them."
)


def job_life() -> str:
    waits = [(code(state), f"{job.WAITS_FOR[state]}") for state in job.LIVE]
    return page(
        "A job's life",
        prose(JOB),
        diagram(job.JOB_LIFE, job.ENDED),
        BY_THE_TABLES,
        rows(job.JOB_LIFE),
        "## What a job waits for",
        table(("state", "it waits for"), waits),
        f"A job has ended in these states: {_list(job.ENDED)}. No event changes an ended job.",
        "## A member's life",
        (
            "A member is one node's part of an attempt. The job's state follows from its members' "
            "states alone, whatever the order of their facts."
        ),
        diagram(job.MEMBER_LIFE, ()),
        rows(job.MEMBER_LIFE),
        (
            "An attempt is over, and can be closed, when every member has one of these states: "
            f"{_list(job.MEMBER_OVER)}."
        ),
    )


def gpu_life() -> str:
    shown = [(code(use), code(health), code(word)) for (use, health), word in gpu.SHOWN.items()]
    return page(
        "A GPU's life",
        prose(GPU),
        "## Health",
        diagram(gpu.HEALTH_LIFE, (), gpu.HEALTHY),
        BY_THE_TABLES,
        rows(gpu.HEALTH_LIFE),
        f"New work is placed on a device whose health is {_either(gpu.USABLE)} and whose service "
        f"is {code(gpu.ONLINE)}. Operators set the service ({_list(gpu.SERVICES)}) with "
        "`gpu.service_set`; the health does not change it.",
        "## Displayed states",
        f"A device with the reason `{gpu.QUARANTINED}` is shown as ERROR. A device with the reason "
        f"`{gpu.DRAINING}`, or whose service is not {code(gpu.ONLINE)}, is shown as MAINTENANCE. "
        "All others:",
        table(("use", "health", "shown"), shown),
    )


def node_life() -> str:
    return page(
        "A node's life",
        prose(NODE),
        diagram(node.NODE_LIFE, ()),
        BY_THE_TABLES,
        rows(node.NODE_LIFE),
        f"New work is placed on a node that is {_either(node.USABLE)}.",
    )


def kept_life() -> str:
    return page(
        "A kept entry's life",
        prose(KEPT),
        diagram(kept.KEPT_LIFE, ()),
        BY_THE_TABLES,
        rows(kept.KEPT_LIFE),
        f"The scheduler's ledger counts bytes for an entry that is {_either(kept.HOLDS_BYTES)}. "
        "`model.keep_dropped`, and a new `model.keep_requested`, remove the entry in any state.",
    )


def lock_life() -> str:
    return page(
        "The life of a claim on a lock",
        prose(LOCK),
        diagram(lock.LOCK_LIFE, (lock.OVER,)),
        BY_THE_TABLES,
        rows(lock.LOCK_LIFE),
        "A claim that is over leaves the state. `lock.freed` has the reason: "
        f"{_list(lock.REASONS)}. A grant and a renewal name the claim's token.",
    )


def diagram(life: Life, ended: Iterable[str], start: str = "") -> str:
    """Return a Mermaid state diagram, with all events of one arrow in its label.

    The entry leads to `start`, and to every state that follows the empty state.
    """
    arrows: dict[tuple[str, str], list[str]] = {}
    for (before, event), after in life.items():
        arrows.setdefault((before or "[*]", after), []).append(event.replace(":", " "))
    lines = [f"    [*] --> {start}"] if start else []
    lines += [
        f"    {before} --> {after}: {', '.join(events)}"
        for (before, after), events in arrows.items()
    ]
    lines += [f"    {state} --> [*]" for state in ended]
    return block("\n".join(["stateDiagram-v2", *lines]), "mermaid")


def rows(life: Life) -> str:
    lines = [
        (code(before) or "(none)", code(event), code(after), source(event))
        for (before, event), after in life.items()
    ]
    return table(("state", "event", "state after it", "recorded by"), lines)


def source(event: str) -> str:
    """Return the writer of this event's fact, or the cause of an event that is not a fact."""
    kind = event.split(":")[0]
    return FOLLOWS[kind] if kind in FOLLOWS else WRITER_OF[KINDS[kind]]


def _list(states: Iterable[str]) -> str:
    return ", ".join(code(state) for state in states)


def _either(states: Iterable[str]) -> str:
    return " or ".join(code(state) for state in states)
