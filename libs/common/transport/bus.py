"""What travels beside the log: requests, answers and orders, lost without harm.

One protocol, two twins.

`bus_nats.NatsBus` is the real one (core NATS), `bus_memory.MemoryBus` the in-memory twin;
tests/contract holds both to one suite. Nothing that must not be lost goes this way: a lost order
repairs itself by the next heartbeat's digest.
"""

from collections.abc import Awaitable, Callable
from typing import Final, Protocol

# Of one concurrent subscription, so many messages are answered at once unless it says otherwise;
# the others wait.
CONCURRENT_MAX: Final = 64
# What the server takes in one message; a larger one is not sent, and whoever waits for it hears so.
MESSAGE_BYTES_MAX: Final = 1 << 20

# Answers a request with bytes; None sends no answer (the asker then sees Unavailable).
Handler = Callable[[str, bytes], Awaitable[bytes | None]]


class Bus(Protocol):
    """Subjects as in `subjects.py`; a subscription's subject may end in `.>` or hold `*` for one
    token.
    """

    async def publish(self, subject: str, data: bytes) -> None:
        """Send to whoever listens now; never waits for them.

        A message that is too large is lost with an error in the log.
        """
        ...

    async def request(self, subject: str, data: bytes, timeout_s: float) -> bytes:
        """Ask one listener.

        Raises errors.Unavailable when none answers in time, and when question or answer is too
        large.
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
        """Call `handler(subject, data)` for each message; its answer goes back to the asker.

        One at a time and in order, unless `concurrent`: then up to `places` at once, for answers
        that wait. Of all who subscribe under one `queue`, one hears each message; without, all do.
        """
        ...


def too_large(subject: str, size: int, bound: int) -> str:
    """What is said of a message that no server takes."""
    return (
        f"a message of {size} bytes on {subject} was not sent: the server takes at most {bound} "
        "(max_payload)"
    )
