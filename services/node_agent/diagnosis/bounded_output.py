"""Runs a program for its output, bounded in time and size.

Both bounds hold although the job's user may trace or stop the program. Tests:
tests/integration/test_diagnosis_recorders.py, tests/integration/test_diagnosis_stacks.py.
"""

import os
import select
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

READ_BYTES: Final = 64 << 10


class Output(NamedTuple):
    """The standard output of a program. `fault` says why it is not whole; empty if it is."""

    data: bytes
    fault: str = ""


def output_of(
    command: Sequence[str],
    limit_s: float,
    limit_bytes: int,
    *,
    ids: Sequence[int] = (),
    env: Mapping[str, str] | None = None,
    descriptors: Sequence[int] = (),
) -> Output:
    """Return the output of a program, which is killed at the first bound that it reaches.

    `ids` are the user and the group that it runs as, without further groups; empty: the agent's.
    Without `env` it has the agent's environment. It inherits the `descriptors`. Raises OSError.
    """
    deadline = time.monotonic() + limit_s
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=env,
        user=ids[0] if ids else None,
        group=ids[1] if ids else None,
        extra_groups=[] if ids else None,
        pass_fds=descriptors,
    ) as child:
        assert child.stdout is not None, "a pipe"
        found = bytearray()
        try:
            is_whole = _read(child.stdout.fileno(), found, deadline, limit_bytes)
            exit_code = child.wait(max(0.0, deadline - time.monotonic())) if is_whole else 0
        except (TimeoutError, subprocess.TimeoutExpired):
            return Output(bytes(found), f"it took more than {limit_s:g} s")
        finally:
            child.kill()
    if not is_whole:
        return Output(bytes(found[:limit_bytes]), f"it wrote more than {limit_bytes} bytes")
    return Output(bytes(found), f"it ended with code {exit_code}" if exit_code else "")


def _read(descriptor: int, found: bytearray, deadline: float, limit_bytes: int) -> bool:
    """Read a pipe to its end; return False if it has more bytes. Raises TimeoutError."""
    readable = select.poll()
    readable.register(descriptor, select.POLLIN)
    while len(found) <= limit_bytes:
        left_ms = int(1_000 * (deadline - time.monotonic()))
        if left_ms <= 0 or not readable.poll(left_ms):
            raise TimeoutError
        part = os.read(descriptor, READ_BYTES)
        if not part:
            return True
        found += part
    return False
