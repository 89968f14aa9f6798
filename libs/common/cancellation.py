"""A cancellation that is never passed over.

`asyncio.wait_for` of Python 3.11 (and nats-py, which is built on it) returns a result that comes in the moment of a
cancellation, and forgets the cancellation: a task that loops would then live for ever, and whoever waits for its end
with it. What talks to the world calls `heed` behind each such await. Test: tests/unit/test_cancellation.py.
"""

import asyncio


def heed() -> None:
    """Raise CancelledError if this task was told to end, whatever its last await returned."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
