"""Collects the evidence of a job from all of its nodes at once, and records the verdict.

Users who ask while a diagnosis of the job runs get its result. Tests:
tests/integration/test_gateway_diagnoses.py.
"""

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from libs.common.diagnosis.evidence import DiagnosisAsk, NodeSeen
from libs.common.errors import Unavailable
from libs.common.life import job_life
from libs.common.messages.senders import readable
from libs.common.model import JobId, NodeId
from libs.common.state.cluster import Job, MemberView
from libs.common.subjects import ask_node
from libs.common.transport.bus import Bus
from services.api_gateway.access.slots import DIAGNOSIS, Slots

# A node that has not answered after this time gives no evidence. A diagnosis takes about 3 s.
NODE_S: Final = 8.0
NODES_AT_ONCE: Final = 64
# Diagnoses of one gateway at once, and with those that wait: in all, and of one tenant.
AT_ONCE: Final = 8
WAITING_MAX: Final = 64
TENANT_WAITING_MAX: Final = 16

_seen = msgspec.msgpack.Decoder(NodeSeen)
_encode = msgspec.msgpack.Encoder().encode


class Busy(Exception):
    """The gateway has too many diagnoses at once, in all or of one tenant."""


class Examination(NamedTuple):
    """One diagnosis of an attempt under way. `dumps`: see DiagnosisAsk."""

    job_id: JobId
    attempt: int
    dumps: bool


class Evidence:
    """The evidence that one gateway collects.

    `open` has the diagnoses under way, and `tenants` their tenants.
    """

    def __init__(self, bus: Bus, slots: Slots) -> None:
        self.bus = bus
        self.slots = slots
        self.open: dict[Examination, asyncio.Task[list[NodeSeen]]] = {}
        self.tenants: dict[Examination, str] = {}
        self.turns = asyncio.Semaphore(AT_ONCE)

    async def of(self, job: Job, dumps: bool) -> list[NodeSeen]:
        """Return the evidence of all members of the job's attempt. `dumps`: see DiagnosisAsk.

        Raises Busy.
        """
        key = Examination(job.job_id, job.attempt, dumps)
        task = self.open.get(key)
        if task is None:
            own = list(self.tenants.values()).count(job.tenant)
            if len(self.open) >= WAITING_MAX or own >= TENANT_WAITING_MAX:
                raise Busy
            ask = DiagnosisAsk(job.job_id, job.attempt, dumps=dumps)
            task = asyncio.create_task(self._in_turn(ask, job.tenant, _members(job)))
            self.open[key] = task
            self.tenants[key] = job.tenant
            task.add_done_callback(lambda _: self._close(key))
        return await asyncio.shield(task)

    def _close(self, key: Examination) -> None:
        self.open.pop(key, None)
        self.tenants.pop(key, None)

    async def kept(self, job: Job) -> list[NodeSeen]:
        """Return the evidence of the last diagnosis, as the nodes kept it."""
        ask = DiagnosisAsk(job.job_id, job.attempt, kept=True)
        return await self._in_turn(ask, job.tenant, _members(job))

    async def _in_turn(
        self, ask: DiagnosisAsk, tenant: str, members: Sequence[MemberView]
    ) -> list[NodeSeen]:
        at_once = asyncio.Semaphore(NODES_AT_ONCE)

        async def seen(member: MemberView) -> NodeSeen:
            async with at_once:
                return await self._seen(member, ask)

        async with self.slots.of(DIAGNOSIS, tenant), self.turns:
            return list(await asyncio.gather(*map(seen, members)))

    async def _seen(self, member: MemberView, ask: DiagnosisAsk) -> NodeSeen:
        """Return the evidence of one member; a node without an answer is evidence too."""
        node_id = member.node_id
        if member.state in job_life.MEMBER_OVER and not ask.kept:
            return NodeSeen(node_id, member.rank, ended=_end_words(member))
        try:
            found = await self.bus.request(ask_node(node_id, "diagnosis"), _encode(ask), NODE_S)
            return _checked(readable(_seen, found, node_id), node_id, member.rank)
        except Unavailable as error:
            return NodeSeen(node_id, member.rank, error=str(error))


def _members(job: Job) -> list[MemberView]:
    """Return the members of the present attempt; the next one has others."""
    return sorted(job.members.values(), key=lambda member: member.rank)


def _checked(seen: NodeSeen, node_id: NodeId, rank: int) -> NodeSeen:
    """Return the evidence under the name and the rank that the log has for its sender."""
    return msgspec.structs.replace(seen, node_id=node_id, member=rank)


def _end_words(member: MemberView) -> str:
    return member.detail or member.reason or f"exit code {member.exit_code}"
