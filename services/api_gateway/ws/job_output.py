"""The topic `logs`: the output of one member of a job, as its node sends it.

A frame has some bytes in base64, where they begin, and where the next ones do. A client that comes
back gives the `attempt` and the `next_offset` of its last frame. Tests:
tests/integration/test_gateway_ws_logs.py.
"""

from base64 import b64encode
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

from libs.common.errors import Refused
from libs.common.state.cluster import Job
from services.api_gateway.access.roles import Principal
from services.api_gateway.channels.relay import Reader
from services.api_gateway.problems import Problem
from services.api_gateway.views.elements import no_output
from services.api_gateway.views.jobs import ended
from services.api_gateway.ws.filters import LogsFilter
from services.api_gateway.ws.frames import Name, encoded
from services.api_gateway.ws.topics import Batch

if TYPE_CHECKING:
    from services.api_gateway.gateway import Gateway

LOG: Final = "log"
END: Final = "end"
# Bytes of output in one frame.
FRAME_BYTES: Final = 48 << 10


def job_of(gateway: "Gateway", principal: Principal, chosen: LogsFilter) -> Job:
    """Return the job whose output is asked for.

    Raises Problem if there is none or it has no output, and Refused if it has no such rank or
    attempt.
    """
    job = gateway.lookup.job(chosen.job, principal)
    if job.elements is not None:
        raise Problem(409, f"filter.job: {no_output(job)}")
    if chosen.rank >= job.spec.most_nodes:
        raise Refused(
            f"filter.rank: job {job.job_id} has no rank {chosen.rank}: give 0 to "
            f"{job.spec.most_nodes - 1}"
        )
    if chosen.attempt > job.attempt:
        raise Refused(
            f"filter.attempt: job {job.job_id} has no attempt {chosen.attempt}: give 1 to "
            f"{job.attempt}, or 0 for the current one"
        )
    return job


async def log_batches(
    gateway: "Gateway", job: Job, chosen: LogsFilter, name: Name
) -> AsyncGenerator[Batch, None]:
    """Yield the output until the attempt, or with `attempt` 0 the job, has ended."""
    attempt, offset = chosen.attempt or job.attempt, chosen.offset
    while True:
        reader = Reader(gateway, job, attempt=attempt, rank=chosen.rank, stream=chosen.stream)
        await reader.find()
        if chosen.tail_bytes and reader.node_id is not None:
            offset = max(offset, await reader.end_offset() - chosen.tail_bytes)
        async with aclosing(reader.pieces(offset, follow=True)) as pieces:
            async for piece in pieces:
                for first in range(0, len(piece.data), FRAME_BYTES):
                    data = piece.data[first : first + FRAME_BYTES]
                    offset = piece.offset + first + len(data)
                    seq = gateway.cluster.seq
                    yield Batch([_frame(name, seq, chosen, job, attempt, offset, data)], 0)
        if chosen.attempt:
            break
        while job.attempt == attempt and not ended(job):
            await gateway.waiting.job(job.job_id, gateway.settings.keepalive_ms / 1_000)
        if job.attempt == attempt:
            break
        attempt, offset = attempt + 1, 0
    last = {
        "job": job.job_id,
        "rank": chosen.rank,
        "stream": chosen.stream,
        "attempt": attempt,
        "next_offset": offset,
        "state": job.state,
        "gone": reader.gone,
    }
    yield Batch([name.frame(END, gateway.cluster.seq, encoded(last))], 0)


def _frame(
    name: Name, seq: int, chosen: LogsFilter, job: Job, attempt: int, offset: int, data: bytes
) -> bytes:
    fields = {
        "job": job.job_id,
        "rank": chosen.rank,
        "stream": chosen.stream,
        "attempt": attempt,
        "offset": offset - len(data),
        "next_offset": offset,
        "data": b64encode(data).decode(),
    }
    return name.frame(LOG, seq, encoded(fields))
