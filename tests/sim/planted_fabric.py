"""Planted bugs about tests of the fabric; see `planted.py`."""

import pytest

from services.scheduler.decide import fabric


def nodes_are_probed_whatever_runs_there(patch: pytest.MonkeyPatch) -> None:
    """A node with jobs is measured like an idle one."""
    patch.setattr(
        fabric,
        "why_not",
        lambda cluster, node: "" if node.usable and node.fabric_address else "it is away",
    )


def a_refused_probe_counts_as_failed(patch: pytest.MonkeyPatch) -> None:
    """A node whose time for probes is used up is judged like one whose links fail."""
    patch.setattr(fabric, "_refused", lambda probes: {})
