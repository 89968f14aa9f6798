"""Where a request to an adapter goes, and which adapters a replica has."""

from services.api_gateway.serving.adapters import FAILED_NS, Residency, Wanted
from services.api_gateway.serving.admission import Bounds
from services.api_gateway.serving.fairness import SECOND_NS, Flow
from services.api_gateway.serving.late_binding import LateBinding, Ticket
from services.api_gateway.serving.routing import Prompt, Router

SQL, CODE, ART = Wanted("sql", 1), Wanted("code", 2), Wanted("art", 3)
BOTH = ("r", "s")
BOUNDS = Bounds(
    tenant_tokens=100_000,
    model_tokens=200_000,
    lowest_tokens=100_000,
    bands=2,
    wait_ns=60 * SECOND_NS,
)


def groups(
    found: Residency[str], wanted: Wanted, now_ns: int = 0, avoided: tuple[str, ...] = ()
) -> list[list[str]]:
    return found.groups(wanted, BOTH, now_ns, lambda replica: replica in avoided)


def used(found: Residency[str], replica: str, *adapters: Wanted) -> None:
    """Load adapters at the replica, with a request to each that has ended."""
    for wanted in adapters:
        busy(found, replica, wanted)
        found.end(wanted, replica)


def busy(found: Residency[str], replica: str, *adapters: Wanted) -> None:
    """Load adapters at the replica, with a request to each that goes on."""
    for wanted in adapters:
        found.begin(wanted, replica)
        found.loaded(wanted, replica)


class TestGroups:
    def test_all_replicas_are_equal_while_none_has_the_adapter(self) -> None:
        assert groups(Residency(), SQL) == [["r", "s"]]

    def test_a_replica_that_has_the_adapter_comes_first(self) -> None:
        found = Residency[str]()
        used(found, "s", SQL)
        assert groups(found, SQL) == [["s"], ["r"]]
        assert groups(found, CODE) == [["r", "s"]]

    def test_a_replica_that_loads_the_adapter_counts_as_one_that_has_it(self) -> None:
        found = Residency[str]()
        found.begin(SQL, "s")
        assert groups(found, SQL) == [["s"], ["r"]] and not found.has(SQL, "s")

    def test_a_free_slot_comes_before_one_that_another_adapter_has(self) -> None:
        found = Residency[str](resident_max=1)
        used(found, "r", CODE)
        assert groups(found, SQL) == [["s"], ["r"]]

    def test_a_replica_whose_slots_are_all_in_use_gets_nothing(self) -> None:
        found = Residency[str](resident_max=1)
        busy(found, "r", CODE)
        busy(found, "s", CODE)
        assert groups(found, SQL) == []
        found.end(CODE, "s")
        assert groups(found, SQL) == [["s"]]

    def test_an_avoided_replica_comes_last_although_it_has_the_adapter(self) -> None:
        found = Residency[str]()
        used(found, "r", SQL)
        assert groups(found, SQL, avoided=("r",)) == [["s"], ["r"]]

    def test_a_replica_that_could_not_load_the_adapter_comes_last_for_a_while(self) -> None:
        found = Residency[str]()
        found.failed(SQL, "r", "no such folder", now_ns=0)
        assert found.failure(SQL, "r", 1) == "no such folder"
        assert groups(found, SQL) == [["s"], ["r"]]
        assert groups(found, CODE) == [["r", "s"]]
        assert groups(found, SQL, now_ns=FAILED_NS) == [["r", "s"]]
        assert found.failure(Wanted("sql", 9), "r", 1) == ""


class TestSlots:
    def test_the_least_recently_used_adapter_makes_room(self) -> None:
        found = Residency[str](resident_max=2)
        used(found, "r", SQL, CODE, SQL)
        found.begin(ART, "r")
        assert found.has(SQL, "r") and not found.has(CODE, "r")
        assert found.take_due("r") == ["code"] and found.take_due("r") == []

    def test_an_adapter_that_a_request_uses_stays(self) -> None:
        found = Residency[str](resident_max=2)
        busy(found, "r", SQL)
        used(found, "r", CODE)
        found.begin(ART, "r")
        assert found.take_due("r") == ["code"] and found.has(SQL, "r")

    def test_an_adapter_that_was_never_loaded_has_no_slot_after_its_request(self) -> None:
        found = Residency[str](resident_max=1)
        found.begin(SQL, "r")
        found.end(SQL, "r")
        used(found, "r", CODE)
        assert found.take_due("r") == []

    def test_an_adapter_that_the_replica_lost_is_loaded_again(self) -> None:
        found = Residency[str]()
        busy(found, "r", SQL)
        found.lost(SQL, "r", found.loads(SQL, "r"))
        assert not found.has(SQL, "r") and not found.had_other(SQL, "r")

    def test_a_late_answer_does_not_lose_an_adapter_that_was_loaded_again_meanwhile(self) -> None:
        found = Residency[str]()
        busy(found, "r", SQL)
        loads = found.loads(SQL, "r")
        found.lost(SQL, "r", loads)
        found.loaded(SQL, "r")
        found.lost(SQL, "r", loads)
        assert found.has(SQL, "r")

    def test_another_version_is_not_the_same_adapter(self) -> None:
        found, new = Residency[str](), Wanted("sql", 7)
        busy(found, "r", SQL)
        assert not found.has(new, "r") and found.had_other(new, "r")
        assert not found.had_other(SQL, "r") and not found.had_other(new, "s")
        found.loaded(new, "r")
        assert found.has(new, "r") and found.replicas_with("sql") == ["r"]

    def test_a_failure_is_forgotten_when_the_adapter_is_loaded(self) -> None:
        found = Residency[str]()
        found.failed(SQL, "r", "no memory", now_ns=0)
        used(found, "r", SQL)
        assert found.failure(SQL, "r", 1) == ""


