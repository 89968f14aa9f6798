"""The verdict of a diagnosis: which rank the others wait for, and why. Pure.

The rules are tried in the order of RULES; the first that finds something decides. Each is about
what cannot be otherwise in a job that makes no progress: a rank that waits in a collective waits
for those that are not there. Time per step blames no rank, because collectives make all ranks
equally slow (docs/diagnose.md). Tests: tests/unit/test_diagnosis_rules.py,
tests/property/test_diagnosis.py.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from libs.common.diagnosis import evidence as e
from libs.common.diagnosis import places
from libs.common.diagnosis.ended import dead
from libs.common.diagnosis.evidence import NodeSeen, Suspect, Verdict
from libs.common.diagnosis.places import Place
from libs.common.diagnosis.ranks import Rank, Seen, gathered, homes, is_majority, rank_of
from libs.common.diagnosis.words import (
    alone,
    capital,
    common,
    does,
    groups,
    named,
    notes,
    others,
    port_words,
)

# A rank that is in a collective in at most this part of the looks (hundredths) waits for no other.
FREE_AT_MOST: Final = 34
# A link is suspect from so many errors on, and if it has so many times those of any other device.
LINK_ERRORS: Final = 10
LINK_FACTOR: Final = 3
# Causes that no healthy program has for long.
SURE: Final = ("input", "lock", "storage", "stopped")
STOPPED_STATES: Final = "Tt"


Rule = Callable[[Seen], Verdict | None]


def diagnose(nodes: Sequence[NodeSeen]) -> Verdict:
    """Return the verdict on the evidence of the nodes of a job."""
    seen = gathered(nodes)
    verdict = next((found for rule in RULES if (found := rule(seen)) is not None), _nothing(seen))
    return Verdict(
        kind=verdict.kind,
        sentence=capital(verdict.sentence),
        cause=verdict.cause,
        suspects=verdict.suspects[: e.SUSPECTS_MAX],
        groups=groups(seen),
        notes=notes(nodes),
        is_certain=verdict.is_certain,
    )


def automatic(
    first: Sequence[NodeSeen], second: Sequence[NodeSeen], silent_s: int
) -> Verdict | None:
    """Return the verdict that is recorded although no user asked; None without one.

    Two diagnoses must agree: the same verdict, certain both times, on the same rank and with every
    rank at the same place, while no node saw a sign of progress for `silent_s`. A node whose part
    ended has no processes that could show progress.
    """
    if any(not 0 <= silent_s <= node.silent_s for node in second if not node.ended):
        return None
    before, after = diagnose(first), diagnose(second)
    if not (before.is_certain and after.is_certain) or before.kind != after.kind:
        return None
    same = _firsts(before) == _firsts(after) and before.groups == after.groups
    return after if same else None


def _stopped(seen: Seen) -> Verdict | None:
    stopped = [rank for rank in seen.ranks.values() if rank.process.state in STOPPED_STATES]
    suspects = [_suspect(rank, "it is stopped by a signal or a debugger") for rank in stopped]
    if not suspects:
        return None
    return Verdict(
        kind=e.STOPPED,
        sentence=f"{named(suspects)} is stopped (state {stopped[0].process.state}); "
        f"{others(seen)}. Continue it with SIGCONT",
        cause="stopped",
        suspects=tuple(suspects),
        is_certain=True,
    )


def _silent(seen: Seen) -> Verdict | None:
    """Return the verdict `silent`: a node gives no evidence while all ranks elsewhere wait."""
    silent = [node for node in seen.nodes if node.error]
    if not silent or not seen.ranks or len(seen.waits) < len(seen.ranks):
        return None
    suspects = tuple(Suspect(-1, node.node_id, node.error) for node in silent)
    names = ", ".join(node.node_id for node in silent)
    return Verdict(
        kind=e.SILENT,
        sentence=f"{names} gives no evidence ({silent[0].error}), and {others(seen)}",
        cause="unknown",
        suspects=suspects,
    )


def _recorded(seen: Seen) -> Verdict | None:
    """Return the verdict on a rank that has not begun the collective in which others wait.

    The flight recorders of the ranks tell.
    """
    by_group: dict[str, dict[int, e.Collective]] = {}
    for number, rank in seen.ranks.items():
        for one in rank.process.collectives:
            by_group.setdefault(one.group, {})[number] = one
    for name, found in by_group.items():
        top = max(one.seq for one in found.values())
        inside = {number: one for number, one in found.items() if one.seq == top and not one.ended}
        behind = [number for number in _members(seen, found) if number not in inside]
        if not inside or len(behind) > len(inside):
            continue
        if behind:
            return _behind(seen, behind, found, inside, f"collective {top} of group {name}")
        ops = Counter(one.op for one in inside.values()).most_common()
        if len(ops) > 1 and ops[0][1] > ops[1][1]:
            return _other_op(seen, inside, ops[0][0], f"collective {top} of group {name}")
    return None


def _members(seen: Seen, found: Mapping[int, e.Collective]) -> list[int]:
    """Return the members of a process group that are ranks with evidence."""
    named = [number for one in found.values() for number in one.ranks if number in seen.ranks]
    return sorted({*named, *found})


def _behind(
    seen: Seen,
    behind: Sequence[int],
    found: Mapping[int, e.Collective],
    inside: Mapping[int, e.Collective],
    what: str,
) -> Verdict | None:
    if seen.has_looks and all(seen.ranks[number].waiting == 0 for number in inside):
        return None  # no rank waits: the collectives run beside the program
    ordered = sorted(behind, key=lambda number: found[number].seq if number in found else -1)
    suspects = [
        _suspect(
            seen.ranks[number],
            f"it did not begin {what}: it is in {seen.ranks[number].place.text}",
        )
        for number in ordered
    ]
    op = next(iter(inside.values())).op
    return Verdict(
        kind=e.BEHIND,
        sentence=f"{len(inside)} ranks wait in {op} ({what}), which {named(suspects)} did not "
        f"begin: it {does(seen.ranks[ordered[0]])} in {seen.ranks[ordered[0]].place.text}",
        cause=_cause(seen, ordered[0]),
        suspects=tuple(suspects),
        is_certain=_is_certain([seen.ranks[number] for number in ordered]),
    )


def _other_op(seen: Seen, inside: Mapping[int, e.Collective], op: str, what: str) -> Verdict:
    suspects = [
        _suspect(seen.ranks[number], f"it began {one.op} as {what}, the others {op}")
        for number, one in inside.items()
        if one.op != op
    ]
    return Verdict(
        kind=e.MISMATCH,
        sentence=f"{named(suspects)} began {inside[suspects[0].rank].op} as {what}, "
        f"and {len(inside) - len(suspects)} ranks began {op}: the order of collectives differs",
        cause="order",
        suspects=tuple(suspects),
        is_certain=True,
    )


def _unreached(seen: Seen) -> Verdict | None:
    """Return the verdict on a rank that NCCL's RAS cannot reach, or that began fewer collectives.

    The ranks of a communicator are those of the job only if it has all of them.
    """
    whole = [one for node in seen.nodes for one in node.communicators if one.size == seen.world > 1]
    for one in whole:
        totals = {rank.rank: sum(rank.counts.values()) for rank in one.ranks if not rank.missing}
        most = max(totals.values(), default=0)
        fewer = sorted(number for number, total in totals.items() if total < most)
        missing = [rank.rank for rank in one.ranks if rank.missing]
        for group, why in (
            (missing, "NCCL cannot reach it"),
            (fewer, "it began fewer collectives"),
        ):
            if 0 < 2 * len(group) <= seen.world:
                found = homes(seen)
                suspects = [_suspect_of(seen, found, number, why) for number in group]
                return Verdict(
                    kind=e.DEAD if group is missing else e.BEHIND,
                    sentence=f"{named(suspects)}: {why} (communicator {one.name}, NCCL RAS); "
                    f"{others(seen)}",
                    cause="unknown",
                    suspects=tuple(suspects),
                )
    return None


def _apart(seen: Seen) -> Verdict | None:
    """Return the verdict `apart` or `slow`: nearly all ranks wait for some in no collective."""
    free = [rank for rank in seen.ranks.values() if rank.waiting <= FREE_AT_MOST]
    waits = seen.waits
    if not seen.has_looks or not free or not is_majority(len(waits), len(free), seen):
        return None
    free.sort(key=lambda rank: (rank.waiting, rank.computes, rank.number))
    suspects = tuple(_suspect(rank, f"it {does(rank)} in {rank.place.text}") for rank in free)
    first = free[0]
    still = all(rank.is_still for rank in (first, *waits)) and not first.computes
    what = "waits for" if len(waits) == 1 else "wait for"
    return Verdict(
        kind=e.APART if still else e.SLOW,
        sentence=f"{len(waits)} of {len(seen.ranks)} ranks {what} {named(suspects)}, which "
        f"{does(first)} in {first.place.text}; they are in {common(waits)}",
        cause=first.cause,
        suspects=suspects,
        is_certain=still and _is_certain([first]),
    )


def _mismatch(seen: Seen) -> Verdict | None:
    """Return the verdict `mismatch`: ranks wait in another collective than nearly all others."""
    by_place: dict[Place, list[Rank]] = {}
    for rank in seen.waits:
        by_place.setdefault(rank.place, []).append(rank)
    ordered = sorted(by_place.values(), key=len, reverse=True)
    if len(ordered) < 2 or not all(rank.is_still for rank in seen.waits):
        return None
    most = ordered[0]
    fewer = [rank for group in ordered[1:] for rank in group]
    if not is_majority(len(most), len(fewer), seen):
        return None
    suspects = tuple(_suspect(rank, f"it is in {rank.place.text}") for rank in fewer)
    return Verdict(
        kind=e.MISMATCH,
        sentence=f"{named(suspects)} is in {fewer[0].place.text}, and {len(most)} ranks are in "
        f"{most[0].place.text}: they call collectives in different order, or one was skipped",
        cause="order",
        suspects=suspects,
        is_certain=True,
    )


def _link(seen: Seen) -> Verdict | None:
    """Return the verdict `link`: all ranks wait, and the links of one device have errors."""
    if not seen.ranks or not is_majority(len(seen.waits), 0, seen):
        return None
    devices = [(device, node) for node in seen.nodes for device in node.devices]
    faults = [
        Suspect(rank_of(node, device.uuid), node.node_id, f"{device.uuid}: {device.fault}")
        for device, node in devices
        if device.fault
    ]
    counts = sorted((device.link_errors for device, _ in devices), reverse=True)
    second = max([*counts[1:2], 0])
    if counts and counts[0] >= max(LINK_ERRORS, LINK_FACTOR * second + 1):
        device, node = next(pair for pair in devices if pair[0].link_errors == counts[0])
        why = f"{counts[0]} errors of the links of {device.uuid}{device.worst_link}"
        faults.insert(0, Suspect(rank_of(node, device.uuid), node.node_id, why))
    faults += [
        Suspect(-1, node.node_id, f"RDMA port {port.name} {port_words(port)}")
        for node in seen.nodes
        for port in node.ports
        if not port.is_up or port.errors >= LINK_ERRORS
    ]
    if not faults:
        return None
    return Verdict(
        kind=e.LINK,
        sentence=f"{others(seen)}, and a device or link of {named(faults)} is faulty: "
        f"{faults[0].why}",
        cause="link",
        suspects=tuple(faults),
        is_certain=True,
    )


def _input(seen: Seen) -> Verdict | None:
    inputs = [rank for rank in seen.ranks.values() if rank.place.kind == places.INPUT]
    if not inputs or not is_majority(len(inputs), 0, seen):
        return None
    return Verdict(
        kind=e.INPUT,
        sentence=f"{len(inputs)} of {len(seen.ranks)} ranks wait for their input in "
        f"{common(inputs)}: no single rank is the cause",
        cause="input",
    )


def _roll_call(seen: Seen) -> Verdict | None:
    """Return the verdict on ranks that are elsewhere than nearly all others.

    A program that waits for its device shows no collective: its stack ends where it reads a result.
    """
    still = [rank for rank in seen.ranks.values() if rank.is_still]
    found = Counter(rank.place for rank in still).most_common(1)
    if not found or found[0][1] < 2:
        return None
    place, count = found[0]
    if place.kind in places.WAITS:
        return None  # the rules above have decided that
    fewer = [rank for rank in seen.ranks.values() if rank.place != place]
    if not fewer or not is_majority(count, len(fewer), seen):
        return None
    suspects = tuple(_suspect(rank, f"it {does(rank)} in {rank.place.text}") for rank in fewer)
    return Verdict(
        kind=e.APART,
        sentence=f"{named(suspects)} {does(fewer[0])} in {fewer[0].place.text}, and "
        f"{count} of {len(seen.ranks)} ranks are in {place.text}; no stack shows a collective",
        cause=fewer[0].cause,
        suspects=suspects,
    )


RULES: Final[tuple[Rule, ...]] = (
    dead, _stopped, _silent, _recorded, _apart, _mismatch, _unreached, _link, _input, _roll_call,
)  # fmt: skip


def _nothing(seen: Seen) -> Verdict:
    if seen.world == 1 and seen.ranks:
        return Verdict(kind=e.NONE, sentence=alone(next(iter(seen.ranks.values()))))
    text = "no single rank is the cause" if seen.ranks else "no process of the job was seen"
    return Verdict(kind=e.NONE, sentence=f"{text}; {others(seen)}" if seen.ranks else text)


def _is_certain(ranks: Iterable[Rank]) -> bool:
    """Return whether each of the ranks does nothing that could be work.

    A program that sleeps may look for something again and again, and one whose stack tells nothing
    may wait for its device.
    """
    return all(rank.cause in SURE and rank.is_idle for rank in ranks)


def _suspect(rank: Rank, why: str) -> Suspect:
    return Suspect(rank.number, rank.node.node_id, why, rank.process.pid)


def _suspect_of(seen: Seen, found: Mapping[int, NodeSeen], number: int, why: str) -> Suspect:
    """Return a rank as a suspect, also one without evidence."""
    if number in seen.ranks:
        return _suspect(seen.ranks[number], why)
    return Suspect(number, found.get(number, seen.nodes[0]).node_id, why)


def _cause(seen: Seen, number: int) -> str:
    return seen.ranks[number].cause


def _firsts(verdict: Verdict) -> list[tuple[int, str]]:
    return [(suspect.rank, suspect.node_id) for suspect in verdict.suspects[:1]]
