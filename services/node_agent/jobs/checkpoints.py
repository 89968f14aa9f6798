"""What the jobs of this node say of their checkpoints: each has a file, and touches it when its
work is saved.

The file's time is looked at now and then, more often if it has been told to stop: nobody waits
longer for its work to be saved than it needs. The core records what is new (`decide.py`). Test:
tests/unit/test_checkpoint_files.py.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from services.node_agent.core import state as s
from services.node_agent.core.observations import Checkpointed
from services.node_agent.jobs.protocol import JobSupervisors, OnEvent

LOOK_S: Final = 1.0
LOOK_SOON_S: Final = 0.1
# While some are told to stop everybody is looked at once in so many looks.
LOOKS: Final = round(LOOK_S / LOOK_SOON_S)


async def watch(state: Callable[[], s.State], jobs: JobSupervisors, tell: OnEvent) -> None:
    """For ever."""
    look = 0
    while True:
        running = [attempt for attempt in state().attempts.values() if attempt.phase == s.LAUNCHED]
        told = [attempt for attempt in running if attempt.told is not None]
        for attempt in told if look else running:
            at_ns = jobs.checkpointed_ns(attempt.ref)
            if at_ns > attempt.checkpointed_ns:
                tell(Checkpointed(s.key_of(attempt.ref), at_ns))
        look = (look + 1) % LOOKS if told else 0
        await asyncio.sleep(LOOK_SOON_S if told else LOOK_S)
