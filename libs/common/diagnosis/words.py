"""Verdicts in words: names of ranks, places, groups and notes. Pure."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from libs.common.diagnosis import evidence as e
from libs.common.diagnosis import places
from libs.common.diagnosis.evidence import NodeSeen, Suspect
from libs.common.diagnosis.places import Place
from libs.common.diagnosis.ranks import Rank, Seen, numbers

DOES: Final = {
    "input": "waits for its input",
    "lock": "waits for a lock or a thread",
    "sleep": "sleeps",
    "storage": "waits for storage",
    "compute": "computes",
    "unknown": "is elsewhere",
}


def does(rank: Rank) -> str:
    """Return what the rank does, in words; where the kernel holds it, if nothing else is known."""
    waits_in = rank.process.waits_in
    return f"waits ({waits_in})" if rank.cause == "unknown" and waits_in else DOES[rank.cause]


def alone(rank: Rank) -> str:
    """Return the sentence on a job of one rank, which waits for no other."""
    activity = "waits for its device" if rank.place.kind == places.DEVICE else does(rank)
    activity = activity.removesuffix(" elsewhere")
    busy = rank.busy_percent
    device = f"; its device is {busy} % busy" if busy >= 0 else ""
    return f"the job has one rank: it {activity} in {rank.place.text}{device}"


def port_words(port: e.PortSeen) -> str:
    return f"had {port.errors} errors" if port.is_up else "is down"


def named(suspects: Sequence[Suspect]) -> str:
    """Return the first suspect in words, and how many more there are."""
    first = suspects[0]
    name = f"rank {first.rank} on {first.node_id}" if first.rank >= 0 else first.node_id
    return f"{name} and {len(suspects) - 1} more" if len(suspects) > 1 else name


def others(seen: Seen) -> str:
    waits = seen.waits
    if not waits:
        return "no rank waits in a collective"
    verb = "waits" if len(waits) == 1 else "wait"
    return f"{len(waits)} of {seen.world} ranks {verb} in {common(waits)}"


def common(ranks: Sequence[Rank]) -> str:
    """Return the place where most of these ranks are."""
    return Counter(rank.place for rank in ranks).most_common(1)[0][0].text


def groups(seen: Seen) -> tuple[e.Group, ...]:
    """Return the ranks by their last place, the largest group first."""
    by_place: dict[Place, list[int]] = {}
    for number, rank in seen.ranks.items():
        by_place.setdefault(rank.place, []).append(number)
    ordered = sorted(by_place.items(), key=lambda pair: -len(pair[1]))
    return tuple(
        e.Group(numbers(found), len(found), place.text, place.kind)
        for place, found in ordered[: e.GROUPS_MAX]
    )


def notes(nodes: Iterable[NodeSeen]) -> tuple[str, ...]:
    found = [
        f"{node.node_id}: {note}"
        for node in nodes
        for note in (*([node.error] if node.error else ()), *node.notes)
    ]
    return tuple(found[: e.NOTES_MAX])


def capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]