class TestUpkeep:
    def test_a_removed_adapter_is_unloaded_when_no_request_uses_it(self) -> None:
        found = Residency[str]()
        busy(found, "r", SQL)
        used(found, "s", SQL, CODE)
        assert found.drop_unwanted({"code": 2}) == ["s"]
        assert found.take_due("s") == ["sql"]
        found.end(SQL, "r")
        assert found.drop_unwanted({"code": 2}) == ["r"]

    def test_an_adapter_with_another_path_is_unloaded(self) -> None:
        found = Residency[str]()
        used(found, "r", SQL)
        assert found.drop_unwanted({"sql": 1}) == []
        assert found.drop_unwanted({"sql": 8}) == ["r"]

    def test_a_replica_that_is_gone_has_no_adapters(self) -> None:
        found = Residency[str](resident_max=1)
        used(found, "r", SQL, CODE)
        busy(found, "s", SQL)
        found.failed(ART, "s", "why", now_ns=0)
        found.keep_only((), now_ns=1)
        assert found.replicas_with("code") == [] and found.take_due("r") == []
        assert found.replicas_with("sql") == ["s"] and found.failure(ART, "s", 1) == "why"
        found.end(SQL, "s")
        found.keep_only((), now_ns=FAILED_NS)
        assert found.replicas_with("sql") == [] and found.failure(ART, "s", 1) == ""


def rules(resident_max: int = 8) -> LateBinding[str]:
    found: LateBinding[str] = LateBinding(BOUNDS, Router())
    found.residency.resident_max = resident_max
    return found


def ticket(wanted: Wanted | None = SQL, tokens: int = 100, tenant: str = "a") -> Ticket[str]:
    found: Ticket[str] = Ticket(Flow(0, tenant), Prompt(tokens, 4 * tokens))
    found.adapter = wanted
    return found


def sent(found: LateBinding[str], one: Ticket[str]) -> str:
    """Bind a request at once, and return its replica; empty if none has room."""
    if not found.at_once(one, BOTH, 0):
        return ""
    assert one.sent is not None
    if one.adapter is not None:
        found.residency.loaded(one.adapter, one.sent.replica)
    return one.sent.replica


class TestLateBinding:
    def test_requests_to_an_adapter_stay_together_while_there_is_room(self) -> None:
        found = rules()
        first = sent(found, ticket())
        assert {sent(found, ticket()) for _ in range(10)} == {first}

    def test_a_full_replica_makes_the_adapter_spread(self) -> None:
        found = rules()
        first = sent(found, ticket(tokens=2_000))
        assert {first, sent(found, ticket(tokens=2_000))} == set(BOTH)
        assert sent(found, ticket(tokens=2_000)) == ""

    def test_a_request_waits_for_a_slot_and_others_pass(self) -> None:
        found = rules(resident_max=1)
        blocked = [ticket(CODE), ticket(ART)]
        assert {sent(found, each) for each in blocked} == set(BOTH)
        late, plain = ticket(SQL), ticket(None, tenant="b")
        assert sent(found, late) == ""
        for each in (late, plain):
            assert found.arrive(each, 0) is None
        skipped: set[Flow] = set()
        assert found.next(BOTH, 0, skipped) is plain and skipped == {late.flow}
        found.end(blocked[0], 1)
        assert found.next(BOTH, 1, set()) is late

    def test_a_request_waits_for_the_one_that_holds_its_prompt_among_those_with_the_adapter(
        self,
    ) -> None:
        found, prompt = rules(), Prompt(5_000, 1_280, (1, 2, 3, 4, 5))
        for replica in BOTH:
            used(found.residency, replica, SQL)
        first, second = ticket(), ticket()
        first.prompt = second.prompt = prompt
        home = sent(found, first)
        assert home == sent(found, second) and found.residency.has(SQL, home)
        found.router.loads.begin(home, 6_000, 0)
        third = ticket()
        third.prompt = prompt
        assert sent(found, third) == ""

    def test_upkeep_forgets_replicas_that_are_gone(self) -> None:
        found, one = rules(), ticket()
        home = sent(found, one)
        found.end(one, 1)
        found.refresh((), 1)
        assert home and found.residency.replicas_with("sql") == []
