"""Result of a run: the broken rule if any, the story, and the log's digest and end."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

import msgspec

from libs.common.reading import read_alone

if TYPE_CHECKING:
    from tests.sim.world import World

TAIL_FACTS: Final = 30


class Found(msgspec.Struct, frozen=True):
    """A broken rule."""

    checker: str
    message: str
    at_s: float


class Result(msgspec.Struct, frozen=True):
    """Result of a run; its digest covers every byte of the log."""

    seed: int
    found: Found | None
    digest: str
    commits: int
    facts: int
    virtual_s: float
    ends: dict[str, int]
    faults: dict[str, int]
    story: list[tuple[float, str]]
    tail: list[str]


def result_of(world: World) -> Result:
    digest = hashlib.sha256()
    for entry in world.stream.entries:
        digest.update(
            b"%d %b %d " % (entry.seq, entry.subject.encode(), len(entry.data)) + entry.data
        )
    ends: dict[str, int] = {}
    for job in world.reference.jobs.values():
        ends[job.state] = ends.get(job.state, 0) + 1
    return Result(
        seed=world.plan.seed,
        found=world.found,
        digest=digest.hexdigest(),
        commits=len(world.stream.entries),
        facts=world.reference.facts,
        virtual_s=world.loop.now,
        ends=ends,
        faults=dict(sorted(world.weather.counts.items())),
        story=world.weather.story,
        tail=_tail(world),
    )


def _tail(world: World) -> list[str]:
    """Return the last facts of the log as text, one per line."""
    lines = []
    for entry in world.stream.entries[-TAIL_FACTS:]:
        commit = read_alone(entry.subject, entry.data)
        lines += [
            f"{entry.seq:6} {entry.subject} epoch {commit.epoch} seen {commit.seen}: {fact}"
            for fact in commit.facts
        ]
    return lines[-TAIL_FACTS:]
