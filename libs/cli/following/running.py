"""Runs one job to its end: submits it, follows its output, forwards input, and handles signals.

The common part of `muster run` and of the shim srun. Tests: tests/integration/test_cli_run.py.
"""

import signal
import sys
import threading
from collections.abc import Sequence
from typing import Any, Final

from libs.cli.following.attach import Listener, attach
from libs.cli.following.stdin_forwarding import Forwarder
from libs.cli.following.stopping import Stopping
from libs.cli.gateway import ask
from libs.cli.jobs import ENDED, exit_code_of
from libs.cli.terminal.ending import end_line
from libs.cli.terminal.output import complain
from libs.cli.terminal.waiting_note import WaitingNote
from libs.client.profile import Profile
from libs.common.errors import MusterError

ON_NODE: Final = ("running", "releasing", *ENDED)
PIPE_CLOSED: Final = 141
# How long the output of the other ranks is waited for when the job has ended.
OTHERS_S: Final = 5.0


def run_to_end(
    profile: Profile, wanted: dict[str, Any], rank: int = 0, others: Sequence[int] = ()
) -> int:
    """Run the job and return its exit code. `others` are further ranks whose output is shown."""
    stopping = Stopping(profile)
    job_id = str(ask(profile, "POST", "/v1/jobs", body=wanted)["id"])
    stopping.watch(job_id)
    note = WaitingNote(profile, job_id)
    forwarder = Forwarder(profile, job_id)

    def on_state(state: str, attempt: int) -> None:
        if state in ON_NODE:
            note.started()
        if state == "running" and wanted.get("stdin"):
            forwarder.start(attempt)

    output = _Output(stopping)
    threads = [_follow_other(profile, job_id, other, output) for other in others]
    last = attach(profile, job_id, rank, Listener(output.write, on_state))
    for thread in threads:
        thread.join(OTHERS_S)
    note.started()
    forwarder.stop()
    if output.closed:
        return PIPE_CLOSED
    if line := end_line(profile, job_id, last):
        complain(line)
    return exit_code_of(last)


def _follow_other(profile: Profile, job_id: str, rank: int, output: "_Output") -> threading.Thread:
    def follow() -> None:
        try:
            attach(profile, job_id, rank, Listener(output.write, lambda _state, _attempt: None))
        except MusterError as error:
            complain(f"the output of rank {rank} is not shown any more: {error}")

    thread = threading.Thread(target=follow, name=f"rank-{rank}", daemon=True)
    thread.start()
    return thread


class _Output:
    """Writes the job's output at once.

    When the reader of this command's output is gone, the job gets SIGPIPE, as in a shell pipe.
    """

    def __init__(self, stopping: Stopping) -> None:
        self.closed = False
        self._stopping = stopping
        self._lock = threading.Lock()

    def write(self, stream: str, data: bytes) -> None:
        file = sys.stderr.buffer if stream == "stderr" else sys.stdout.buffer
        with self._lock:
            if self.closed:
                return
            try:
                file.write(data)
                file.flush()
            except BrokenPipeError:
                self.closed = True
                self._stopping.stop_with(signal.SIGPIPE)
