"""State and changes of resident weights: two copies that apply the same changes agree."""

import random

import msgspec
import pytest

from services.node_agent.memory.gms import rules
from services.node_agent.memory.gms import state as s
from services.node_agent.memory.gms.messages import Event
from services.node_agent.memory.grants import Holder, Refusal

MIB = 1 << 20
HASHES = ("a" * 64, "b" * 64)
ROOM = rules.Room({0: 64 * MIB, 1: 64 * MIB}, {0: 2 * MIB, 1: 2 * MIB})


def entry(name: str = "m", **fields: object) -> s.Entry:
    found: dict[str, object] = {
        "tenant": "t",
        "model": "model",
        "tag": "weights",
        "device": 0,
        "limit": 16 * MIB,
        "socket": f"/run/{name}",
        "content": HASHES,
    }
    return s.Entry(name, **{**found, **fields})  # type: ignore[arg-type]


def made(residents: s.Residents, changes: object) -> None:
    for change in changes:  # type: ignore[attr-defined]
        s.apply(residents, change)


def visible(residents: s.Residents) -> object:
    """Return the state without the history of events and the counters."""
    served = {
        name: {**msgspec.to_builtins(each), "events": [], "next_slot": 0}
        for name, each in residents.served.items()
    }
    return served, residents.limits


def travelled(change: s.Change) -> s.Change:
    """Return a change as the agent receives it."""
    return msgspec.convert(
        msgspec.msgpack.decode(msgspec.msgpack.encode(msgspec.to_builtins(change))), s.Change
    )


class Step:
    """One random thing that the agent or an engine does."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.residents = s.Residents()
        self.number = 0

    def changes(self) -> list[s.Change]:
        chance, residents = self.chance, self.residents
        names = list(residents.served)
        self.number += 1
        if not names or chance.random() < 0.05:
            return list(rules.serve(residents, ROOM, entry(f"e{self.number}")))
        served = residents.served[chance.choice(names)]
        found = s.writer(served)
        match chance.randrange(10):
            case 0:
                each = s.Admission(f"j{chance.randrange(3)}", "t", "/j", HASHES)
                return list(rules.admit(residents, served.entry.name, each))
            case 1 | 2 | 3:
                wanted = chance.choice(["rw", "ro", "rw_or_ro", "rw_or_ro"])
                waiting = rules.Waiting(
                    number=residents.last_session + 1,
                    entry=served.entry.name,
                    wanted=wanted,
                    holder=Holder(self.number, 1),
                    key=f"j{chance.randrange(3)}",
                    until_ns=None,
                )
                granted = rules.next_grant(residents, [waiting])
                return list(granted[1]) if granted else []
            case 4 | 5 if found is not None:
                size = rules.check_room(residents, ROOM, served, chance.randrange(1, 5 * MIB))
                name = f"a{self.number}"
                return [
                    s.Kept(s.Allocation(name, served.entry.name, 1, size, "w", served.next_slot))
                ]
            case 6 if found is not None and served.allocations:
                target = chance.choice(list(served.allocations))
                if chance.random() < 0.3:
                    return list(rules.free(served, target))
                key = f"k{chance.randrange(4)}"
                noted = s.Metadata(served.entry.name, key, target, 7, b"v" * chance.randrange(9))
                return list(rules.put(served, noted))
            case 7 if found is not None:
                if chance.random() < 0.2:
                    return list(rules.delete(served, f"k{chance.randrange(4)}"))
                return list(rules.commit(served, found.key))
            case 8 if served.sessions:
                return list(rules.end(residents, chance.choice(list(served.sessions))))
            case 9 if chance.random() < 0.3:
                if chance.random() < 0.5:
                    return list(rules.dismiss(residents, f"j{chance.randrange(3)}"))
                return list(rules.drop(residents, served.entry.name, chance.random() < 0.5))
        return []


@pytest.mark.parametrize("seed", range(20))
def test_the_agent_s_copy_and_a_rebuilt_one_equal_the_server_s_state(seed: int) -> None:
    step = Step(seed)
    copy = s.Residents()
    for _ in range(300):
        try:
            changes = step.changes()
        except Refusal:
            continue
        for change in changes:
            s.apply(step.residents, change)
            s.apply(copy, travelled(change))
            assert visible(copy) == visible(step.residents)
        check_sums(step.residents)
    rebuilt = s.Residents()
    made(rebuilt, [travelled(each) for each in s.rebuild(copy)])
    assert visible(rebuilt) == visible(step.residents)
    assert rebuilt.last_session <= step.residents.last_session


def check_sums(residents: s.Residents) -> None:
    for served in residents.served.values():
        assert served.bytes == sum(each.aligned_size for each in served.allocations.values())
        assert served.bytes <= served.entry.limit
        assert served.metadata_bytes == sum(len(each.value) for each in served.metadata.values())
        assert all(each.allocation in served.allocations for each in served.metadata.values())
        writers = [each for each in served.sessions.values() if each.lock == s.Lock.RW]
        assert len(writers) <= 1
        assert not writers or len(served.sessions) == 1
        assert s.committed(served) or not s.readers(served)
        assert s.committed(served) or writers or not served.allocations


def test_a_lost_entry_owns_its_limit_until_it_is_regained() -> None:
    residents = s.Residents()
    made(residents, [s.Serving(entry()), s.Lost("m")])
    served = residents.served["m"]
    assert s.owned_bytes(served) == 16 * MIB
    copy = s.Residents()
    made(copy, s.rebuild(residents))
    assert visible(copy) == visible(residents)
    made(residents, [s.Regained("m")])
    assert s.owned_bytes(served) == 0


def test_the_history_names_each_step_and_is_bounded() -> None:
    residents = s.Residents()
    made(residents, [s.Serving(entry())])
    session = s.Session(1, "m", s.Lock.RW, Holder(1, 1), "j")
    made(residents, [s.Opened(session), s.Closed(1), s.Cleared("m"), s.Opened(session)])
    made(residents, [s.Committed("m", "h", "j")])
    served = residents.served["m"]
    assert served.events == [
        Event("rw_connected"),
        Event("rw_aborted"),
        Event("allocations_cleared"),
        Event("rw_connected"),
        Event("committed"),
    ]
    made(residents, [s.Cleared("m")] * s.EVENTS_MAX)
    assert served.events == [Event("allocations_cleared")] * s.EVENTS_MAX


def test_states_have_the_protocol_s_names() -> None:
    residents = s.Residents()
    made(residents, [s.Serving(entry()), s.Limited("t", 0, 5)])
    served = residents.served["m"]
    assert s.state_name(served) == "EMPTY"
    made(residents, [s.Opened(s.Session(1, "m", s.Lock.RW, Holder(1, 1), "j"))])
    assert s.state_name(served) == "RW"
    made(residents, [s.Committed("m", "h", "j")])
    assert s.state_name(served) == "COMMITTED"
    made(residents, [s.Opened(s.Session(2, "m", s.Lock.RO, Holder(1, 1), "j"))])
    assert s.state_name(served) == "RO"
    assert s.by_session(residents, 9) is None
