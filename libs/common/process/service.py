"""The shell that runs every deciding service: replay, follow, begin a term, decide, append.

A service provides its pure state (`Fold`), its decisions, and its actions on acknowledged commits
(`Voice`). The shell works ahead of the log: it applies its own facts at once, and goes on deciding
while a commit is in flight. The voice acts only on acknowledged commits. Only `run` catches all
errors: it logs the cause and exits with the error's code. A service manager restarts the process,
which replays the log.
"""

import asyncio
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Final, NoReturn, Protocol

import uvloop

from libs.common import facts as f
from libs.common import reading
from libs.common.errors import MusterError
from libs.common.facts import AnyFact, Commit
from libs.common.process import beginning as beginning
from libs.common.process import nats_client as nats_client
from libs.common.process.cancellation import Stopped
from libs.common.process.clock import ClockWatch
from libs.common.process.process_privacy import close_to_others
from libs.common.process.pulse import NO_PULSE, Pulse
from libs.common.process.serving_tasks import serve_together
from libs.common.settings.configuration import read
from libs.common.settings.settings import Settings, environment
from libs.common.spans import exporting
from libs.common.state.cluster import WriterMark
from libs.common.transport.log import Entry, Log, settled_bounds
from libs.common.transport.writer import Writer, was_stored

# Interval of decisions without an event, for time limits, silence and start limits.
TICK_S: Final = 0.1
# One round of decisions returns to the event loop after this many groups, so that heartbeats are
# answered in between.
ROUND_GROUPS_MAX: Final = 256
# Largest number of facts that are decided but not acknowledged. Beyond it the service waits.
AHEAD_FACTS_MAX: Final = 8_192
# A log that took longer than this to say how far a subject goes may have cut this process off.
SLOW_NS: Final = 200_000_000
# The parts of a deciding service that its pulse watches (`pulse.py`).
READER: Final = "reader"
DECIDER: Final = "decider"
# Time for a process to exit after its work has ended.
END_S: Final = 10.0
# Thresholds of the garbage collector: new objects between two collections of young objects, and
# such collections between two of older ones.
YOUNG_MAX: Final = 10_000
LOOKS_AT_YOUNG: Final = 1_000

logger = logging.getLogger(__name__)


class Fold(Protocol):
    """A service's pure state."""

    @property
    def seq(self) -> int:
        """The last sequence that was folded."""
        ...

    @property
    def writers(self) -> Mapping[str, WriterMark]:
        """Return the last commit of each subject."""
        ...

    def apply_entry(self, seq: int, subject: str, commit: Commit) -> None:
        """Fold a commit that was read from the log."""
        ...

    def apply_own(self, facts: Sequence[AnyFact], at_ns: int) -> None:
        """Fold this service's own facts ahead of the log."""
        ...

    def skip_own(self, seq: int, subject: str, commit: Commit) -> None:
        """Fold an acknowledged own commit, whose facts are folded already."""
        ...


# Returns the next facts to record at a time in nanoseconds: one group that belongs together, or
# none. The shell applies it and calls again.
Decide = Callable[[int], Sequence[AnyFact]]
# Returns the facts to record in place of a group that no commit can hold.
Smaller = Callable[[Sequence[AnyFact]], Sequence[AnyFact]]


class Voice(Protocol):
    """A service's actions on acknowledged commits. It must not decide anything."""

    def folded(self, entry: Entry, commit: Commit) -> None:
        """Act on a commit of any writer, in the order of the log."""
        ...

    def acknowledged(self, seq: int, facts: Sequence[AnyFact]) -> None:
        """Act on own facts that the log has acknowledged."""
        ...


class Silent:
    """The voice of a service that only commits facts."""

    def folded(self, entry: Entry, commit: Commit) -> None:
        return

    def acknowledged(self, seq: int, facts: Sequence[AnyFact]) -> None:
        return


def _refuse(facts: Sequence[AnyFact]) -> Sequence[AnyFact]:
    raise AssertionError(
        f"{len(facts)} facts beginning with {f.kind_of(facts[0])} do not fit into a commit"
    )


