"""The child processes of the launcher: started, and restarted with back-off when they exit.

Each child has its own session, because Ctrl-C at the terminal is for the launcher only. It has its
own log file, and ends when the launcher does. If a child exits three times in a row within an hour
with a fault that a person must repair, the launcher reports it and does not start it again; the
others go on. A child whose state differs from the leader's is reported, too, and is restarted.
"""

import asyncio
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from libs.common.errors import Corrupt, Diverged, Refused, TooNew
from libs.embedded.living import Ticket, die_with_parent, ticket

BACKOFF_FIRST_S: Final = 0.1
BACKOFF_MAX_S: Final = 5.0
# After a child ran this long, its back-off starts from its first pause.
SETTLED_S: Final = 10.0
NEEDS_PERSON_MAX: Final = 3
# Exits count as in a row only within this time: otherwise the process served well in between.
IN_A_ROW_S: Final = 3_600.0
NEEDS_PERSON: Final = (Refused.exit_code, Corrupt.exit_code, TooNew.exit_code)
# A person must repair it, but the process serves well for a while after each start.
RESTARTED_ANYWAY: Final = (Diverged.exit_code,)
LOG_BYTES_MAX: Final = 4 << 20
LOG_KEPT: Final = 3
TAIL_BYTES: Final = 8 << 10
LINE_CHARS_MAX: Final = 300

Say = Callable[[str], None]


class Spec(msgspec.Struct, frozen=True):
    """The command, the whole environment and the log file of one child."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    log: Path


class Child:
    """One child process. `keep` restarts it until `end` or `kill`, or until a person is needed."""

    def __init__(self, spec: Spec, say: Say, changed: Callable[[], None]) -> None:
        self.spec = spec
        self.say = say
        self.changed = changed
        self.process: asyncio.subprocess.Process | None = None
        self.ticket: Ticket | None = None
        self.deaths = 0
        self.given_up = False
        self.ending = asyncio.Event()

    async def keep(self) -> None:
        """Start the process, wait for its end, and start it again."""
        pause_s, clock = BACKOFF_FIRST_S, asyncio.get_running_loop().time
        refused_s, diverged = list[float](), 0
        while not self.ending.is_set():
            began = clock()
            code = await self._run()
            if self.ending.is_set():
                return
            self.deaths += 1
            refused_s = [*refused_s, clock()][-NEEDS_PERSON_MAX:] if code in NEEDS_PERSON else []
            if len(refused_s) == NEEDS_PERSON_MAX and refused_s[-1] - refused_s[0] < IN_A_ROW_S:
                self._give_up(code)
                return
            diverged = diverged + 1 if code in RESTARTED_ANYWAY else 0
            if diverged >= NEEDS_PERSON_MAX:
                self._complain(code, diverged)
            if clock() - began > SETTLED_S:
                pause_s = BACKOFF_FIRST_S
            self.say(
                f"{self.spec.name} {_ended(code)}; restarting it in {pause_s:.1f} s: "
                f"{last_line(self.spec.log)}"
            )
            await self._pause(pause_s)
            pause_s = min(2 * pause_s, BACKOFF_MAX_S)

    async def end(self, grace_s: float) -> None:
        """Send SIGTERM, after `grace_s` SIGKILL, and return when the process has ended."""
        self.ending.set()
        process = self.process
        if process is None:
            return
        self.signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(process.wait(), grace_s)
        except TimeoutError:
            self.say(f"{self.spec.name} did not stop within {grace_s:.0f} s and was killed")
            self.kill()
            await process.wait()

    def kill(self) -> None:
        self.ending.set()
        self.signal(signal.SIGKILL)

    def signal(self, number: signal.Signals) -> None:
        if self.process is not None and self.process.returncode is None:
            try:
                self.process.send_signal(number)
            except ProcessLookupError:
                return

    @property
    def living(self) -> bool:
        return self.process is not None and self.process.returncode is None

    async def _run(self) -> int:
        """Run the process once and return its exit code."""
        with self.spec.log.open("ab") as log:
            try:
                self.process = await asyncio.create_subprocess_exec(
                    *self.spec.command,
                    env=dict(self.spec.environment),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    preexec_fn=die_with_parent(),
                )
            except OSError as error:
                log.write(f"cannot be started: {error}\n".encode())
                return 1
        self.ticket = ticket(self.process.pid)
        self.changed()
        if self.ending.is_set():
            self.kill()
        return await self.process.wait()

    async def _pause(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self.ending.wait(), seconds)
        except TimeoutError:
            return

    def _complain(self, code: int, times: int) -> None:
        """Report a fault that a restart does not end."""
        self.say(
            f"{self.spec.name} NEEDS YOU: it {_ended(code)} {times} times in a row, and is "
            "restarted again. Run `muster cluster verify`, and see docs/howto/verify-the-state.md"
        )

    def _give_up(self, code: int) -> None:
        self.given_up = True
        self.say(
            f"{self.spec.name} NEEDS YOU and is not restarted ({_ended(code)} {NEEDS_PERSON_MAX} "
            f"times): {last_line(self.spec.log)} (log: {self.spec.log}). Repair that, then run "
            "`muster down` and `muster up`. The other services go on."
        )


def rotate(log: Path) -> None:
    """Rename a large log file to .1, .1 to .2, and so on; the oldest is overwritten."""
    if not log.exists() or log.stat().st_size < LOG_BYTES_MAX:
        return
    for number in range(LOG_KEPT - 1, 0, -1):
        older = log.with_name(f"{log.name}.{number}")
        if older.exists():
            older.replace(log.with_name(f"{log.name}.{number + 1}"))
    log.replace(log.with_name(f"{log.name}.1"))


def last_line(log: Path) -> str:
    """Return the last line of a log: processes print there why they stop."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
            lines = file.read().decode(errors="replace").split("\n")
    except OSError:
        return "(no log)"
    filled = [line.strip() for line in lines if line.strip()]
    return filled[-1][:LINE_CHARS_MAX] if filled else "(the log is empty)"


def _ended(code: int) -> str:
    return f"exited with {code}" if code >= 0 else f"was ended by {signal.Signals(-code).name}"
