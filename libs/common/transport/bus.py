"""The bus: requests, answers and orders beside the log, as a protocol with two twins.

`bus_nats.NatsBus` is the real one (core NATS), `bus_memory.MemoryBus` the one in memory;
tests/contract runs one suite over both. Messages may be lost: after a lost order, the digest of the
next heartbeat makes the agent ask for its orders.
"""

from collections.abc import Awaitable, Callable
from typing import Final, Protocol

# Default number of messages that a concurrent subscription handles at once. The others wait.
CONCURRENT_MAX: Final = 64
# Largest message that the server accepts. A larger one is not sent, and its requester gets an
# error.
MESSAGE_BYTES_MAX: Final = 1 << 20

# Characters of the text of a request that failed.
FAILED_LETTERS_MAX: Final = 500


class RequestFailed(Exception):
    """Raised by a handler that cannot answer: the requester gets Unavailable with `text` at once.

    `text` is one line of ASCII, because it travels in a header.
    """

    def __init__(self, text: str) -> None:
        line = " ".join(text.split())[:FAILED_LETTERS_MAX]
        self.text = line.encode("ascii", "replace").decode()
        super().__init__(self.text)


# Answers a request with bytes, or raises RequestFailed. None sends no answer; the requester then
# gets Unavailable after its timeout.
Handler = Callable[[str, bytes], Awaitable[bytes | None]]


class Bus(Protocol):
    """Messages on subjects of `subjects.py`.

    The subject of a subscription may end in `.>`, or have `*` for one token.
    """

    async def publish(self, subject: str, data: bytes) -> None:
        """Send to all current listeners, without waiting for them.

        A message that is too large is lost, with an error in this process's log.
        """
        ...

    async def request(self, subject: str, data: bytes, timeout_s: float) -> bytes:
        """Send a request to one listener and return the answer.

        Raises errors.NoListener if no process listens, errors.Unavailable if there is no answer in
        time, the listener cannot answer, or request or answer is too large.
        """
        ...

    async def subscribe(
        self,
        subject: str,
        handler: Handler,
        concurrent: bool = False,
        queue: str = "",
        places: int = CONCURRENT_MAX,
    ) -> None:
        """Call `handler(subject, data)` for each message, and send its answer to the requester.

        Messages are handled in order, one at a time, or with `concurrent` up to `places` at once.
        Of all subscriptions with the same `queue` one gets each message; without a queue all do.
        """
        ...


def too_large(subject: str, size: int, bound: int) -> str:
    """Return the error for a message that is larger than the server accepts."""
    return (
        f"a message of {size} bytes on {subject} was not sent: the server takes at most {bound} "
        "(max_payload)"
    )
