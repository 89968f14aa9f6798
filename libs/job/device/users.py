"""Count the uses of each device's primary context in this process: created once, destroyed once.

Tests: tests/vendors/test_contexts.py.
"""

import threading
from collections.abc import Callable

from libs.job.device.errors import Cause, DeviceError


class Users:
    """Counts the uses of one vendor's primary contexts, by device index.

    `create` returns the context's handle and `destroy` gives it up; both may raise DeviceError.
    """

    def __init__(
        self, driver: str, create: Callable[[int], int], destroy: Callable[[int], None]
    ) -> None:
        self._driver = driver
        self._create = create
        self._destroy = destroy
        self._lock = threading.Lock()
        self._uses: dict[int, int] = {}
        self._contexts: dict[int, int] = {}

    def retain(self, index: int) -> None:
        """Count one use more; the first one creates the context."""
        with self._lock:
            if not self._uses.get(index):
                self._contexts[index] = self._create(index)
            self._uses[index] = self._uses.get(index, 0) + 1

    def release(self, index: int) -> None:
        """Count one use less; the last one destroys the context. Raises INVALID_CONTEXT."""
        with self._lock:
            self.context(index)
            if self._uses[index] == 1:
                self._destroy(index)
                del self._contexts[index]
            self._uses[index] -= 1

    def retained(self, index: int) -> bool:
        """Return whether this process uses the context."""
        return index in self._contexts

    def context(self, index: int) -> int:
        """Return the context's handle. Raises DeviceError INVALID_CONTEXT if it has no user."""
        found = self._contexts.get(index)
        if found is None:
            text = "this process has no context on the device"
            raise DeviceError(
                Cause.INVALID_CONTEXT,
                "context",
                driver=self._driver,
                text=text,
                on=f"device {index}",
            )
        return found
