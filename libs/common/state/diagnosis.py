"""The diagnoses of a job in the fold."""

from typing import Final

import msgspec

from libs.common.model import NodeId

# Diagnoses of one job; the last ones are kept.
DIAGNOSES_KEPT: Final = 4


class Diagnosis(msgspec.Struct, frozen=True):
    """One diagnosis; see `facts.JobDiagnosed`. `at_ns` is the gateway's wall clock."""

    attempt: int
    verdict: str
    sentence: str
    cause: str
    rank: int
    node_id: NodeId
    others: int
    places: tuple[str, ...]
    automatic: bool
    user: str
    at_ns: int
