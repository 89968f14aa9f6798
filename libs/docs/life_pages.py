"""docs/{job,gpu,node}-life.md: a diagram and a table for each literal table of
libs/common/*_life.py.
"""

from collections.abc import Iterable
from typing import Final

from libs.common.facts import KINDS
from libs.common.life import gpu_life as gpu
from libs.common.life import job_life as job
from libs.common.life import node_life as node
from libs.common.subjects import WRITER_OF
from libs.docs.markdown import block, code, page, prose, table

Life = dict[tuple[str, str], str]

# Events that are no fact's kind, and what brings them about.
FOLLOWS: Final = {
    "members.started": "follows: no member waits to start any more",
    "members.ended": "follows: no member runs any more",
    "node.replaced": "follows: an agent with another state directory registered",
    "gpu.moved": "follows: another node reports one of its devices now",
}
BY_THE_TABLES: Final = (
    "An event that has no row in its state changes nothing: it is counted as ignored, by the "
    "same rule in every reader "
    "(`libs/common/fold.py`). What `decide` wants to record is checked against the same "
    "table before it is appended."
)


def job_life() -> str:
    waits = [(code(state), f"{job.WAITS_FOR[state]}") for state in job.LIVE]
    return page(
        "A job's life",
        prose(job.__doc__),
        diagram(job.JOB_LIFE, job.ENDED),
        BY_THE_TABLES,
        rows(job.JOB_LIFE),
        "## What a job waits for",
        table(("state", "it waits for"), waits),
        f"Ended: {_list(job.ENDED)}. An ended job sees nothing more.",
        "## A member's life",
        (
            "A member is one node's part of an attempt; the job's state follows from its "
            "members' states alone, in whatever order they spoke."
        ),
        diagram(job.MEMBER_LIFE, ()),
        rows(job.MEMBER_LIFE),
        (
            "Nothing of an attempt is alive, and it can be closed, when every member is one of "
            f"{_list(job.MEMBER_OVER)}."
        ),
    )


def gpu_life() -> str:
    shown = [(code(use), code(health), code(word)) for (use, health), word in gpu.SHOWN.items()]
    return page(
        "A GPU's life",
        prose(gpu.__doc__),
        "## Health",
        diagram(gpu.HEALTH_LIFE, (), gpu.HEALTHY),
        BY_THE_TABLES,
        rows(gpu.HEALTH_LIFE),
        f"New work is placed on a device that is {_list(gpu.USABLE)}, and that operators "
        f"have {code(gpu.ONLINE)} "
        f"(of {_list(gpu.SERVICES)}: `gpu.service_set`, which no health undoes).",
        "## What people are shown",
        f"The reason `{gpu.QUARANTINED}` shows ERROR, the reason `{gpu.DRAINING}`, or a "
        f"device that is not {gpu.ONLINE}, MAINTENANCE; "
        "otherwise:",
        table(("use", "health", "shown"), shown),
    )


def node_life() -> str:
    return page(
        "A node's life",
        prose(node.__doc__),
        diagram(node.NODE_LIFE, ()),
        BY_THE_TABLES,
        rows(node.NODE_LIFE),
        f"Work is placed on a node that is {_list(node.USABLE)}.",
    )


def diagram(life: Life, ended: Iterable[str], start: str = "") -> str:
    """A Mermaid state diagram; the events of one arrow stand together on it.

    No state, and `start`, is the entry.
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
    """Who records the fact that this event is, or from what it follows."""
    kind = event.split(":")[0]
    return FOLLOWS[kind] if kind in FOLLOWS else WRITER_OF[KINDS[kind]]


def _list(states: Iterable[str]) -> str:
    return ", ".join(code(state) for state in states)
