"""The writer of one subject: commits in order, one in flight, later facts grouped into the next.

If the outcome of an append is unknown, the writer reads the subject's last message from the leader.
If it is the commit, the append succeeded. If it is the expected one, the writer retries with the
same id. Anything else means that the writer is fenced. The shell (`service.py`), the
gateways and the agents use it.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from libs.common import facts as f
from libs.common import reading
from libs.common.errors import Fenced, NotRecorded, Refused, Unavailable
from libs.common.facts import AnyFact, Commit
from libs.common.process.clock import Clock, warn_if_behind
from libs.common.transport.fair_groups import FairGroups, Group
from libs.common.transport.log import AppendRefused, AppendUnknown, Entry, Log, shorter

# An election takes 4 to 9 s. After this time without a stored commit the writer gives up: the
# process exits, and its service manager restarts it.
APPEND_BUDGET_S: Final = 45.0
RETRY_FIRST_S: Final = 0.05
RETRY_MAX_S: Final = 1.0
EMPTIED_LOOK_S: Final = 0.005
GROUP_FACTS_MAX: Final = 256
WAITING_GROUPS_MAX: Final = 20_000
# After an agent's clock was set back by more than this, its commits continue from the new time.
AHEAD_MAX_NS: Final = 3_600_000_000_000
# A log without a new commit for this part of the budget stands still.
STILL_PART: Final = 3
# Above every sequence: before the attachment no entry is ours.
NOT_ATTACHED: Final = 1 << 63


logger = logging.getLogger(__name__)


def was_stored(future: asyncio.Future[int]) -> bool:
    """Return whether a finished future means that the log has stored the facts.

    Otherwise the writer ended before, or the waiting task was cancelled.
    """
    return not future.cancelled() and future.exception() is None


class Writer:
    """The writer of `subject`.

    `seen` returns the sequence applied so far; it is called when facts are put, and a commit
    carries the lowest value of its groups. `epoch` (term or incarnation) is read at each commit.
    `gives_up`: after `budget_s` without a stored commit, raise Unavailable. Otherwise log an error,
    set `is_late` until one is stored, and go on while the log stores no commits of others either:
    if it does so for `budget_s`, raise Unavailable.
    """

    def __init__(
        self,
        log: Log,
        clock: Clock,
        subject: str,
        seen: Callable[[], int],
        budget_s: float = APPEND_BUDGET_S,
        gives_up: bool = True,
    ) -> None:
        self.log = log
        self.budget_s = budget_s
        self.gives_up = gives_up
        self.is_late = False
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
        self._waiting = FairGroups()
        self._wake = asyncio.Event()

    async def attach(self) -> int:
        """Read the subject's last message from the leader, and return its sequence.

        The caller must have folded the log up to that sequence before it decides.
        """
        last = await self._last(_Wait(self.clock.boot_ns(), self.seen()))
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
        """Return the time from which this writer continues.

        On a subject that may hold forged commits, a time far ahead is ignored.
        """
        if (
            reading.is_untrusted(self.subject)
            and commit.at_ns > self.clock.wall_ns() + AHEAD_MAX_NS
        ):
            return 0
        return commit.at_ns

    def now_ns(self) -> int:
        """Return the wall clock's time, but never a time before this writer's last commit.

        If the wall clock was set back, or is behind, the time goes on at half speed until the clock
        has caught up, so that limits still end.
        """
        return max(
            self.clock.wall_ns(), self.last_at_ns + (self.clock.boot_ns() - self.last_boot_ns) // 2
        )

    def put(self, facts: Sequence[AnyFact], share: str = "") -> asyncio.Future[int]:
        """Queue a group of facts for one commit. The future returns the commit's sequence.

        Groups of one share, which is a tenant or empty, are committed in order; shares take turns.
        Raises Refused if too many groups wait.
        """
        if len(self._waiting) >= WAITING_GROUPS_MAX:
            raise Refused(
                f"{WAITING_GROUPS_MAX} commits wait for the log: try again in a few seconds"
            )
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.add(Group(facts, future, self.seen()), share)
        self._wake.set()
        return future

    def withdraw(self, future: asyncio.Future[int]) -> bool:
        """Remove the group that `put` returned this future for, unless its commit is under way.

        Return whether it was removed: then it is certain that the log does not have its facts.
        """
        if not self._waiting.remove(future):
            return False
        future.cancel()
        return True

    @property
    def idle(self) -> bool:
        """True if no facts wait and no commit is in flight."""
        return not self._waiting and not self.in_flight

    async def emptied(self) -> None:
        """Wait until no facts wait and no commit is in flight."""
        while not self.idle:
            await asyncio.sleep(EMPTIED_LOOK_S)

    def owns(self, entry: Entry) -> bool:
        """Return whether an entry of this subject is an own commit.

        All commits after the attachment up to `expected` are own ones, because each named the one
        before it. Raises Fenced if another process wrote one after the attachment.
        """
        if entry.seq <= self.attached_seq:
            return False
        if entry.seq <= self.expected or entry.data == self.in_flight:
            return True
        raise Fenced(f"another process writes to {self.subject}: this one stops writing")

    async def check_alone(self) -> None:
        """Check for another writer of this subject while nothing is to be appended.

        Raises Fenced.
        """
        try:
            last = await self.log.last(self.subject) if self.idle else None
        except Unavailable:
            return
        if last is not None and last.seq > self.expected and self.idle:
            raise Fenced(f"another process writes to {self.subject}: it wrote commit {last.seq}")

    async def run(self) -> None:
        """Commit queued facts until cancelled.

        Raises Fenced, Unavailable or Corrupt. At its end the futures of the commit in flight raise
        Unavailable, and those of groups that were never sent NotRecorded.
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
            _fail(groups, Unavailable("this process stopped before the log had answered"))
            _fail(self._waiting, NotRecorded("this process stopped before it was sent"))

    def _next(self) -> tuple[list[Group], bytes]:
        """Return the next commit, with as many groups as fit into its bound of bytes.

        A single group that is too large is packed. If that is not enough, or if a value of a fact
        cannot be encoded, its future raises Refused and no group is returned, because one caller's
        facts must not end this writer.
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
            self._waiting.put_back(groups[half:])
            groups = groups[:half]

    def _packed(self, group: Group) -> tuple[list[Group], bytes]:
        try:
            return [group], f.encode_packed(self._commit(group.facts, group.seen))
        except Refused as error:
            kinds = ", ".join(dict.fromkeys(map(f.kind_of, group.facts)))
            logger.error("%s: facts are lost (%s): %s", self.subject, kinds, error)
            if not group.future.done():
                group.future.set_exception(error)
            return [], b""

    def _take(self) -> list[Group]:
        """Take as many whole groups as one commit may hold."""
        groups = [self._waiting.take()]
        count = len(groups[0].facts)
        while self._waiting and count + len(self._waiting.next().facts) <= GROUP_FACTS_MAX:
            groups.append(self._waiting.take())
            count += len(groups[-1].facts)
        return groups

    async def commit(self, facts: Sequence[AnyFact]) -> int:
        """Append one commit and return its sequence. Retry as `run` does."""
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
        """Append a commit. Raises Corrupt if the log gives it the place of one that was read: then
        the log has lost commits, and this process must not go on with what it knows of them. An
        agent reads no log: it knows only what a scheduler told it.
        """
        self.in_flight = data
        sent, seen = self.clock.boot_ns(), self.seen()
        seq = await self._append(data)
        if seq <= seen and not reading.is_untrusted(self.subject):
            raise shorter(seq, seen)
        if self.is_late:
            logger.warning("the log stores commits on %s again", self.subject)
        self.in_flight, self.is_late = b"", False
        self.expected, self.number, self.acked_boot_ns = seq, f.next_number(self.number), sent
        return seq

    async def _append(self, data: bytes) -> int:
        wait, pause_s = _Wait(self.clock.boot_ns(), self.seen()), RETRY_FIRST_S
        while True:
            try:
                return await self.log.append(self.subject, data, self.expected)
            except (AppendRefused, AppendUnknown):
                last = await self._last(wait)
            if last is not None and last.seq > self.expected:
                if last.data == data:
                    return last.seq
                raise Fenced(
                    f"another process writes to {self.subject}: it wrote commit {last.seq}"
                )
            await self._pause(wait, pause_s)
            pause_s = min(2 * pause_s, RETRY_MAX_S)

    async def _last(self, wait: "_Wait") -> Entry | None:
        pause_s = RETRY_FIRST_S
        while True:
            try:
                return await self.log.last(self.subject)
            except Unavailable:
                await self._pause(wait, pause_s)
                pause_s = min(2 * pause_s, RETRY_MAX_S)

    async def _pause(self, wait: "_Wait", pause_s: float) -> None:
        now_ns, budget_ns = self.clock.boot_ns(), int(self.budget_s * 1e9)
        others_ns = wait.others_ns(now_ns, self.seen(), budget_ns // STILL_PART)
        if others_ns > budget_ns and not self.gives_up:
            raise Unavailable(
                f"the log stored no commit on {self.subject} for {self.budget_s:.0f} s, although "
                "it stores those of others: check that this process may publish on that subject, "
                "and its connection to the servers"
            )
        if now_ns - wait.began_ns > budget_ns and not self.is_late:
            text = (
                f"the log stored no commit on {self.subject} for {self.budget_s:.0f} s: check that "
                "its servers run and that their disks have space"
            )
            if self.gives_up:
                raise Unavailable(text)
            logger.error("%s", text)
            self.is_late = True
        await asyncio.sleep(pause_s)


class _Wait:
    """The wait for one answer of the log, since `began_ns`. `seen` is the last commit read then."""

    def __init__(self, began_ns: int, seen: int) -> None:
        self.began_ns = began_ns
        self.seen = seen
        self.grown_ns = self.still_ns = began_ns

    def others_ns(self, now_ns: int, seen: int, still_ns: int) -> int:
        """Return for how long the log has stored commits of others; 0 if none since the last call.

        If the log stores none for `still_ns`, the time is counted from zero again.
        """
        if seen > self.seen:
            self.seen, self.grown_ns = seen, now_ns
            return now_ns - self.still_ns
        if now_ns - self.grown_ns > still_ns:
            self.still_ns = now_ns
        return 0


def _fail(groups: Iterable[Group], error: Unavailable) -> None:
    """Raise the error in the groups' futures that have no result yet."""
    for group in groups:
        if not group.future.done():
            group.future.set_exception(error)
