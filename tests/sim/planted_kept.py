"""Bugs about resident data, planted on purpose (`planted.py`)."""

import pytest

from services.scheduler.decide import decide


def a_placement_evicts_no_resident_data(patch: pytest.MonkeyPatch) -> None:
    """A job gets memory that resident data still has."""
    patch.setattr(decide, "with_evictions", lambda cluster, facts: facts)
