"""What the log told a writer that it stored, at that sequence, is there with those bytes; what users were promised is in the fold."""

from libs.common.facts import JobSubmitted
from tests.sim.checkers.checker import Checker


class NoAcknowledgedFactLost(Checker):
    def finished(self) -> None:
        entries = self.world.stream.entries
        for seq, subject, data in self.world.acked:
            stored = entries[seq - 1] if seq <= len(entries) else None
            if stored is None or stored.subject != subject or stored.data != data:
                self.fail(f"commit {seq} of {subject} was acknowledged and is not in the log")
        for act in self.world.acts:
            for fact in act.facts:
                lost = isinstance(fact, JobSubmitted) and fact.job_id not in self.world.reference.jobs
                if lost and act.number in self.world.acts_acked:
                    self.fail(f"{fact} was acknowledged to its user and is not in the fold")
