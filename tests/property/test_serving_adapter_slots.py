"""The slots of adapters against the server that a gateway loads and unloads, under any order of
requests, failures and losses.
"""

from hypothesis import given, settings
from hypothesis import strategies as st

from services.api_gateway.serving.adapters import Residency, Wanted

REPLICAS = ("r", "s")
NAMES = ("a", "b", "c", "d")
SLOTS = 2
STEP = st.tuples(
    st.sampled_from(("ask", "ask", "end", "fail", "lose", "remove", "restart")),
    st.sampled_from(NAMES),
    st.integers(0, 7),
)


class Twin:
    """The servers as they are, and the requests that are at them; no slots and no order."""

    def __init__(self) -> None:
        self.rules: Residency[str] = Residency(SLOTS)
        self.loaded: dict[str, dict[str, int]] = {replica: {} for replica in REPLICAS}
        self.requests: list[tuple[str, Wanted]] = []
        self.used: list[tuple[str, str]] = []
        self.versions = dict.fromkeys(NAMES, 1)

    def ask(self, name: str, fails: bool) -> None:
        wanted = Wanted(name, self.versions[name])
        groups = self.rules.groups(wanted, REPLICAS, 0, lambda replica: False)
        assert groups == self.expected(name), (groups, self.requests, self.loaded)
        if not groups:
            return
        replica = groups[0][0]
        self.rules.begin(wanted, replica)
        self.requests.append((replica, wanted))
        if not self.rules.has(wanted, replica):
            self.load(wanted, replica, fails)
        else:
            assert self.loaded[replica][name] == wanted.version
        self.touch(replica, name)
        if fails:
            self.end(-1)

    def load(self, wanted: Wanted, replica: str, fails: bool) -> None:
        server = self.loaded[replica]
        due = self.rules.take_due(replica)
        busy = {each.name for place, each in self.requests if place == replica}
        oldest = [name for place, name in self.used if place == replica and name not in busy]
        assert not set(due) & busy, "an adapter in use is never unloaded"
        for name in due:
            assert name == wanted.name or name in oldest
            server.pop(name, None)
        if self.rules.had_other(wanted, replica):
            server.pop(wanted.name, None)
        if not fails:
            server[wanted.name] = wanted.version
            self.rules.loaded(wanted, replica)
        assert len(server) <= SLOTS

    def touch(self, replica: str, name: str) -> None:
        if (replica, name) in self.used:
            self.used.remove((replica, name))
        self.used.append((replica, name))

    def expected(self, name: str) -> list[list[str]]:
        ranks: dict[int, list[str]] = {}
        for replica in REPLICAS:
            busy = {each.name for place, each in self.requests if place == replica}
            has = set(self.rules.replicas_with(name)) | ({replica} if name in busy else set())
            resident = busy | {each for each in NAMES if replica in self.rules.replicas_with(each)}
            if replica in has:
                ranks.setdefault(0, []).append(replica)
            elif len(resident) < SLOTS:
                ranks.setdefault(1, []).append(replica)
            elif resident - busy:
                ranks.setdefault(2, []).append(replica)
        return [ranks[rank] for rank in sorted(ranks)]

    def end(self, place: int) -> None:
        if self.requests:
            replica, wanted = self.requests.pop(place % len(self.requests) if place >= 0 else -1)
            self.rules.end(wanted, replica)

    def lose(self, place: int) -> None:
        """A request finds that its server lost the adapter."""
        if self.requests:
            replica, wanted = self.requests[place % len(self.requests)]
            self.loaded[replica].pop(wanted.name, None)
            self.rules.lost(wanted, replica, self.rules.loads(wanted, replica))

    def remove(self, name: str) -> None:
        """Another version of the adapter takes its place; unused older ones are unloaded."""
        self.versions[name] += 1
        busy = {(place, each.name) for place, each in self.requests}
        for replica in self.rules.drop_unwanted(self.versions):
            for due in self.rules.take_due(replica):
                assert (replica, due) not in busy
                self.loaded[replica].pop(due, None)

    def restart(self) -> None:
        """A replica that no request uses is replaced by one without adapters."""
        idle = [each for each in REPLICAS if all(place != each for place, _ in self.requests)]
        for replica in idle:
            self.loaded[replica] = {}
        self.rules.keep_only([each for each in REPLICAS if each not in idle], 0)


@settings(max_examples=300, deadline=None)
@given(st.lists(STEP, max_size=60))
def test_a_server_never_has_more_adapters_than_slots_and_none_in_use_is_unloaded(
    steps: list[tuple[str, str, int]],
) -> None:
    twin = Twin()
    for kind, name, place in steps:
        match kind:
            case "ask" | "fail":
                twin.ask(name, fails=kind == "fail")
            case "end":
                twin.end(place)
            case "lose":
                twin.lose(place)
            case "remove":
                twin.remove(name)
            case _:
                twin.restart()
    for replica in REPLICAS:
        assert all(
            replica in twin.rules.replicas_with(name) or name in twin.rules.take_due(replica)
            for name in twin.loaded[replica]
        ), "every adapter at a server has a slot, or is to be unloaded"
