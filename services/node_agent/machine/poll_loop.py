"""One poll(2) loop: descriptors and what to call when they are ready.

It sleeps until something happens or the time given is over.
"""

import select
from collections.abc import Callable

READ = select.POLLIN
WRITE = select.POLLOUT
NS_PER_MS = 1_000_000


class PollLoop:
    """A loop over poll(2). Errors and hang-ups call the callback too; it notices when it reads or
    writes.
    """

    def __init__(self) -> None:
        self._poll = select.poll()
        self._callbacks: dict[int, Callable[[], object]] = {}

    def watch(self, descriptor: int, events: int, callback: Callable[[], object]) -> None:
        self._poll.register(descriptor, events)
        self._callbacks[descriptor] = callback

    def unwatch(self, descriptor: int) -> None:
        """Stop watching a descriptor; call this before closing it. Harmless if it is
        not watched.
        """
        if self._callbacks.pop(descriptor, None) is not None:
            self._poll.unregister(descriptor)

    def forget(self, descriptor: int) -> None:
        """Stop watching a descriptor that is closed already."""
        self._callbacks.pop(descriptor, None)
        self._poll.unregister(descriptor)

    def run_once(self, timeout_ns: int | None) -> bool:
        """Wait for events; return whether any came in time (None: wait for ever).

        The time is rounded up to milliseconds, so that a deadline has passed on return.
        """
        timeout_ms = None if timeout_ns is None else max(0, -(-timeout_ns // NS_PER_MS))
        ready = self._poll.poll(timeout_ms)
        for descriptor, _ in ready:
            callback = self._callbacks.get(descriptor)
            if callback is not None:  # an earlier callback of this round may have unwatched it
                callback()
        return bool(ready)
