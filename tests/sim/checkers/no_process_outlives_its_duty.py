"""A process ends soon after its writer, its reader or another serving task has ended.

Otherwise it would look alive and do nothing.
"""

from typing import Final

from libs.common.change import Change, Stamp
from libs.common.facts import AnyFact, Commit, Unknown
from libs.common.state.cluster import Cluster
from tests.sim.checkers.checker import Checker

# Longer than `cancellation.end_all` asks tasks to end.
WITHIN_S: Final = 6.0


class NoProcessOutlivesItsDuty(Checker):
    """Looked at with every fact, and at the end."""

    def after(
        self,
        cluster: Cluster,
        fact: AnyFact | Unknown,
        stamp: Stamp,
        commit: Commit,
        change: Change,
    ) -> None:
        self._look()

    def finished(self) -> None:
        self._look()

    def _look(self) -> None:
        now = self.world.loop.now
        for name, slot in self.world.slots.items():
            process = slot.process
            since = process.half_dead_since
            if (
                process.alive
                and since is not None
                and now - max(since, process.paused_until) > WITHIN_S
            ):
                self.fail(
                    f"{name} lives on {now - since:.1f} s after one of its serving tasks ended"
                )
