"""Find the owners of jobs that have left the state, in the log and the archive.

A sender that continues after an outage reads facts about jobs that ended long ago. Their tenant is
in the first commit about the job. Tests: tests/integration/test_notify_delivery.py.
"""

from typing import Final

from libs.common import arrays, reading
from libs.common.facts import Commit
from libs.common.transport import archive
from libs.common.transport.bus import Bus
from services.api_gateway.notify.rules import Origin, origins
from services.api_gateway.views.entries import Entries

# Jobs that are remembered; others are asked for again.
KEPT_MAX: Final = 20_000


class Origins:
    """The origins of jobs that the sender has read or asked for lately."""

    def __init__(self, entries: Entries, bus: Bus) -> None:
        self.entries = entries
        self.bus = bus
        self._known: dict[str, Origin] = {}

    def note(self, commit: Commit) -> None:
        """Remember the jobs that begin in this commit."""
        self._known.update(origins(commit.facts))
        while len(self._known) > KEPT_MAX:
            del self._known[next(iter(self._known))]

    async def of(self, job_id: str) -> Origin | None:
        """Return the origin of a job; None if the archive does not know it. Raises Unavailable.

        An element has that of its array.
        """
        array, _ = arrays.element_of(job_id)
        job_id = array or job_id
        if job_id not in self._known:
            seqs = await archive.job_seqs(self.bus, job_id)
            entry = await self.entries.get(seqs[0]) if seqs else None
            if entry is None:
                return None
            self.note(reading.read_alone(entry.subject, entry.data))
        return self._known.get(job_id)
