"""Pauses, threads, and the bound of calls at once: the part that differs between the two clients.

The counterpart of `libs/client/asynchronous/pauses.py`; the only file here that is not generated.
"""

import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

pause = time.sleep
Places = threading.Semaphore


def in_thread(work: Callable[..., T], *arguments: object) -> T:
    """Do the work here: this client may block."""
    return work(*arguments)
