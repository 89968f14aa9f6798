"""Follows the output of a job until it ends, and reconnects after broken connections.

The gateway sends one JSON object per line: pieces of output, states, and finally the exit. After a
broken connection the command requests the stream from the first byte that it has not seen, so
nothing is printed twice. Offsets belong to one attempt; a new attempt begins at 0. The command
gives up after MUSTER_AWAY_S (120) without an answer. Tests: tests/integration/test_cli_run.py.
"""

import json
import time
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from libs.cli.faults import Cut, Declined, Unreachable
from libs.cli.gateway import Json, job_path, opened
from libs.cli.terminal.output import complain
from libs.client.position import Position
from libs.client.profile import Profile, away_s
from libs.client.timing import Patience

NOTE_AFTER_S: Final = 1.0
# HTTP statuses of temporary errors.
TEMPORARY: Final = (429, 500, 502, 503, 504)


class Listener(NamedTuple):
    """Callbacks for output (stream, bytes) and states (state, attempt)."""

    output: Callable[[str, bytes], None]
    state: Callable[[str, int], None]


def attach(
    profile: Profile,
    job_id: str,
    rank: int,
    listener: Listener,
    starts: Mapping[str, int] | None = None,
) -> Json:
    """Follow a job and return its last frame (`exit_code`, `state`, `reason`).

    `starts` are the offsets to begin at. Raises Declined, or Unreachable if the gateway does not
    answer for MUSTER_AWAY_S.
    """
    position = Position(starts or {})
    waited = _Reconnections(profile, job_id)
    while True:
        try:
            last = _follow(
                profile, job_id, rank=rank, position=position, listener=listener, waited=waited
            )
        except (Unreachable, Cut) as error:
            waited.pause(error)
        except Declined as error:
            if error.status not in TEMPORARY:
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
    waited: "_Reconnections",
) -> Json | None:
    query = {"rank": rank, **position.offsets, "attempt": position.attempt or None}
    with opened(profile, job_path(job_id, "attach"), query) as stream:
        for line in stream.lines():
            waited.reset()
            frame = _frame(line, profile)
            attempt = int(frame.get("attempt") or position.attempt)
            if attempt < position.attempt:
                continue  # from a gateway that has not read the later attempt yet
            if position.begin(attempt):
                complain(f"job {job_id} was restarted: attempt {attempt}")
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
        raise Cut(f"{profile.url} sent an incomplete line") from error
    return value if isinstance(value, dict) else {}


class _Reconnections:
    """The client's pauses between tries, and one note on stderr."""

    def __init__(self, profile: Profile, job_id: str) -> None:
        self._what = f"job {job_id} at {profile.url}"
        self._url = profile.url
        self._job_id = job_id
        self._patience = Patience(away_s())
        self._noted = False

    def reset(self) -> None:
        self._patience.reset()
        self._noted = False

    def pause(self, error: Exception) -> None:
        """Wait before the next try. Raises Unreachable after MUSTER_AWAY_S without an answer."""
        now = time.monotonic()
        pause_s = self._patience.pause_s(now)
        if pause_s is None:
            raise Unreachable(
                f"lost {self._what}: {error}; the job may still run; check later with: muster "
                f"logs -f {self._job_id}"
            ) from error
        if now - (self._patience.since_s or now) > NOTE_AFTER_S and not self._noted:
            complain(f"lost the connection to {self._url}, reconnecting ({error})")
            self._noted = True
        time.sleep(pause_s)
