"""The rules of resident weights: entries, locks, quotas, content, and what stays or ends."""

from collections.abc import Sequence

import msgspec
import pytest

from services.node_agent.memory.gms import listing, rules
from services.node_agent.memory.gms import state as s
from services.node_agent.memory.grants import Holder, Refusal
from tests.unit.test_gms_state import HASHES, MIB, ROOM, entry, made

ADMITTED = s.Admission("j1", "t", "/j1", HASHES)


def refused(changes: object) -> str:
    with pytest.raises(Refusal) as found:
        assert callable(changes)
        changes()
    return found.value.reason


def begun(**fields: object) -> tuple[s.Residents, s.Served]:
    residents = s.Residents()
    made(residents, rules.serve(residents, ROOM, entry(**fields)))
    content = residents.served["m"].entry.content
    admitted = msgspec.structs.replace(ADMITTED, content=content)
    made(residents, rules.admit(residents, "m", admitted))
    return residents, residents.served["m"]


def test_an_entry_on_a_device_whose_driver_fails_is_refused_with_its_words() -> None:
    room = msgspec.structs.replace(ROOM, unusable={0: "cuInit returned 999"})
    with pytest.raises(Refusal, match="device 0 cannot be used: cuInit returned 999"):
        rules.serve(s.Residents(), room, entry())


def waits(number: int, wanted: str, name: str = "m") -> rules.Waiting:
    return rules.Waiting(number, name, wanted, Holder(number, 1), "j1", None)


def granted(residents: s.Residents, waiting: Sequence[rules.Waiting]) -> tuple[int, str] | None:
    """Grant the next lock; return the connection and its lock."""
    found = rules.next_grant(residents, waiting)
    if found is None:
        return None
    made(residents, found[1])
    session = s.by_session(residents, found[0].number)
    assert session is not None
    return found[0].number, session[1].lock.value


def kept(residents: s.Residents, served: s.Served, name: str, size: int = MIB) -> s.Allocation:
    rounded = rules.check_room(residents, ROOM, served, size)
    allocation = s.Allocation(name, served.entry.name, size, rounded, "w", served.next_slot)
    made(residents, [s.Kept(allocation)])
    return allocation


def published(residents: s.Residents, served: s.Served, *names: str) -> str:
    assert granted(residents, [waits(90, "rw")]) == (90, "rw")
    for name in names:
        kept(residents, served, name)
    made(residents, rules.commit(served, "j1"))
    return served.layout


# --- entries ---


def test_an_entry_begins_once_and_a_different_one_of_its_name_is_refused() -> None:
    residents, _ = begun()
    assert rules.serve(residents, ROOM, entry()) == ()
    assert refused(lambda: rules.serve(residents, ROOM, entry(limit=MIB))) == "exists"


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"name": ""}, "name"),
        ({"name": "x" * 129}, "name"),
        ({"device": 7}, "device"),
        ({"limit": 0}, "size"),
        ({"limit": 65 * MIB}, "size"),
        ({"socket": "relative"}, "socket"),
        ({"socket": "/" + "x" * 107}, "socket"),
        ({"socket": "/run/m"}, "socket"),
        ({"content": ("xyz",)}, "content"),
        ({"content": ("b" * 64, "a" * 64)}, "content"),
    ],
)
def test_an_impossible_entry_is_refused(fields: dict[str, object], reason: str) -> None:
    residents, _ = begun()
    wrong = msgspec.structs.replace(entry("other"), **fields)
    assert refused(lambda: rules.serve(residents, ROOM, wrong)) == reason


def test_the_number_of_entries_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    residents, _ = begun()
    monkeypatch.setattr(rules, "ENTRIES_MAX", 1)
    assert refused(lambda: rules.serve(residents, ROOM, entry("n"))) == "entries"


