"""The resident data that the scheduler wants on this node, and what became of it: part of the
agent's pure core.

The scheduler sends the whole list whenever it changes. Each order is carried out once; a later
grant, or a later request, makes it due again. One piece of work per entry runs at a time. Facts are
recorded for reports about the present request only. No report of it is dropped, because nothing
makes the agent report again. Tests: tests/unit/test_agent_keeping.py.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from libs.common import facts as f
from libs.common.facts import NodeFact
from libs.common.life import kept_life
from libs.common.messages import KeepOrder, keep_lines
from libs.common.model import NodeId
from libs.common.state.kept import kept_key
from services.node_agent.core.observations import KeepSeen

# Facts about resident data in one commit.
FACTS_MAX: Final = 16


class Keeps(msgspec.Struct):
    """The wanted entries, and the work on them.

    `seq` is the sequence of the last list. `todo` must be carried out, `busy` is under way,
    `surplus` must be removed. `content` is the SHA-256 of what this node reported last. `held` is
    what earlier agents left, until the first list says whether it is wanted.
    """

    seq: int = 0
    wanted: dict[str, KeepOrder] = {}
    todo: dict[str, None] = {}
    busy: dict[str, None] = {}
    surplus: dict[str, KeepOrder] = {}
    held: dict[str, KeepOrder] = {}
    content: dict[str, str] = {}
    unrecorded: list[NodeFact] = []


def key_of(order: KeepOrder) -> str:
    return kept_key(order.model, order.tier)


def replace_list(keeps: Keeps, seq: int, orders: Iterable[KeepOrder]) -> None:
    """Replace the wanted entries by this list, unless it is older than the known one."""
    if seq < keeps.seq:
        return
    keeps.seq = seq
    listed = {key_of(order): order for order in orders}
    _give_up(keeps, listed)
    for key, known in keeps.wanted.items():
        wanted = listed.get(key)
        if wanted is None or _placement(wanted) != _placement(known):
            keeps.surplus[key] = known
            keeps.content.pop(key, None)
            keeps.todo.pop(key, None)
    for key, order in listed.items():
        known_before = keeps.wanted.get(key)
        if known_before is None or _is_due(known_before, order):
            keeps.todo[key] = None
    keeps.wanted = listed


def note_held(keeps: Keeps, entries: Iterable[KeepOrder]) -> None:
    """Note what earlier agents left. What is not wanted any more must be removed."""
    keeps.held |= {key_of(entry): entry for entry in entries}
    if keeps.seq:
        _give_up(keeps, keeps.wanted)


def _give_up(keeps: Keeps, wanted: Mapping[str, KeepOrder]) -> None:
    """Remove what earlier agents left and is not wanted by the same tenant."""
    for key, entry in keeps.held.items():
        if key not in wanted or wanted[key].tenant != entry.tenant:
            keeps.surplus[key] = entry
    keeps.held = {}


def _is_due(known: KeepOrder, order: KeepOrder) -> bool:
    return (*_placement(known), known.granted, known.gpu_bytes) != (
        *_placement(order),
        order.granted,
        order.gpu_bytes,
    )


def _placement(order: KeepOrder) -> tuple[int, int]:
    return order.request, order.number


def take_due(keeps: Keeps) -> list[tuple[KeepOrder, bool]]:
    """Return what must be carried out now, and note it as begun; True: remove the entry."""
    due: list[tuple[KeepOrder, bool]] = []
    for key in [key for key in keeps.surplus if key not in keeps.busy]:
        due.append((keeps.surplus.pop(key), True))
        keeps.busy[key] = None
    for key in [key for key in keeps.todo if key not in keeps.busy]:
        del keeps.todo[key]
        keeps.busy[key] = None
        due.append((keeps.wanted[key], False))
    return due


def note_done(keeps: Keeps, model: str, tier: str) -> None:
    """Note that the work on an entry has ended, so that the next may begin."""
    keeps.busy.pop(kept_key(model, tier), None)


def note_seen(keeps: Keeps, node_id: NodeId, seen: KeepSeen) -> None:
    """Record what was seen of an entry, if it is still wanted for the same placement."""
    key = kept_key(seen.model, seen.tier)
    order = keeps.wanted.get(key)
    if order is None or _placement(order) != (seen.request, seen.number):
        return
    if seen.state == kept_life.READY:
        keeps.content[key] = seen.content
    elif seen.state == kept_life.FAILED:
        keeps.content.pop(key, None)
    keeps.unrecorded.append(
        f.KeptObserved(
            node_id=node_id,
            model=seen.model,
            tier=seen.tier,
            request=seen.request,
            number=seen.number,
            state=seen.state,
            size_bytes=seen.size_bytes,
            content=seen.content,
            files=seen.files,
            restore_ms=seen.restore_ms,
            detail=seen.detail,
        )
    )


def content_of(keeps: Keeps, order: KeepOrder) -> str:
    """Return the SHA-256 that the entry must have: as reported last, or as the log has it."""
    return keeps.content.get(key_of(order), order.content)


def facts(keeps: Keeps) -> list[NodeFact]:
    """Take the first reports that are not recorded yet; the next call takes the rest."""
    said, keeps.unrecorded = keeps.unrecorded[:FACTS_MAX], keeps.unrecorded[FACTS_MAX:]
    return said


def digest_entries(keeps: Keeps) -> list[tuple[str, str, int]]:
    """Return the entries of the digest that the scheduler compares.

    What earlier agents left makes it differ, so that the first list comes even if it is empty.
    """
    return keep_lines((*keeps.wanted.values(), *keeps.held.values()))
