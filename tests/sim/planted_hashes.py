"""Planted bugs about hashes of the state, like those of `planted.py`."""

import pytest

from libs.common import facts as f
from libs.common.agreement import follower
from libs.common.agreement.follower import Agreement
from libs.common.change import Change
from libs.common.facts import Commit
from libs.common.state.cluster import Cluster


def a_fold_diverges(patch: pytest.MonkeyPatch) -> None:
    """A member that folds a placement counts one port too many."""
    apply_entry = Agreement.apply_entry

    def wrong(
        self: Agreement, cluster: Cluster, seq: int, subject: str, commit: Commit
    ) -> list[Change]:
        changes = apply_entry(self, cluster, seq, subject, commit)
        cluster.port_last += sum(isinstance(fact, f.JobPlaced) for fact in commit.facts)
        return changes

    patch.setattr(Agreement, "apply_entry", wrong)


def a_fold_diverges_and_no_member_compares(patch: pytest.MonkeyPatch) -> None:
    """The same, and the comparison with the leader's record is off."""
    a_fold_diverges(patch)
    patch.setattr(follower, "check", lambda recorded, own: None)