def test_an_entry_in_use_is_dropped_only_by_force_and_takes_its_memory_along() -> None:
    residents, served = begun()
    published(residents, served, "a", "b")
    assert granted(residents, [waits(1, "ro")]) == (1, "ro")
    assert refused(lambda: rules.drop(residents, "m", False)) == "in-use"
    changes = rules.drop(residents, "m", True)
    assert list(changes) == [
        s.Closed(1),
        s.Cleared("m"),
        s.Freed("m", "a"),
        s.Freed("m", "b"),
        s.Dropped("m"),
    ]
    made(residents, changes)
    assert rules.drop(residents, "m", False) == ()


def test_a_lost_entry_is_not_served_until_its_attempts_end() -> None:
    residents = s.Residents()
    made(residents, rules.lose(residents, ROOM, entry(), [ADMITTED]))
    assert rules.lose(residents, ROOM, entry(), [ADMITTED]) == ()
    assert refused(lambda: rules.drop(residents, "m", True)) == "lost"
    other = s.Admission("j2", "t", "/j2", HASHES)
    assert refused(lambda: rules.admit(residents, "m", other)) == "lost"
    assert rules.admit(residents, "m", ADMITTED) == ()
    assert listing.listed(residents.served["m"]).bytes == 16 * MIB
    assert list(rules.dismiss(residents, "j9")) == [s.Dismissed("j9")]
    changes = rules.dismiss(residents, "j1")
    assert list(changes) == [s.Dismissed("j1"), s.Regained("m")]
    made(residents, changes)
    assert listing.listed(residents.served["m"]).bytes == 0


# --- attempts and content ---


def test_an_attempt_of_another_tenant_or_entry_is_refused() -> None:
    residents, _ = begun()
    other = msgspec.structs.replace(ADMITTED, tenant="u")
    assert refused(lambda: rules.admit(residents, "m", other)) == "tenant"
    assert refused(lambda: rules.admit(residents, "n", ADMITTED)) == "entry"
    assert rules.admit(residents, "m", ADMITTED) == ()


def test_the_number_of_attempts_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    residents, _ = begun()
    monkeypatch.setattr(rules, "ADMISSIONS_MAX", 1)
    other = s.Admission("j2", "t", "/j2", HASHES)
    assert refused(lambda: rules.admit(residents, "m", other)) == "attempts"


@pytest.mark.parametrize(
    "content",
    [(), HASHES[:1], (*HASHES, "c" * 64), ("c" * 64, "d" * 64), (HASHES[0], "b" * 63 + "c")],
)
def test_an_attempt_with_other_weights_is_refused(content: tuple[str, ...]) -> None:
    residents, _ = begun()
    other = s.Admission("j2", "t", "/j2", content)
    assert refused(lambda: rules.admit(residents, "m", other)) == "content"


def test_a_dismissed_attempt_loses_its_sessions_and_what_it_did_not_publish() -> None:
    residents, served = begun()
    assert granted(residents, [waits(1, "rw")]) == (1, "rw")
    kept(residents, served, "a")
    changes = rules.dismiss(residents, "j1")
    assert list(changes) == [
        s.Closed(1),
        s.Cleared("m"),
        s.Freed("m", "a"),
        s.Dismissed("j1"),
    ]
    made(residents, changes)
    assert (served.bytes, served.admissions) == (0, {})


# --- locks ---


def test_one_writer_excludes_all_others() -> None:
    residents, _ = begun()
    assert granted(residents, [waits(1, "rw")]) == (1, "rw")
    assert granted(residents, [waits(2, "rw"), waits(3, "ro"), waits(4, "rw_or_ro")]) is None


def test_readers_share_a_published_layout_and_keep_writers_out() -> None:
    residents, served = begun()
    assert granted(residents, [waits(1, "ro")]) is None
    published(residents, served, "a")
    assert granted(residents, [waits(1, "ro")]) == (1, "ro")
    assert granted(residents, [waits(2, "rw_or_ro")]) == (2, "ro")
    assert granted(residents, [waits(3, "rw")]) is None


