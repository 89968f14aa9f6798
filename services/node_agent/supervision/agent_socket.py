"""The agent's hold on its state directory: the lock, and the socket on which supervisors report
events.

An event is a hint only. The agent reads what happened from the job's own files.
"""

import contextlib
import fcntl
import os
import socket
from collections.abc import Iterator

import msgspec

from libs.common.errors import Refused

AGENT_SOCKET = "agent.sock"
MAX_DATAGRAMS_AT_ONCE = 64
DATAGRAM_BYTES = 4096


class Event(msgspec.Struct, frozen=True):
    """A datagram of a supervisor (`telling.tell`)."""

    event: str
    job_id: str
    attempt: int


_datagrams = msgspec.json.Decoder(Event)


def lock(state_dir: str) -> int:
    """Lock the state directory for this agent and return the descriptor.

    Raises Refused if another agent lives there. The lock ends with its process, however it ends.
    """
    descriptor = os.open(f"{state_dir}/agent.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise Refused(
            f"another agent uses {state_dir}: stop it, or give this one its own directory"
        ) from None
    return descriptor


def bind(state_dir: str) -> socket.socket:
    """Return the agent's socket for events.

    It is bound through the folder's descriptor, because a socket path has at most 107 bytes.
    """
    with contextlib.suppress(FileNotFoundError):
        os.unlink(f"{state_dir}/{AGENT_SOCKET}")
    events = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    folder = os.open(state_dir, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        events.bind(f"/proc/self/fd/{folder}/{AGENT_SOCKET}")
    finally:
        os.close(folder)
    return events


def received(events: socket.socket) -> Iterator[Event]:
    """Yield the events that have arrived; unreadable ones are dropped."""
    for _ in range(MAX_DATAGRAMS_AT_ONCE):
        try:
            yield _datagrams.decode(events.recv(DATAGRAM_BYTES))
        except BlockingIOError:
            return
        except (ValueError, RecursionError):
            continue
