"""Each acknowledged commit is at its sequence with the same bytes, in the log or in the archive.

The fold contains everything that users were promised.
"""

from libs.common.facts import JobSubmitted
from tests.sim.checkers.checker import Checker


class NoAcknowledgedFactLost(Checker):
    def finished(self) -> None:
        archived = {entry.seq: entry for entry in self.world.archive.entries}
        for seq, subject, data in self.world.acked:
            stored = self.world.stream.at(seq) or archived.get(seq)
            if stored is None or stored.subject != subject or stored.data != data:
                self.fail(
                    f"commit {seq} of {subject} was acknowledged and is neither in the log "
                    "nor in the archive"
                )
        for act in self.world.acts:
            for fact in act.facts:
                lost = (
                    isinstance(fact, JobSubmitted) and fact.job_id not in self.world.reference.jobs
                )
                if lost and act.number in self.world.acts_acked:
                    self.fail(f"{fact} was acknowledged to its user and is not in the fold")
