"""Follows what a job writes, from byte offsets, through dropped connections, until the job has
ended.

The gateway sends one JSON object a line: pieces of output, states, and last the exit. After a
broken connection the stream is asked for again from the first byte not seen, so nothing is printed
twice; offsets are of one attempt, and a new one begins at 0. Gives up when MUSTER_AWAY_S (120) pass
without any answer. Tests: tests/integration/test_cli_run.py.
"""

import json
import time
from base64 import b64decode
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from libs.cli.faults import Cut, Declined, Unreachable
from libs.cli.gateway import Json, job_path, opened
from libs.cli.profile import Profile, away_s
from libs.cli.terminal.output import complain

PAUSE_FIRST_S: Final = 0.1
PAUSE_MAX_S: Final = 2.0
SAY_AFTER_S: Final = 1.0
PASSING: Final = (429, 500, 502, 503, 504)


class Listener(NamedTuple):
    """Where output and states go; both are called on the thread that follows."""

    output: Callable[[str, bytes], None]
    state: Callable[[str, int], None]


class Position:
    """How far each stream of the attempt has been seen."""

    def __init__(self, starts: Mapping[str, int]) -> None:
        self.attempt = 0
        self.offsets = {"stdout": 0, "stderr": 0, **starts}

    def take(self, frame: Json) -> bytes:
        """What is new in a piece of output."""
        stream, offset, data = frame["stream"], int(frame["offset"]), b64decode(frame["data"])
        fresh = data[max(0, self.offsets[stream] - offset) :]
        self.offsets[stream] = max(self.offsets[stream], offset + len(data))
        return fresh

    def begin(self, attempt: int) -> bool:
        """A new attempt writes from its own beginning.

        True when it follows another that was seen.
        """
        follows = 0 < self.attempt < attempt
        if follows:
            self.offsets = dict.fromkeys(self.offsets, 0)
        self.attempt = max(attempt, self.attempt)
        return follows


def attach(
    profile: Profile,
    job_id: str,
    rank: int,
    listener: Listener,
    starts: Mapping[str, int] | None = None,
) -> Json:
    """Returns the last frame (`exit_code`, `state`, `reason`).

    `starts` are the offsets to begin at.

    Raises Declined, or Unreachable when the gateway stays away.
    """
    position = Position(starts or {})
    waited = _Patience(profile, job_id)
    while True:
        try:
            last = _follow(profile, job_id, rank, position, listener, waited)
        except (Unreachable, Cut) as error:
            waited.pause(error)
        except Declined as error:
            if error.status not in PASSING:
                raise
            waited.pause(error)
        else:
            if last is not None:
                return last
            waited.pause(Cut(f"{profile.url} ended the output of job {job_id} before the job"))


def _follow(
    profile: Profile,
    job_id: str,
    rank: int,
    position: Position,
    listener: Listener,
    waited: "_Patience",
) -> Json | None:
    query = {"rank": rank, **position.offsets, "attempt": position.attempt or None}
    with opened(profile, job_path(job_id, "attach"), query) as stream:
        for line in stream.lines():
            waited.reset()
            frame = _frame(line, profile)
            attempt = int(frame.get("attempt") or position.attempt)
            if attempt < position.attempt:
                continue  # another gateway, which has not heard of the later one yet
            if position.begin(attempt):
                complain(f"job {job_id} is started again: attempt {attempt}")
            if "data" in frame:
                listener.output(frame["stream"], position.take(frame))
            elif "exit_code" in frame:
                return frame
            elif "state" in frame:
                listener.state(str(frame["state"]), attempt)
            elif "detail" in frame:
                raise Cut(str(frame["detail"]))
    return None


def _frame(line: bytes, profile: Profile) -> Json:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise Cut(f"{profile.url} sent half a line") from error
    return value if isinstance(value, dict) else {}


class _Patience:
    """Pauses that grow while nothing is heard, one note that it is so, and the end of it."""

    def __init__(self, profile: Profile, job_id: str) -> None:
        self._what = f"job {job_id} at {profile.url}"
        self._url = profile.url
        self._job_id = job_id
        self._away_s = away_s()
        self.reset()

    def reset(self) -> None:
        self._since = 0.0
        self._pause = PAUSE_FIRST_S
        self._said = False

    def pause(self, error: Exception) -> None:
        """Raises Unreachable when it has lasted MUSTER_AWAY_S."""
        now = time.monotonic()
        self._since = self._since or now
        if now - self._since > self._away_s:
            raise Unreachable(
                f"lost {self._what}: {error}; it may still run, look later with: muster logs "
                f"-f {self._job_id}"
            ) from error
        if now - self._since > SAY_AFTER_S and not self._said:
            complain(f"the connection to {self._url} is lost, trying again ({error})")
            self._said = True
        time.sleep(self._pause)
        self._pause = min(PAUSE_MAX_S, self._pause * 2)
