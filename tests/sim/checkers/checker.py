"""Protocol of the checkers: a rule with up to four moments at which a run can break it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from libs.common.change import Change, Stamp
from libs.common.facts import AnyFact, Commit, Unknown
from libs.common.state.cluster import Cluster
from tests.sim.truth import Running

if TYPE_CHECKING:
    from tests.sim.world import World


class Violation(Exception):
    """A rule is broken; the text says how."""

    def __init__(self, checker: str, message: str) -> None:
        super().__init__(f"{checker}: {message}")
        self.checker = checker
        self.message = message


class Checker:
    """Does nothing; a rule overrides the moments that it needs."""

    def __init__(self, world: World) -> None:
        self.world = world

    @property
    def name(self) -> str:
        return type(self).__module__.rsplit(".", 1)[1]

    def fail(self, message: str) -> None:
        """Record the violation and end the run."""
        self.world.violate(self.name, message)

    def before(
        self, cluster: Cluster, fact: AnyFact | Unknown, stamp: Stamp, commit: Commit
    ) -> None:
        """A fact was stored; the state is the one before it."""

    def after(
        self,
        cluster: Cluster,
        fact: AnyFact | Unknown,
        stamp: Stamp,
        commit: Commit,
        change: Change,
    ) -> None:
        """A fact was folded."""

    def began(self, running: Running) -> None:
        """A job's process began to run, and is among the living already."""

    def finished(self) -> None:
        """The run is over and quiet."""
