"""The one shell that runs every deciding service: replay, fetch, apply, decide, append.

A service brings its pure state (`Fold`), what it decides from it, and what it does when a commit is
acknowledged (`Voice`). The shell works ahead: it applies its own facts at once, goes on deciding
while one commit is in flight, and speaks only when a commit is acknowledged. `run` is the only
place that catches: it logs the cause and exits with the error's code; a supervisor starts the
process again, which replays.
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
from libs.common.process.cancellation import Stopped
from libs.common.process.clock import ClockWatch
from libs.common.process.process_privacy import close_to_others
from libs.common.process.pulse import NO_PULSE, Pulse
from libs.common.process.serving_tasks import serve_together
from libs.common.settings.configuration import read
from libs.common.settings.settings import Settings, environment
from libs.common.state.cluster import WriterMark
from libs.common.transport.log import Entry, Log, settled_bounds
from libs.common.transport.writer import Writer, was_stored

# How often a service is asked although nothing happened: time limits, silence, start limits.
TICK_S: Final = 0.1
# One round of deciding yields to the event loop after this many groups, so that heartbeats are
# answered in between.
ROUND_GROUPS_MAX: Final = 256
# Facts decided but not yet acknowledged; past this the service waits for the log.
AHEAD_FACTS_MAX: Final = 8_192
# The parts of a deciding service that its pulse watches (`pulse.py`).
READER: Final = "reader"
DECIDER: Final = "decider"
# Time that a process may take to end once its work is over.
END_S: Final = 10.0
# New objects between two looks of the collector, and how many looks at those it takes before it
# looks at older ones too.
YOUNG_MAX: Final = 10_000
LOOKS_AT_YOUNG: Final = 1_000

logger = logging.getLogger(__name__)


class Fold(Protocol):
    """A service's pure state."""

    @property
    def seq(self) -> int:
        """The last stream sequence that was folded."""
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
        """An own commit came back from the log: its facts are folded already."""
        ...


# The next facts to record, at a time in nanoseconds: one group that belongs together, or none. The
# shell applies it and asks again.
Decide = Callable[[int], Sequence[AnyFact]]
# Returns the facts to record in place of a group that no commit can hold.
Smaller = Callable[[Sequence[AnyFact]], Sequence[AnyFact]]


class Voice(Protocol):
    """What a service does with what is acknowledged. It must not decide anything."""

    def folded(self, entry: Entry, commit: Commit) -> None:
        """A commit of the log, anyone's, in order."""
        ...

    def acknowledged(self, seq: int, facts: Sequence[AnyFact]) -> None:
        """The log took these facts of ours."""
        ...


class Silent:
    """The voice of a service that says nothing but what it commits."""

    def folded(self, entry: Entry, commit: Commit) -> None:
        return

    def acknowledged(self, seq: int, facts: Sequence[AnyFact]) -> None:
        return


def _refuse(facts: Sequence[AnyFact]) -> Sequence[AnyFact]:
    raise AssertionError(
        f"{len(facts)} facts beginning with {f.kind_of(facts[0])} fit into no commit"
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
        self.ahead = 0
        self.unrecordable = ""

    async def replay(self) -> None:
        """Fold the log to its present end, and learn where our own subject stands.

        Nothing is decided yet.
        """
        _, target = await settled_bounds(self.log)
        async for batch in self.log.read(self.state.seq):
            self.pulse.beat()
            self._fold(batch)
            if self.state.seq >= target:
                own = await self.writer.attach()
                if self.state.seq >= own:
                    break
                target = own

    async def serve(self) -> None:
        """Read, decide and append for ever; raises what ends this process (Fenced, Unavailable,
        Corrupt, a bug).
        """
        await serve_together(writer=self.writer.run(), reader=self._read(), ticker=self._tick())

    async def _read(self) -> None:
        self.live = True
        async for batch in self.log.read(self.state.seq):
            self.pulse.beat(READER)
            self._fold(batch)
            if batch:
                self.decide()

    async def _tick(self) -> None:
        while True:
            self.pulse.beat(DECIDER)
            self.decide()
            await asyncio.sleep(TICK_S)

    def _fold(self, batch: list[Entry]) -> None:
        for entry in batch:
            commit = reading.read(self.state.writers, entry.subject, entry.data)
            if entry.subject == self.writer.subject and self.writer.owns(entry):
                self.state.skip_own(entry.seq, entry.subject, commit)
            else:
                self.state.apply_entry(entry.seq, entry.subject, commit)
            self.voice.folded(entry, commit)
            if self.live and not reading.is_ignored(commit):
                self.clocks.look(entry.subject, commit.at_ns)

    def decide(self) -> None:
        """Ask until it has nothing more to say, or a bound is reached (the next tick goes on)."""
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
        """Return the facts to record in place of facts that fit into no commit; none if those do
        not fit either.
        """
        found = self.smaller(facts)
        if found and not f.fits(found, self.writer.subject):
            what = (
                f"{len(found)} facts beginning with {f.kind_of(found[0])} of "
                f"{f.size_of(found[0])} bytes"
            )
            if what != self.unrecordable:  # once, not in each tick
                logger.error(
                    (
                        "%s in place of a larger commit fit into no commit either: they are not "
                        "recorded; use shorter names"
                    ),
                    what,
                )
            self.unrecordable = what
            return ()
        return found

    def _record(self, facts: Sequence[AnyFact]) -> None:
        self.ahead += len(facts)
        self.writer.put(facts).add_done_callback(lambda future: self._acknowledged(future, facts))

    def _acknowledged(self, future: asyncio.Future[int], facts: Sequence[AnyFact]) -> None:
        self.ahead -= len(facts)
        if was_stored(future):
            self.voice.acknowledged(future.result(), facts)


def freeze_collector() -> None:
    """After a replay: what there is stays, and what becomes state later is freed when it is
    dropped, for it holds no cycles.

    A look of the collector at all of it would take a fifth of a second.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_MAX, LOOKS_AT_YOUNG, LOOKS_AT_YOUNG)


def run(
    name: str, main: Callable[[Settings, asyncio.Event], Coroutine[None, None, None]]
) -> NoReturn:
    """A service process's whole life: settings, logging, signals, `main(settings, stop)`, one clear
    line and an exit code.

    SIGTERM and SIGINT set `stop`; `main` then ends what it owns and returns, or raises Stopped
    where it had not begun (exit 0). A MusterError ends the process with its own code, a bug with 70
    and a traceback: the process that watches this one starts it again, and it replays.
    """
    close_to_others()
    try:
        settings = read(sys.argv[1:])
        os.environ.update(environment(settings))  # what this process starts has the same ones
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
    """Return the exit code.

    From the end of `main` on the process lasts END_S at most, even if a task or a thread never
    ends.
    """
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    code = 0
    try:
        await main(settings, stop)
    except BaseException as error:
        code = _exit_code(name, error)
    last = threading.Timer(END_S, os._exit, (code,))
    last.daemon = True
    last.start()
    return code


def _exit_code(name: str, error: BaseException) -> int:
    """The one line that a person needs, and the code; of a group the first known cause counts."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, MusterError):
        logger.error("%s stops: %s", name, error)
        return error.exit_code
    if isinstance(error, Stopped):
        return 0
    if isinstance(error, SystemExit):
        return int(error.code or 0)
    logger.error("%s stops by a bug", name, exc_info=error)
    return 70
