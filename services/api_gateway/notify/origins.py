"""Find the owners of jobs that have left the state, in the log and the archive.

A sender that continues after an outage reads facts about jobs that ended long ago. Their tenant is
in the first commit about the job. Tests: tests/integration/test_notify_delivery.py.
"""

from typing import Final

from libs.common import arrays, reading
from libs.common.errors import Unavailable
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

    async def of(self, job_id: str, seq: int) -> Origin | None:
        """Return the origin of a job that commit `seq` names; None if no archived commit tells it.

        An element has that of its array. Raises Unavailable, also while the archive does not hold
        commit `seq` yet.
        """
        array, _ = arrays.element_of(job_id)
        job_id = array or job_id
        if job_id not in self._known:
            seqs = await self._seqs(job_id, seq)
            entry = await self.entries.get(seqs[0]) if seqs else None
            if entry is None:
                return None
            self.note(reading.read_alone(entry.subject, entry.data))
        return self._known.get(job_id)

    async def _seqs(self, job_id: str, seq: int) -> list[int]:
        """Return the archived commits about a job. An archive behind commit `seq` does not know."""
        seqs = await archive.job_seqs(self.bus, job_id)
        if seqs:
            return seqs
        if not await archive.holds(self.bus, seq):
            raise Unavailable(
                f"the archive does not know job {job_id} and does not hold commit {seq}, which "
                "names it: check that audit follows the log"
            )
        return await archive.job_seqs(self.bus, job_id)
