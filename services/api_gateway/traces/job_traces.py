"""Begins, watches and reads traces of one attempt on all its nodes.

The first node's clock is the reference. Tests: tests/integration/test_traces_cluster.py.
"""

import asyncio
import gzip
import re
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Final

import msgspec

from libs.common import facts as f
from libs.common import reading, subjects
from libs.common.errors import Unavailable
from libs.common.life import job_life
from libs.common.messages import trace_messages as m
from libs.common.model import NodeId
from libs.common.state.cluster import Job
from libs.common.traces.chrome_events import CLOSING, opening
from libs.common.traces.clock_offset import point_of
from services.api_gateway.access.slots import NODE
from services.api_gateway.gateway import Gateway
from services.api_gateway.intents.trace_intents import TraceBody
from services.api_gateway.problems import Problem
from services.api_gateway.traces import clocks
from services.api_gateway.traces.shown import TraceShown, about, is_captured, shown

MS_NS: Final = 1_000_000
ID_BYTES: Final = 8
NAME: Final = re.compile(r"(\d{1,9})-([0-9a-f]{16})")
STATUS: Final = {m.UNKNOWN: 404, m.BUSY: 409, m.NOTHING: 409, m.INVALID: 422}

_state = msgspec.msgpack.Decoder(m.TraceState)
_listed = msgspec.msgpack.Decoder(m.TraceListed)
_part = msgspec.msgpack.Decoder(m.TracePart)

States = dict[NodeId, m.TraceState]


