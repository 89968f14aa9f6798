"""Orders of the queue: one file per policy, one function `key(job)` each; the smallest key goes first. This
dictionary lists them.
"""

from collections.abc import Callable
from typing import Final

from libs.common.cluster import Job
from services.scheduler.policies import fifo, priority

OrderKey = tuple[int, int]

POLICIES: Final[dict[str, Callable[[Job], OrderKey]]] = {"fifo": fifo.key, "priority": priority.key}