def test_a_waiting_writer_is_not_overtaken_by_readers_of_its_entry() -> None:
    residents, served = begun()
    published(residents, served, "a")
    assert granted(residents, [waits(1, "ro")]) == (1, "ro")
    assert granted(residents, [waits(2, "rw"), waits(3, "ro"), waits(4, "rw_or_ro")]) is None
    made(residents, rules.serve(residents, ROOM, entry("n")))
    assert granted(residents, [waits(2, "rw", "n"), waits(3, "ro")]) == (2, "rw")
    assert granted(residents, [waits(5, "rw", "n"), waits(3, "ro")]) == (3, "ro")


def test_automatic_mode_writes_first_and_reads_later() -> None:
    residents, served = begun()
    assert granted(residents, [waits(1, "rw_or_ro")]) == (1, "rw")
    assert granted(residents, [waits(2, "rw_or_ro")]) is None
    made(residents, rules.commit(served, "j1"))
    assert granted(residents, [waits(2, "rw_or_ro")]) == (2, "ro")


def test_a_writer_begins_with_nothing() -> None:
    residents, served = begun()
    first = published(residents, served, "a", "b")
    assert granted(residents, [waits(1, "rw")]) == (1, "rw")
    assert (served.bytes, served.layout, served.metadata) == (0, "", {})
    assert first


def test_a_layout_stays_without_processes_and_an_unpublished_one_does_not() -> None:
    residents, served = begun()
    published(residents, served, "a")
    assert granted(residents, [waits(1, "ro")]) == (1, "ro")
    assert list(rules.end(residents, 1)) == [s.Closed(1)]
    made(residents, rules.end(residents, 1))
    assert (s.state_name(served), served.bytes) == ("COMMITTED", 2 * MIB)
    assert rules.end(residents, 1) == ()
    assert granted(residents, [waits(2, "rw")]) == (2, "rw")
    kept(residents, served, "b")
    made(residents, rules.end(residents, 2))
    assert (s.state_name(served), served.bytes) == ("EMPTY", 0)


def test_a_new_server_discards_unpublished_layouts_without_a_writer() -> None:
    residents, served = begun()
    kept(residents, served, "a")
    assert list(rules.tidied(residents)) == [s.Cleared("m"), s.Freed("m", "a")]
    assert granted(residents, [waits(1, "rw")]) == (1, "rw")
    kept(residents, served, "b")
    assert rules.tidied(residents) == []
    made(residents, rules.commit(served, "j1"))
    assert rules.tidied(residents) == []


# --- memory ---


@pytest.mark.parametrize("size", [0, -1, 16 * MIB + 1, 1 << 70])
def test_an_impossible_size_is_refused(size: int) -> None:
    residents, served = begun()
    assert refused(lambda: rules.check_room(residents, ROOM, served, size)) == "size"


def test_an_entry_gets_no_more_than_its_limit() -> None:
    residents, served = begun()
    kept(residents, served, "a", 15 * MIB)
    assert refused(lambda: rules.check_room(residents, ROOM, served, 1)) == "quota"


def test_a_tenant_gets_no_more_of_a_device_than_its_limit() -> None:
    residents, served = begun()
    made(residents, rules.limit_tenant("t", 0, 20 * MIB))
    made(residents, rules.serve(residents, ROOM, entry("n")))
    made(residents, rules.serve(residents, ROOM, entry("o", device=1)))
    kept(residents, served, "a", 16 * MIB)
    second = residents.served["n"]
    assert refused(lambda: rules.check_room(residents, ROOM, second, 6 * MIB)) == "quota"
    kept(residents, second, "b", 4 * MIB)
    kept(residents, residents.served["o"], "c", 16 * MIB)
    assert refused(lambda: rules.limit_tenant("t", 0, -1)) == "size"


def test_all_entries_together_get_no_more_than_the_device_has() -> None:
    residents, served = begun(limit=64 * MIB)
    made(residents, rules.serve(residents, ROOM, entry("n", tenant="u")))
    kept(residents, served, "a", 60 * MIB)
    other = residents.served["n"]
    assert refused(lambda: rules.check_room(residents, ROOM, other, 6 * MIB)) == "full"
    kept(residents, other, "b", 4 * MIB)
    assert rules.device_bytes(residents, 0) == 64 * MIB