async def begun(gateway: Gateway, job: Job, asked: TraceBody) -> TraceShown:
    """Begin a trace on all nodes of a running job. Raises Problem."""
    nodes = _running(job)
    found = await clocks.measured(gateway, nodes)
    if nodes[0] not in found:
        raise _silent(nodes[0], None)
    trace = secrets.token_hex(ID_BYTES)
    reference = found[nodes[0]]
    start_ns = (time.time_ns() // MS_NS + gateway.settings.trace_lead_ms) * MS_NS

    def order(node: NodeId) -> m.TraceBegin:
        return m.TraceBegin(
            trace=trace,
            job_id=job.job_id,
            attempt=job.attempt,
            start_ns=start_ns + found[node].offset_ns,
            duration_ms=asked.duration_s * 1_000,
            point=point_of(found[node], reference),
            origin_ns=start_ns + reference.offset_ns,
            place=job.members[node].rank * m.PLACES_PER_NODE,
            ranks=tuple(asked.ranks),
            stacks=asked.stacks,
            shapes=asked.shapes,
            memory=asked.memory,
        )

    states = await _each(gateway, [node for node in nodes if node in found], order)
    if all(state.fault for state in states.values()):
        first = _worst(states)
        raise Problem(STATUS.get(first.fault, 409), f"cannot trace job {job.job_id}: {first.text}")
    return shown(f"{job.attempt}-{trace}", job.job_id, job.attempt, states)


async def watched(gateway: Gateway, job: Job, name: str) -> TraceShown:
    """Return a trace; when all nodes have their files, measure the clocks again. Raises Problem."""
    attempt, trace = _parsed(job, name)
    nodes = await _nodes_of(gateway, job, attempt)
    states = await _each(gateway, nodes, lambda node: m.TracePoll(trace, job.job_id, attempt))
    if is_captured(states):
        states |= await _finished(gateway, job, attempt, trace, states)
    if all(state.fault == m.UNKNOWN for state in states.values()):
        raise Problem(
            404,
            f"job {job.job_id} has no trace {name}: nodes keep the last ones only; trace again "
            "with `muster trace`",
        )
    return shown(name, job.job_id, attempt, states)


async def listed(gateway: Gateway, job: Job) -> list[TraceShown]:
    """Return the traces of a job that its present nodes have, the newest first."""
    nodes = _ordered(job)

    async def one(node: NodeId) -> Sequence[m.TraceState]:
        try:
            answer = await _asked(gateway, node, m.TraceList(job.job_id))
            return _listed.decode(answer).traces
        except (Unavailable, *f.UNDECODABLE):
            return ()

    by_name: dict[tuple[int, str], States] = {}
    for node, states in zip(nodes, await asyncio.gather(*map(one, nodes)), strict=True):
        for state in states:
            by_name.setdefault((state.attempt, state.trace), {})[node] = state
    rows = [
        shown(f"{attempt}-{trace}", job.job_id, attempt, states)
        for (attempt, trace), states in by_name.items()
    ]
    return sorted(rows, key=lambda row: -row.origin_ns)


async def file(gateway: Gateway, trace: TraceShown, tenant: str) -> AsyncGenerator[bytes, None]:
    """Yield the merged trace: gzip members of the nodes, between an opening and a closing one.

    Each part waits for a place of the asking `tenant`. Raises Problem if a node stops answering;
    the file then has no end and no reader accepts it.
    """
    yield gzip.compress(opening(about(trace)), mtime=0)
    for node in trace.nodes:
        count = sum(rank.node_id == node.node_id for rank in trace.ranks)
        for number in range(count if node.state == m.READY else 0):
            async for piece in _file(gateway, trace, tenant, NodeId(node.node_id), number):
                yield piece
    yield gzip.compress(CLOSING, mtime=0)


async def _file(
    gateway: Gateway, trace: TraceShown, tenant: str, node: NodeId, number: int
) -> AsyncGenerator[bytes, None]:
    """Yield one process's file. Raises Problem."""
    offset, size = 0, 1
    while offset < size:
        ask = m.TraceRead(
            trace.id.partition("-")[2], trace.job_id, trace.attempt, file=number, offset=offset
        )
        try:
            async with gateway.slots.of(NODE, tenant):
                part = _part.decode(await _asked(gateway, node, ask))
        except (Unavailable, *f.UNDECODABLE) as error:
            raise _silent(node, error) from error
        if part.fault:
            raise Problem(410, part.text)
        size = part.size_bytes
        if not part.data:
            return
        offset += len(part.data)
        yield part.data


async def _finished(
    gateway: Gateway, job: Job, attempt: int, trace: str, states: Mapping[NodeId, m.TraceState]
) -> States:
    """Send the second measurement to the nodes that wait for it."""
    first = next(iter(states))
    asked = [node for node, state in states.items() if node == first or not state.fault]
    found = await clocks.measured(gateway, asked)
    waiting = [node for node in found if states[node].state == m.CAPTURED]
    if first not in found:
        return {}
    reference = found[first]
    return await _each(
        gateway,
        waiting,
        lambda node: m.TraceFinish(trace, job.job_id, attempt, point_of(found[node], reference)),
    )


async def _each(
    gateway: Gateway, nodes: Sequence[NodeId], make: Callable[[NodeId], m.TraceAsk]
) -> States:
    """Ask each node; one that does not answer has a state that says so."""

    async def one(node: NodeId) -> m.TraceState:
        try:
            return _state.decode(await _asked(gateway, node, make(node)))
        except (Unavailable, *f.UNDECODABLE) as error:
            return m.TraceState(fault=m.NOTHING, text=f"node {node} does not answer ({error})")

    return dict(zip(nodes, await asyncio.gather(*map(one, nodes)), strict=True))


async def _asked(gateway: Gateway, node: NodeId, ask: m.TraceAsk) -> bytes:
    return await gateway.bus.request(
        subjects.ask_node(node, "trace"), clocks.encoded(ask), gateway.settings.ask_ms / 1_000
    )


def _running(job: Job) -> list[NodeId]:
    """Return the nodes of a job that runs. Raises Problem."""
    nodes = _ordered(job)
    if job.state != job_life.RUNNING or not nodes:
        raise Problem(
            409,
            f"job {job.job_id} is {job.state}: only a running job can be traced",
            state=job.state,
        )
    return nodes


def _ordered(job: Job) -> list[NodeId]:
    members = sorted(job.members.values(), key=lambda member: member.rank)
    return [member.node_id for member in members]


async def _nodes_of(gateway: Gateway, job: Job, attempt: int) -> list[NodeId]:
    """Return the nodes of an attempt, from the log for an earlier one. Raises Problem."""
    if attempt == job.attempt:
        return _ordered(job)
    for seq in reversed(gateway.history.of(job.job_id)):
        entry = await gateway.entries.get(seq)
        for fact in reading.read_alone(entry.subject, entry.data).facts if entry else ():
            if (
                isinstance(fact, f.JobPlaced)
                and fact.job_id == job.job_id
                and fact.attempt == attempt
            ):
                members = sorted(fact.members, key=lambda member: member.rank)
                return [member.node_id for member in members]
    raise Problem(410, f"the nodes of attempt {attempt} of job {job.job_id} are not known any more")


def _parsed(job: Job, name: str) -> tuple[int, str]:
    """Return the attempt and the id on its nodes. Raises Problem."""
    found = NAME.fullmatch(name)
    if found is None or not 1 <= int(found[1]) <= job.attempt:
        raise Problem(
            404,
            f"job {job.job_id} has no trace {name[:64]!r}: list them with GET "
            f"/v1/jobs/{job.job_id}/traces",
        )
    return int(found[1]), found[2]


def _worst(states: Mapping[NodeId, m.TraceState]) -> m.TraceState:
    """Return the state whose fault explains best: one that the asker can change first."""
    order = (m.BUSY, m.INVALID, m.NOTHING, m.UNKNOWN)
    return min(states.values(), key=lambda state: order.index(state.fault))


def _silent(node: NodeId, error: Exception | None) -> Problem:
    why = f" ({error})" if error is not None else ""
    return Problem(503, f"node {node} does not answer{why}: see its state with `muster nodes`")
