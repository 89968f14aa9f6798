"""One poll(2) loop: descriptors and what to call when they are ready.

It sleeps until something happens or the time given is over.
"""

import select
from collections.abc import Callable

READ = select.POLLIN
WRITE = select.POLLOUT
NS_PER_MS = 1_000_000


class PollLoop:
    """Errors and hang-ups wake a callback too; it finds out by reading or writing."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._callbacks: dict[int, Callable[[], object]] = {}

    def watch(self, descriptor: int, events: int, callback: Callable[[], object]) -> None:
        self._poll.register(descriptor, events)
        self._callbacks[descriptor] = callback

    def unwatch(self, descriptor: int) -> None:
        """Harmless for a descriptor that is not watched. To be called before it is closed."""
        if self._callbacks.pop(descriptor, None) is not None:
            self._poll.unregister(descriptor)

    def forget(self, descriptor: int) -> None:
        """For one that was closed already."""
        self._callbacks.pop(descriptor, None)
        self._poll.unregister(descriptor)

    def run_once(self, timeout_ns: int | None) -> bool:
        """Whether anything happened in time (None: for ever).

        Rounded up to whole milliseconds, so that a deadline has passed on return.
        """
        timeout_ms = None if timeout_ns is None else max(0, -(-timeout_ns // NS_PER_MS))
        ready = self._poll.poll(timeout_ms)
        for descriptor, _ in ready:
            callback = self._callbacks.get(descriptor)
            if callback is not None:  # an earlier callback of this round may have let it go
                callback()
        return bool(ready)