def test_the_number_of_allocations_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    residents, served = begun()
    monkeypatch.setattr(rules, "ALLOCATIONS_MAX", 1)
    kept(residents, served, "a")
    assert refused(lambda: rules.check_room(residents, ROOM, served, 1)) == "allocations"


def test_a_freed_allocation_takes_its_metadata_along() -> None:
    residents, served = begun()
    kept(residents, served, "a")
    kept(residents, served, "b")
    made(residents, rules.put(served, s.Metadata("m", "k", "a", 0, b"v")))
    made(residents, rules.put(served, s.Metadata("m", "l", "b", 0, b"v")))
    assert list(rules.free(served, "a")) == [s.Erased("m", "k"), s.Freed("m", "a")]
    made(residents, rules.free(served, "a"))
    assert list(served.metadata) == ["l"]
    assert rules.free(served, "a") == ()
    assert refused(lambda: rules.allocation_of(served, "a")) == "allocation"


def test_metadata_must_lie_inside_an_allocation() -> None:
    residents, served = begun()
    kept(residents, served, "a")

    def put(allocation: str, offset: int, key: str = "k") -> Sequence[s.Change]:
        return rules.put(served, s.Metadata("m", key, allocation, offset, b"v"))

    assert refused(lambda: put("z", 0)) == "allocation"
    assert refused(lambda: put("a", -1)) == "offset"
    assert refused(lambda: put("a", 2 * MIB)) == "offset"
    assert refused(lambda: put("a", 0, "k" * 1025)) == "key"
    made(residents, put("a", 2 * MIB - 1))
    assert rules.delete(served, "other") == ()
    made(residents, rules.delete(served, "k"))
    assert served.metadata_bytes == 0


@pytest.mark.parametrize("bound", ["METADATA_BYTES_MAX", "METADATA_KEYS_MAX"])
def test_metadata_is_bounded(bound: str, monkeypatch: pytest.MonkeyPatch) -> None:
    residents, served = begun()
    kept(residents, served, "a")
    monkeypatch.setattr(rules, bound, 0)
    noted = s.Metadata("m", "k", "a", 0, b"v")
    assert refused(lambda: rules.put(served, noted)) == "metadata"


def test_the_layout_hash_depends_on_structure_and_not_on_ids() -> None:
    residents, served = begun()

    def written(*names: str, value: bytes = b"v", offset: int = 0) -> str:
        assert granted(residents, [waits(1, "rw")]) == (1, "rw")
        for name in names:
            kept(residents, served, name)
        made(residents, rules.put(served, s.Metadata("m", "k", names[0], offset, value)))
        made(residents, rules.commit(served, "j1"))
        return served.layout

    first = written("a", "b")
    assert written("c", "d") == first
    others = [written("a"), written("a", "b", value=b"w"), written("a", "b", offset=1)]
    assert len({first, *others}) == 4
    other, more = begun(content=())
    published(other, more, "a", "b")
    assert more.layout not in (first, *others)


# --- lists ---


def test_an_orphan_is_listed_with_its_owner() -> None:
    residents, served = begun()
    published(residents, served, "a")
    assert not listing.listed(served).orphan
    made(residents, rules.dismiss(residents, "j1"))
    found = listing.listed(served)
    assert (found.orphan, found.tenant, found.model, found.written_by) == (
        True,
        "t",
        "model",
        "j1",
    )
    assert (found.bytes, found.state, found.content) == (2 * MIB, "COMMITTED", HASHES)


def test_a_list_names_readers_and_the_writer() -> None:
    residents, served = begun()
    assert granted(residents, [waits(1, "rw")]) == (1, "rw")
    assert listing.listed(served).writer == "j1"
    made(residents, rules.commit(served, "j1"))
    assert granted(residents, [waits(2, "ro")]) == (2, "ro")
    found = listing.listed(served)
    assert (found.writer, found.readers, found.attempts) == ("", ("j1",), ("j1",))
