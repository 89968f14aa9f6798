"""Planted bugs about tests of the fabric; see `planted.py`."""

import pytest

from libs.common.state.refusals import Refusals
from services.scheduler.decide import fabric, preflight


def nodes_are_probed_whatever_runs_there(patch: pytest.MonkeyPatch) -> None:
    """A node with jobs is measured like an idle one."""
    patch.setattr(
        fabric,
        "why_not",
        lambda cluster, node_id, for_job="": (
            "" if cluster.nodes[node_id].fabric_address else "it is away"
        ),
    )


def a_refused_probe_counts_as_failed(patch: pytest.MonkeyPatch) -> None:
    """A node whose time for probes is used up is judged like one whose links fail."""
    patch.setattr(fabric, "_refused", lambda probes: {})


def a_gang_starts_before_its_preflight(patch: pytest.MonkeyPatch) -> None:
    """A gang that asked for a preflight is placed at once."""
    patch.setattr(preflight, "needs_preflight", lambda state, job, choice: False)


def a_gang_starts_on_a_suspect_of_its_preflight(patch: pytest.MonkeyPatch) -> None:
    """A suspect preflight counts as passed, and excludes no node from the gang's place."""
    patch.setattr(preflight, "MAY_START", (*preflight.MAY_START, "suspect"))
    patch.setattr(Refusals, "avoided", lambda self, now_ns: ())
