"""Questions about the past: `why JOB --at SEQ`, answered in a child process with a deadline.

The child restores the state from a snapshot, the log and the archive. That never happens in the
scheduler's own process, because a fold of minutes would delay heartbeats. One child runs at a time,
as `python -m services.scheduler.questions.past` with a Question on its standard input. It has the
scheduler's settings and identity, and only reads.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import aclosing
from typing import Final

import msgspec

from libs.common import fold, reading
from libs.common.errors import MusterError
from libs.common.model import JobId, TenantId
from libs.common.settings.configuration import read
from libs.common.transport import connection_nats, log_jetstream, signed_snapshots, snapshot_store
from libs.common.transport.archive import whole
from libs.common.transport.bus import Bus
from libs.common.transport.bus_nats import NatsBus
from libs.common.transport.log import Log
from libs.common.transport.objects_nats import NatsObjects
from libs.common.transport.snapshot_store import SnapshotStore
from services.scheduler.explain.explain import explain, no_answer
from services.scheduler.placement.strategies import DEFAULT
from services.scheduler.plugins import plugins
from services.scheduler.questions.aside import forked
from services.scheduler.state.state import State

DEADLINE_S: Final = 30.0
# Fraction of MUSTER_ASK_PAST_MS, so that the answer comes before the gateway's deadline.
DEADLINE_PART: Final = 0.85
# Number of waiting questions; more are refused.
WAITING_MAX: Final = 4
# The child ends itself this long after its deadline, in case its parent is gone.
ALONE_S: Final = 5
ANSWER_BYTES_MAX: Final = 1 << 19
# Lower priority than the processes that answer heartbeats.
NICENESS: Final = 10


class Question(msgspec.Struct, frozen=True):
    """A question about the past: why a job waited as of commit `at`.

    `asker` as in `WhyAsk`.
    """

    at: int
    job_id: JobId
    asker: TenantId | None = TenantId("")


class Past:
    """The queue of questions about the past. `line` is the command that starts the child."""

    def __init__(
        self,
        line: Sequence[str] = (sys.executable, "-m", "services.scheduler.questions.past"),
        deadline_s: float = DEADLINE_S,
    ) -> None:
        self.line = tuple(line)
        self.deadline_s = deadline_s
        self.turn = asyncio.Lock()
        self.waiting = 0

    async def answer(self, question: Question) -> bytes:
        """Return the explanation as JSON, or an answer of the same form that says why there is
        none.
        """
        if self.waiting >= WAITING_MAX:
            return _no_answer(
                question, f"{WAITING_MAX} such questions wait already: ask again in a moment"
            )
        self.waiting += 1
        try:
            async with self.turn:
                return await self._ask(question)
        finally:
            self.waiting -= 1

    async def _ask(self, question: Question) -> bytes:
        at = question.at
        child = await asyncio.create_subprocess_exec(
            *self.line, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        try:
            async with asyncio.timeout(self.deadline_s):
                answer_bytes, _ = await child.communicate(msgspec.json.encode(question))
        except TimeoutError:
            return _no_answer(
                question, f"the log up to {at} could not be folded within {self.deadline_s:.0f} s"
            )
        finally:
            if child.returncode is None:
                child.kill()
                await child.wait()
        if child.returncode or not 0 < len(answer_bytes) <= ANSWER_BYTES_MAX:
            return _no_answer(
                question,
                (
                    f"the log up to {at} could not be folded: "
                    f"{answer_bytes.decode(errors='replace')[:400].strip()}"
                ),
            )
        return answer_bytes


def _no_answer(question: Question, text: str) -> bytes:
    return msgspec.json.encode(no_answer(question.job_id, "unknown", text, question.at))


async def state_at(
    log: Log,
    bus: Bus,
    store: SnapshotStore,
    seq: int,
    placement: str = DEFAULT,
    grow_after_s: int = 0,
) -> State:
    """Return the state as of a past sequence, restored from the last snapshot before it.

    Raises Unavailable if the log and the archive lack what is needed.
    """
    cluster = await snapshot_store.newest(store, seq)
    async with aclosing(whole(log, bus, cluster.seq, seq)) as batches:
        async for batch in batches:
            for entry in batch:
                if entry.seq > seq:
                    return State(cluster, placement=placement, grow_after_s=grow_after_s)
                commit = reading.read(cluster.writers, entry.subject, entry.data)
                fold.apply_entry(cluster, entry.seq, entry.subject, commit)
            if not batch or cluster.seq >= seq:
                return State(cluster, placement=placement, grow_after_s=grow_after_s)
    return State(cluster, placement=placement, grow_after_s=grow_after_s)


async def main(question: Question) -> bytes:
    """Answer one question; this is the child's whole work."""
    settings = read()
    plugins.load()
    client = await connection_nats.connect_as(settings, "scheduler")
    try:
        log, kept = (
            log_jetstream.JetStreamLog(client),
            signed_snapshots.of(settings, NatsObjects(client)),
        )
        state = await state_at(
            log=log,
            bus=NatsBus(client),
            store=kept,
            seq=question.at,
            placement=settings.placement,
            grow_after_s=settings.grow_after_s,
        )
        state.asker = question.asker
        return msgspec.json.encode(explain(state, question.job_id, forked))
    finally:
        await client.close()


if __name__ == "__main__":
    os.nice(NICENESS)
    try:
        signal.alarm(read().ask_past_ms // 1_000 + ALONE_S)
        sys.stdout.buffer.write(
            asyncio.run(main(msgspec.json.decode(sys.stdin.buffer.read(), type=Question)))
        )
    except MusterError as error:
        print(error)
        sys.exit(error.exit_code)
