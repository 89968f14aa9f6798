"""A scheduler in virtual time: its state in a term of its own, and the log that all writers would
have written.

Pure. Facts take the same way as in the live service: those of other writers are folded as commits
of the log; the scheduler's own are applied ahead of it and passed over when they come back.
"""

from collections.abc import Iterator, Sequence

from libs.common import facts as f
from libs.common import subjects
from libs.common.facts import VERSION, AnyFact, Commit
from libs.common.state.cluster import Cluster
from libs.common.state.ordering import DEFAULT_QUEUE
from services.scheduler.decide.decide import decide
from services.scheduler.state.state import State

GATEWAY = subjects.gateway("simulated")


class Simulated:
    """The simulated cluster. `now` is the one clock of all its parts."""

    def __init__(
        self,
        nodes: Sequence[f.NodeRegistered],
        order: str,
        place: str,
        backfill: bool | None = None,
    ) -> None:
        self.state = State(Cluster(), place)
        self.now = 0
        self.decisions = 0
        self._numbers: dict[str, int] = {}
        self.hear(subjects.SCHEDULER, f.TermBegan(instance="simulated"))
        self.state.begin(self.state.cluster.epoch, 0)
        self.hear(GATEWAY, f.QueueSet(queue=DEFAULT_QUEUE, policy=order, backfill=backfill))
        for node in nodes:
            self.hear(subjects.node(node.node_id), node)

    def hear(self, subject: str, *facts: AnyFact) -> None:
        """Fold facts of another writer."""
        self.state.apply_entry(self.state.seq + 1, subject, self._commit(subject, facts))

    def decide(self) -> Iterator[AnyFact]:
        """Yield all decisions of the scheduler at this time; the reader of a fact may answer it
        before the next decision.
        """
        while facts := decide(self.state, self.now):
            self.decisions += 1
            self.state.apply_own(facts, self.now)
            self.state.skip_own(
                self.state.seq + 1, subjects.SCHEDULER, self._commit(subjects.SCHEDULER, facts)
            )
            yield from facts

    def _commit(self, subject: str, facts: Sequence[AnyFact]) -> Commit:
        number = self._numbers[subject] = self._numbers.get(subject, 0) + 1
        seq = self.state.seq
        epoch = self.state.epoch or seq + 1 if subject == subjects.SCHEDULER else 1
        return Commit(
            version=VERSION,
            min_reader=VERSION,
            writer=subject,
            number=number,
            epoch=epoch,
            at_ns=self.now,
            seen=seq,
            facts=tuple(facts),
        )
