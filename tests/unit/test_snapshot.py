"""A snapshot and the log's tail are the fold of everything; a damaged one is never believed."""

import hashlib
from random import Random

import msgspec
import msgspec.inspect
import pytest

from libs.common import fold
from libs.common.errors import Corrupt
from libs.common.facts import AnyFact
from libs.common.state.cluster import Cluster
from libs.common.transport import snapshot
from tests.history import History
from tests.property.facts_of_all_kinds import moves

STEPS = 300
# The fields of this version of snapshots, by `fields`.
VERSION = 22
FIELDS = "9a970e983f2b343a"


def fields(kind: msgspec.inspect.Type, found: dict[str, list[str]]) -> dict[str, list[str]]:
    """Collect the fields of all types that this one is made of, by the name of the type."""
    if isinstance(kind, msgspec.inspect.StructType):
        name = f"{kind.cls.__name__} {kind.tag or ''}"
        if name not in found:
            found[name] = [field.encode_name for field in kind.fields]
            for field in kind.fields:
                fields(field.type, found)
        return found
    for part in ("types", "item_types"):
        for each in getattr(kind, part, ()):
            fields(each, found)
    for part in ("key_type", "value_type", "item_type"):
        if hasattr(kind, part):
            fields(getattr(kind, part), found)
    return found


def history(seed: int) -> History:
    """A long random history of all kinds of facts."""
    made, chance = History(), Random(seed)
    for _ in range(STEPS):
        made.say(chance.choice(moves(made.cluster, chance)))
    return made


def folded(made: History, cluster: Cluster, after: int, upto: int = STEPS) -> Cluster:
    for seq, (subject, commit) in enumerate(made.log[after:upto], after + 1):
        fold.apply_entry(cluster, seq, subject, commit)
    return cluster


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("at", [0, 1, STEPS // 2, STEPS])
def test_a_snapshot_and_the_tail_are_the_fold_of_everything(seed: int, at: int) -> None:
    made = history(seed)
    start = snapshot.decode(snapshot.encode(folded(made, Cluster(), 0, at)))
    assert start is not None and start.seq == at
    assert msgspec.msgpack.encode(folded(made, start, at)) == msgspec.msgpack.encode(made.cluster)


def test_the_same_state_has_the_same_bytes() -> None:
    assert snapshot.encode(history(1).cluster) == snapshot.encode(folded(history(1), Cluster(), 0))


def test_a_snapshot_shares_nothing_with_the_state_it_was_made_of() -> None:
    made = history(2)
    taken = snapshot.decode(snapshot.encode(made.cluster))
    before = msgspec.msgpack.encode(made.cluster)
    assert taken is not None
    taken.jobs.clear()
    assert msgspec.msgpack.encode(made.cluster) == before


def test_any_damaged_byte_is_found() -> None:
    """But in the head's own words, which are not believed for anything: the cluster id and the
    sequence are in the state.
    """
    data = snapshot.encode(history(3).cluster)
    start = len(data) - len(msgspec.msgpack.encode(history(3).cluster))
    for at in range(start - 32, len(data), 97):
        with pytest.raises(Corrupt):
            snapshot.decode(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])


@pytest.mark.parametrize("data", [b"", b"\x00", b"not a snapshot", b"\xc1" * 100])
def test_bytes_that_are_not_a_snapshot_are_corrupt(data: bytes) -> None:
    with pytest.raises(Corrupt):
        snapshot.decode(data)


@pytest.mark.parametrize("kept", [0.1, 0.5, 0.99])
def test_a_snapshot_that_was_cut_off_is_corrupt(kept: float) -> None:
    data = snapshot.encode(history(4).cluster)
    with pytest.raises(Corrupt):
        snapshot.decode(data[: int(len(data) * kept)])


def test_a_snapshot_of_another_version_is_not_an_error() -> None:
    data = snapshot.encode(Cluster())
    head = msgspec.msgpack.decode(data)
    assert (
        snapshot.decode(msgspec.msgpack.encode([snapshot.SNAPSHOT_VERSION + 1, *head[1:]])) is None
    )


def test_the_version_is_raised_when_facts_or_the_state_get_other_fields() -> None:
    found: dict[str, list[str]] = {}
    for kind in (Cluster, AnyFact):
        fields(msgspec.inspect.type_info(kind), found)
    assert {"Cluster ", "Job ", "JobSpec ", "JobPlaced job.placed", "Member "} <= found.keys()
    digest = hashlib.sha256(msgspec.json.encode(sorted(found.items()))).hexdigest()[:16]
    assert (snapshot.SNAPSHOT_VERSION, digest) == (VERSION, FIELDS), (
        "the fields of facts or of the state changed: raise SNAPSHOT_VERSION if a build with its "
        "present number may be in use, and set VERSION and FIELDS here"
    )


def test_sequence_of_other_bytes_is_0() -> None:
    assert snapshot.seq_of(b"junk") == 0
