"""The changes that a client watches, and the journal that clients with the same interest share.

Pure. A journal has each changed job and node once, with the tick of its last change. Each reader
remembers the tick up to which it has read. So a change costs the same with one reader as with a
thousand, and the size of the state bounds the journal. Tests: tests/unit/test_interests.py.
"""

from collections.abc import Collection, Iterable
from typing import Final, TypeVar

import msgspec

from libs.common.life import job_life
from libs.common.model import JobId, NodeId
from libs.common.state.cluster import Job
from libs.common.state.ordering import DEFAULT_QUEUE

# A journal is shortened when it has this many entries more than after the last time.
SHORTEN_AFTER: Final = 1_000

N = TypeVar("N", JobId, NodeId)


class JobFilter(msgspec.Struct, frozen=True):
    """A filter of jobs; an empty field accepts all.

    `only` are the only jobs. Without it and `states`, live jobs match at the beginning, and every
    change. An array is one job; its elements match only with `elements`, or if `only` has them.
    """

    states: tuple[str, ...] = ()
    tenant: str = ""
    user: str = ""
    queue: str = ""
    node: str = ""
    kind: str = ""
    only: frozenset[JobId] = frozenset()
    elements: bool = False

    def is_of(self, job: Job) -> bool:
        """Return whether the fields that never change match the job."""
        if self.only:
            return job.job_id in self.only
        spec = job.spec
        return (
            (self.elements or not job.array)
            and self.tenant in ("", job.tenant)
            and self.user in ("", job.user)
            and self.kind in ("", spec.kind)
            and self.queue in ("", spec.queue or DEFAULT_QUEUE)
        )

    def matches(self, job: Job) -> bool:
        """Return whether the job matches now, for a client that begins."""
        states = self.states or (() if self.only else job_life.LIVE)
        return (
            self.is_of(job)
            and (not states or job.state in states)
            and (not self.node or self.node in job.members)
        )

    def wants(self, job: Job, before: str, nodes: Collection[NodeId]) -> bool:
        """Return whether a client must learn of a change: the job matches, or matched before.

        `before` is the state before the change, empty for a new job; `nodes` are the nodes that
        changed with it, for example those that the job left.
        """
        return (
            self.is_of(job)
            and (not self.states or job.state in self.states or before in self.states)
            and (not self.node or self.node in job.members or self.node in nodes)
        )


class Interest(msgspec.Struct, frozen=True):
    """The changes that some clients want, all of them the same.

    `tenant` is the only tenant whose jobs the clients may see; None for all. `jobs` is None if they
    want no jobs. `devices`: also the nodes where only the use of a device changed.
    """

    tenant: str | None = None
    jobs: JobFilter | None = None
    nodes: bool = False
    devices: bool = False


class Journal:
    """The jobs and nodes that changed, in the order of their last changes."""

    def __init__(self, interest: Interest) -> None:
        self.interest = interest
        self.tick = 0
        self.jobs: dict[JobId, int] = {}
        self.nodes: dict[NodeId, int] = {}
        self._short = 0

    def note_job(self, job_id: JobId) -> None:
        self.tick += 1
        self.jobs.pop(job_id, None)
        self.jobs[job_id] = self.tick

    def note_nodes(self, nodes: Iterable[NodeId]) -> None:
        for node_id in nodes:
            self.tick += 1
            self.nodes.pop(node_id, None)
            self.nodes[node_id] = self.tick

    def since(self, tick: int) -> tuple[list[JobId], list[NodeId]]:
        """Return the jobs and the nodes that changed after `tick`."""
        return _after(self.jobs, tick), _after(self.nodes, tick)

    @property
    def is_long(self) -> bool:
        return len(self.jobs) + len(self.nodes) > self._short + SHORTEN_AFTER

    def shorten(self, tick: int) -> None:
        """Forget the changes up to `tick`, which every reader has read."""
        self.jobs = {name: at for name, at in self.jobs.items() if at > tick}
        self.nodes = {name: at for name, at in self.nodes.items() if at > tick}
        self._short = len(self.jobs) + len(self.nodes)


def _after(changes: dict[N, int], tick: int) -> list[N]:
    found: list[N] = []
    for name, at in reversed(changes.items()):
        if at <= tick:
            break
        found.append(name)
    found.reverse()
    return found
