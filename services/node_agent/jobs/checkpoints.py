"""Watch the files by which running jobs report: a job touches its checkpoint file when its work is
saved, and the supervisor of a batch keeps the journal of its elements.

The agent reads the time of each file once a second, and more often after a stop was sent, so that a
job which saves its work and exits is recorded soon. The core records new checkpoints
(`core/attempt_facts.py`). Tests: tests/unit/test_checkpoint_files.py.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from libs.common import arrays
from services.node_agent.core import state as s
from services.node_agent.core.observations import Checkpointed
from services.node_agent.directories.batches import elements_seen
from services.node_agent.directories.protocol import JobSupervisors, OnEvent

LOOK_S: Final = 1.0
LOOK_SOON_S: Final = 0.1
# While some attempts are stopping, the others are read only once in so many rounds.
LOOKS: Final = round(LOOK_S / LOOK_SOON_S)


async def watch(state: Callable[[], s.State], jobs: JobSupervisors, tell: OnEvent) -> None:
    """Report new checkpoints and ended elements of the running attempts, for ever."""
    look = 0
    while True:
        running = [attempt for attempt in state().attempts.values() if attempt.phase == s.LAUNCHED]
        stopping = [attempt for attempt in running if attempt.stop_sent is not None]
        for attempt in stopping if look else running:
            at_ns = jobs.checkpointed_ns(attempt.ref)
            if at_ns > attempt.checkpointed_ns:
                tell(Checkpointed(s.key_of(attempt.ref), at_ns))
            if not look and arrays.is_batch(attempt.ref.job_id):
                seen = elements_seen(jobs.directory_of(attempt.ref), s.key_of(attempt.ref))
                if seen is not None and seen != attempt.elements:
                    tell(seen)
        look = (look + 1) % LOOKS if stopping else 0
        await asyncio.sleep(LOOK_SOON_S if stopping else LOOK_S)
