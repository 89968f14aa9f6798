"""The rule about ranks that ended: which of them was the cause, and which lost another one. Pure.

Tests: tests/unit/test_diagnosis_rules.py.
"""

from typing import Final

from libs.common.diagnosis import evidence as e
from libs.common.diagnosis import places
from libs.common.diagnosis.evidence import Ending, Suspect, Verdict
from libs.common.diagnosis.ranks import Seen, expected
from libs.common.diagnosis.words import named, others

DEAD_STATES: Final = "ZXx"


def dead(seen: Seen) -> Verdict | None:
    """Return the verdict that ranks ended while others are there; None if none did."""
    endings = {one.rank: one for node in seen.nodes for one in node.endings}
    suspects = [
        Suspect(
            rank.number,
            rank.node.node_id,
            _why_gone(endings.get(rank.number), "its process ended and was not waited for"),
        )
        for rank in seen.ranks.values()
        if rank.process.state in DEAD_STATES
    ]
    suspects += [
        Suspect(number, node.node_id, f"its part of the job ended: {node.ended}")
        for node in seen.nodes
        if node.ended and not node.processes
        for number in expected(seen, node)[:1]
    ]
    known = {suspect.rank for suspect in suspects} | set(seen.ranks)
    suspects += [
        Suspect(
            number, node.node_id, _why_gone(endings.get(number), "no process of this rank is there")
        )
        for node in seen.nodes
        if not node.error and not node.ended
        for number in expected(seen, node)
        if number not in known
    ]
    # While a job starts, most ranks are missing.
    if not suspects or 2 * len(suspects) > seen.world:
        return None
    suspects.sort(key=lambda suspect: _order_of_ending(endings.get(suspect.rank)))
    first = suspects[0]
    return Verdict(
        kind=e.DEAD,
        sentence=f"{named(suspects)} ended: {first.why}; {others(seen)}",
        cause="exited",
        suspects=tuple(suspects),
        is_certain=bool(seen.waits),
    )


def _why_gone(ending: Ending | None, otherwise: str) -> str:
    if ending is None:
        return otherwise
    return f"its program ended with {ending.error} in {places.place_of(ending.stack).text}"


def _order_of_ending(ending: Ending | None) -> tuple[int, int]:
    """Return a key that puts causes before consequences.

    A rank that failed in its own code is the cause; one that failed in a collective probably lost
    another rank. One without a report was ended by a signal or left without an exception.
    """
    if ending is None:
        return 1, 0
    is_inside = places.place_of(ending.stack).kind == places.COLLECTIVE
    return 2 if is_inside else 0, ending.at_ns