class Shell:
    """One deciding service."""

    def __init__(
        self,
        log: Log,
        writer: Writer,
        state: Fold,
        propose: Decide,
        voice: Voice,
        smaller: Smaller = _refuse,
        pulse: Pulse = NO_PULSE,
    ) -> None:
        self.log = log
        self.writer = writer
        self.state = state
        self.propose = propose
        self.smaller = smaller
        self.voice = voice
        self.clocks = ClockWatch(writer.clock)
        self.pulse = pulse
        self.live = False
        self.leads = False
        self.ahead = 0
        self.unrecordable = ""
        self._grown = asyncio.Event()

    async def replay(self) -> None:
        """Fold the log up to its end. Decide nothing."""
        _, target = await settled_bounds(self.log)
        async for batch in self.log.read(self.state.seq):
            self.pulse.beat()
            self._fold(batch)
            if self.state.seq >= target:
                return

    async def follow(self) -> None:
        """Fold each commit as it comes, and decide while this process leads.

        Ends by an error that ends the process: Fenced, Trimmed, Corrupt, TooNew.
        """
        self.live = True
        async for batch in self.log.read(self.state.seq):
            self.pulse.beat(READER)
            self._fold(batch)
            self._grown.set()
            if batch and self.leads:
                self.decide()

    async def begin(
        self,
        opening: Callable[[], Sequence[AnyFact]],
        confirm: Callable[[bool], Coroutine[None, None, None]],
        epoch_of: Callable[[int], int],
    ) -> int:
        """Append the first commit of this process's term, `opening()`, and return the term's epoch,
        which `epoch_of` makes of the sequence.

        From then on the log refuses every older writer of the subject. `confirm` checks once more
        that the term is due when this process has folded its subject to the end; its argument is
        true if the log was slow to answer. Raises Fenced if another process was faster.
        """
        began = self.writer.clock.boot_ns()
        own = await self.writer.attach()
        while self.state.seq < own:
            self._grown.clear()
            await self._grown.wait()
        await confirm(self.writer.clock.boot_ns() - began > SLOW_NS)
        seq = await self.writer.commit(opening())
        # The commit is folded like any other when it comes back: its sequence is its meaning.
        self.writer.attached_seq, self.writer.epoch = seq, epoch_of(seq)
        self.leads = True
        return self.writer.epoch

    async def serve(self) -> None:
        """Decide and append, beside `follow`, until an error ends the process: Fenced,
        Unavailable.
        """
        await serve_together(writer=self.writer.run(), ticker=self._tick())

    async def _tick(self) -> None:
        while True:
            self.pulse.beat(DECIDER)
            self.decide()
            await asyncio.sleep(TICK_S)

    def _fold(self, batch: list[Entry]) -> None:
        for entry in batch:
            commit = reading.read(self.state.writers, entry.subject, entry.data)
            if self.leads and entry.subject == self.writer.subject and self.writer.owns(entry):
                self.state.skip_own(entry.seq, entry.subject, commit)
            else:
                self.state.apply_entry(entry.seq, entry.subject, commit)
            self.voice.folded(entry, commit)
            if self.live and not reading.is_ignored(commit):
                self.clocks.look(entry.subject, commit.at_ns)

    def decide(self) -> None:
        """Decide until there is nothing more, or a bound is reached; the next tick goes on."""
        for _ in range(ROUND_GROUPS_MAX):
            if self.ahead >= AHEAD_FACTS_MAX:
                return
            now_ns = self.writer.now_ns()
            facts = self.propose(now_ns)
            if not facts:
                return
            if not f.fits(facts, self.writer.subject):
                facts = self._smaller(facts)
                if not facts:
                    return
            self.state.apply_own(facts, now_ns)
            self._record(facts)

    def _smaller(self, facts: Sequence[AnyFact]) -> Sequence[AnyFact]:
        """Return smaller facts in place of those that do not fit into a commit."""
        fewer = self.smaller(facts)
        if fewer and not f.fits(fewer, self.writer.subject):
            description = (
                f"{len(fewer)} facts beginning with {f.kind_of(fewer[0])} of "
                f"{f.size_of(fewer[0])} bytes"
            )
            if description != self.unrecordable:  # once, not in each tick
                logger.error(
                    (
                        "%s in place of a larger commit do not fit into a commit either and are "
                        "not recorded: use shorter names"
                    ),
                    description,
                )
            self.unrecordable = description
            return ()
        return fewer

    def _record(self, facts: Sequence[AnyFact]) -> None:
        self.ahead += len(facts)
        self.writer.put(facts).add_done_callback(lambda future: self._acknowledged(future, facts))

    def _acknowledged(self, future: asyncio.Future[int], facts: Sequence[AnyFact]) -> None:
        self.ahead -= len(facts)
        if was_stored(future):
            self.voice.acknowledged(future.result(), facts)


def freeze_collector() -> None:
    """Exclude the state from garbage collection after a replay.

    The state has no cycles, so later parts of it are freed without the collector. A collection of
    the whole state would take a fifth of a second.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_MAX, LOOKS_AT_YOUNG, LOOKS_AT_YOUNG)


def run(
    name: str, main: Callable[[Settings, asyncio.Event], Coroutine[None, None, None]]
) -> NoReturn:
    """Run a service process: settings, logging, signals, `main(settings, stop)`, exit code.

    SIGTERM and SIGINT set `stop`. `main` then ends what it owns and returns, or raises Stopped if
    it had not started (exit code 0). A MusterError ends the process with its own code, a bug with
    70 and a traceback. The service manager restarts the process, which replays the log.
    """
    close_to_others()
    gc.enable()  # off since the beginning of a process (`beginning.py`)
    try:
        settings = read(sys.argv[1:])
        os.environ.update(environment(settings))  # for the processes that this one starts
        logging.basicConfig(
            level=settings.log_level,
            format=f"%(asctime)s {name} %(levelname)s %(message)s",
            stream=sys.stderr,
        )
        code = uvloop.run(_until_stopped(name, main, settings))
    except BaseException as error:
        code = _exit_code(name, error)
    sys.exit(code)


async def _until_stopped(
    name: str,
    main: Callable[[Settings, asyncio.Event], Coroutine[None, None, None]],
    settings: Settings,
) -> int:
    """Run `main` and return the exit code.

    After the end of `main` the process exits within END_S, even if a task or a thread never ends.
    """
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    code = 0
    exporter = exporting.begin(settings, name)
    try:
        await main(settings, stop)
    except BaseException as error:
        code = _exit_code(name, error)
    last = threading.Timer(END_S, os._exit, (code,))
    last.daemon = True
    last.start()
    if exporter is not None:
        exporter.stop()
    return code


def _exit_code(name: str, error: BaseException) -> int:
    """Log one line about the error and return the exit code. In a group the first error counts."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, MusterError):
        logger.error("%s exits: %s", name, error)
        return error.exit_code
    if isinstance(error, Stopped):
        return 0
    if isinstance(error, SystemExit):
        return int(error.code or 0)
    logger.error("%s exits because of a bug", name, exc_info=error)
    return 70
