"""A writer: one subject, one live process, commits in order, one in flight, facts decided meanwhile
grouped into the next.

It owns the protocol of an append whose outcome is not known: read the subject's last message from
the leader; mine = done, still the expected sequence = retry with the same id (bounded), anything
else = fenced. Run by the shell (`service.py`), the gateway and the agents alike.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from libs.common import facts as f
from libs.common import reading
from libs.common.errors import Fenced, Refused, Unavailable
from libs.common.facts import AnyFact, Commit
from libs.common.process.clock import Clock, warn_if_behind
from libs.common.transport.log import AppendRefused, AppendUnknown, Entry, Log

# An election takes 4 to 9 s; past this the process gives up, and its supervisor starts it again.
APPEND_BUDGET_S: Final = 45.0
RETRY_FIRST_S: Final = 0.05
RETRY_MAX_S: Final = 1.0
GROUP_FACTS_MAX: Final = 256
WAITING_GROUPS_MAX: Final = 20_000
# An agent's clock that was set back by more than this starts over from its present time.
AHEAD_MAX_NS: Final = 3_600_000_000_000
# Above every sequence: before the attachment no entry is ours.
NOT_ATTACHED: Final = 1 << 63


logger = logging.getLogger(__name__)


class Group(NamedTuple):
    """Facts that stay together, and what had been applied when they were decided."""

    facts: Sequence[AnyFact]
    future: asyncio.Future[int]
    seen: int


def was_stored(future: asyncio.Future[int]) -> bool:
    """Whether the log has it, once the future is done; else the writer, or who waited, ended
    before.
    """
    return not future.cancelled() and future.exception() is None


class Writer:
    """`seen`, the sequence applied so far, is asked when facts are put: a commit carries the lowest
    of its groups.

    `epoch`, the term or incarnation, is read at each commit.
    """

    def __init__(
        self,
        log: Log,
        clock: Clock,
        subject: str,
        seen: Callable[[], int],
        budget_s: float = APPEND_BUDGET_S,
    ) -> None:
        self.log = log
        self.budget_s = budget_s
        self.clock = clock
        self.subject = subject
        self.seen = seen
        self.epoch = 0
        self.attached_seq = NOT_ATTACHED
        self.attached_to: Entry | None = None
        self.expected = 0
        self.number = 0
        self.last_at_ns = 0
        self.last_boot_ns = 0
        self.in_flight: bytes = b""
        self.acked_boot_ns = 0
        self._waiting: deque[Group] = deque()
        self._wake = asyncio.Event()

    async def attach(self) -> int:
        """Learn where the subject stands, from the leader.

        Returns the sequence of the subject's last message: the caller must have folded up to it
        before it decides.
        """
        last = await self._last(self.clock.boot_ns())
        self.expected, self.number, self.last_at_ns, self.in_flight = 0, 0, 0, b""
        if last is not None:
            commit = reading.read_alone(self.subject, last.data)
            self.expected, self.number, self.last_at_ns = (
                last.seq,
                commit.number,
                self._last_at_ns(commit),
            )
        self.attached_seq, self.attached_to = self.expected, last
        self.last_boot_ns = self.clock.boot_ns()
        warn_if_behind(self.clock, self.subject, self.last_at_ns)
        return self.expected

    def _last_at_ns(self, commit: Commit) -> int:
        """The time from which this writer goes on.

        On a subject that may hold forged commits a time far ahead is not believed.
        """
        if (
            reading.is_untrusted(self.subject)
            and commit.at_ns > self.clock.wall_ns() + AHEAD_MAX_NS
        ):
            return 0
        return commit.at_ns

    def now_ns(self) -> int:
        """The wall clock, never before this writer's last commit.

        Where the wall clock was set back, or this machine's is behind, time goes on at half its
        speed until that has caught up: whoever waits for it does not wait for ever.
        """
        return max(
            self.clock.wall_ns(), self.last_at_ns + (self.clock.boot_ns() - self.last_boot_ns) // 2
        )

    def put(self, facts: Sequence[AnyFact]) -> asyncio.Future[int]:
        """Queue one group of facts, kept whole in one commit; the future gives the commit's
        sequence.

        Raises Refused when too much waits.
        """
        if len(self._waiting) >= WAITING_GROUPS_MAX:
            raise Refused(
                f"{WAITING_GROUPS_MAX} commits wait for the log: try again in a few seconds"
            )
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.append(Group(facts, future, self.seen()))
        self._wake.set()
        return future

    @property
    def idle(self) -> bool:
        """Nothing waits and nothing is in flight."""
        return not self._waiting and not self.in_flight

    def owns(self, entry: Entry) -> bool:
        """Whether an entry read back on this subject is ours; raises Fenced when another wrote it
        after we attached.

        Up to `expected` every commit after the attachment is ours, for each of ours named the one
        before it.
        """
        if entry.seq <= self.attached_seq:
            return False
        if entry.seq <= self.expected or entry.data == self.in_flight:
            return True
        raise Fenced(f"another process writes {self.subject}: this one stands down")

    async def check_alone(self) -> None:
        """Check for another writer of this subject while nothing is to be appended.

        Raises Fenced.
        """
        try:
            last = await self.log.last(self.subject) if self.idle else None
        except Unavailable:
            return
        if last is not None and last.seq > self.expected and self.idle:
            raise Fenced(f"another process writes {self.subject}: commit {last.seq} is not ours")

    async def run(self) -> None:
        """Commit what is queued, for ever.

        Raises Fenced or Unavailable; whoever waits when this ends hears Unavailable, for nobody
        else would ever tell.
        """
        groups: list[Group] = []
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self._waiting:
                    groups, data = self._next()
                    if not groups:
                        continue
                    seq = await self._store(data)
                    for group in groups:
                        if not group.future.done():
                            group.future.set_result(seq)
        finally:
            for group in (*groups, *self._waiting):
                if not group.future.done():
                    group.future.set_exception(
                        Unavailable("this process stopped before the log had answered")
                    )

    def _next(self) -> tuple[list[Group], bytes]:
        """Return the next commit: fewer groups when they pass its bound of bytes together.

        One group that is too large alone is packed. If that is not enough, its future raises
        Refused, and no group is returned: what one caller asked for must not end this writer.
        """
        groups = self._take()
        while True:
            facts, seen = (
                [fact for group in groups for fact in group.facts],
                min(group.seen for group in groups),
            )
            try:
                return groups, self._encode(facts, seen)
            except Refused:
                if len(groups) == 1:
                    return self._packed(groups[0])
            half = len(groups) // 2
            self._waiting.extendleft(reversed(groups[half:]))
            groups = groups[:half]

    def _packed(self, group: Group) -> tuple[list[Group], bytes]:
        try:
            return [group], f.encode_packed(self._commit(group.facts, group.seen))
        except Refused as error:
            logger.error("%s: %s", self.subject, error)
            if not group.future.done():
                group.future.set_exception(error)
            return [], b""

    def _take(self) -> list[Group]:
        """As many whole groups as one commit may hold."""
        groups = [self._waiting.popleft()]
        count = len(groups[0].facts)
        while self._waiting and count + len(self._waiting[0].facts) <= GROUP_FACTS_MAX:
            count += len(self._waiting[0].facts)
            groups.append(self._waiting.popleft())
        return groups

    async def commit(self, facts: Sequence[AnyFact]) -> int:
        """Append one commit and return its sequence, whatever it takes within `budget_s`."""
        return await self._store(self._encode(facts, self.seen()))

    def _encode(self, facts: Sequence[AnyFact], seen: int) -> bytes:
        return f.encode(self._commit(facts, seen))

    def _commit(self, facts: Sequence[AnyFact], seen: int) -> Commit:
        self.last_at_ns, self.last_boot_ns = self.now_ns(), self.clock.boot_ns()
        return Commit(
            version=f.VERSION,
            min_reader=f.VERSION,
            writer=self.subject,
            number=f.next_number(self.number),
            epoch=self.epoch,
            at_ns=self.last_at_ns,
            seen=seen,
            facts=tuple(facts),
        )

    async def _store(self, data: bytes) -> int:
        self.in_flight = data
        sent = self.clock.boot_ns()
        seq = await self._append(data)
        self.in_flight = b""
        self.expected, self.number, self.acked_boot_ns = seq, f.next_number(self.number), sent
        return seq

    async def _append(self, data: bytes) -> int:
        began, pause_s = self.clock.boot_ns(), RETRY_FIRST_S
        while True:
            try:
                return await self.log.append(self.subject, data, self.expected)
            except (AppendRefused, AppendUnknown):
                last = await self._last(began)
            if last is not None and last.seq > self.expected:
                if last.data == data:
                    return last.seq
                raise Fenced(
                    f"another process writes {self.subject}: commit {last.seq} is not ours"
                )
            await self._pause(began, pause_s)
            pause_s = min(2 * pause_s, RETRY_MAX_S)

    async def _last(self, began: int) -> Entry | None:
        pause_s = RETRY_FIRST_S
        while True:
            try:
                return await self.log.last(self.subject)
            except Unavailable:
                await self._pause(began, pause_s)
                pause_s = min(2 * pause_s, RETRY_MAX_S)

    async def _pause(self, began: int, pause_s: float) -> None:
        if self.clock.boot_ns() - began > self.budget_s * 1e9:
            text = f"the log did not take a commit on {self.subject} for {self.budget_s:.0f} s"
            raise Unavailable(f"{text}: are its servers up, and is there room on their disks?")
        await asyncio.sleep(pause_s)
