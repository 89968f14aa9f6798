"""Cost of folding in lines of Python, counted only in runs with a greedy tenant.

Simulated processes compute in no time. With a greedy tenant each reader of a commit is busy for
LINE_S per line that the fold of the commit took. A fold that does too much therefore delays all
decisions.
"""

import sys
from types import FrameType
from typing import Any, Final

from libs.common import fold
from libs.common.change import Change, Stamp
from libs.common.facts import AnyFact, Unknown
from libs.common.state.cluster import Cluster

# A slow machine: a real line takes a hundredth of it.
LINE_S: Final = 1e-5


class Meter:
    """`lines`: of the last fact. `busy_s`: by sequence, how long each reader folds that commit."""

    def __init__(self, counts: bool) -> None:
        self.counts = counts
        self.lines = 0
        self.busy_s: dict[int, float] = {}

    def apply(self, cluster: Cluster, fact: AnyFact | Unknown, stamp: Stamp) -> Change:
        """As `fold.apply`."""
        if not self.counts:
            return fold.apply(cluster, fact, stamp)
        self.lines, before = 0, sys.gettrace()
        sys.settrace(self._trace)
        try:
            return fold.apply(cluster, fact, stamp)
        finally:
            sys.settrace(before)
            self.busy_s[stamp.seq] = self.busy_s.get(stamp.seq, 0.0) + self.lines * LINE_S

    def _trace(self, frame: FrameType, event: str, arg: Any) -> Any:
        self.lines += event == "line"
        return self._trace
