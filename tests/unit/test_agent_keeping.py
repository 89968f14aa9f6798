"""The agent's core and resident data: orders, work in turn, reports."""

from typing import Any

from libs.common.facts import KeptObserved, NodeFact
from libs.common.life import kept_life
from libs.common.messages import Desired, KeepList, KeepOrder, Orders
from services.node_agent.core import actions as a
from services.node_agent.core import keeping
from services.node_agent.core import observations as o
from services.node_agent.core import state as s
from services.node_agent.core.apply import apply
from services.node_agent.core.decide import next_due_ns
from services.node_agent.core.keeping import content_of
from services.node_agent.resident.reports import held_order
from tests.given_node import EPOCH, INCARNATION, NODE, Node


def order(model: str = "chat", tier: str = "host", **fields: Any) -> KeepOrder:
    given = {"request": 7, "number": 1, "state": kept_life.REQUESTED} | fields
    return KeepOrder(model=model, tier=tier, tenant="default", **given)


def told(*orders: KeepOrder, seq: int = 20) -> o.OrdersReceived:
    return o.OrdersReceived(Orders(EPOCH, (), (), keeps=KeepList(seq, orders)))


def seen(state: str, **fields: Any) -> o.KeepSeen:
    given = {"request": 7, "number": 1} | fields
    return o.KeepSeen(model="chat", tier="host", state=state, **given)


def done(model: str = "chat", tier: str = "host") -> o.KeepDone:
    return o.KeepDone(model, tier)


def held(model: str, tenant: str = "default") -> o.KeepHeld:
    return o.KeepHeld((held_order("host", tenant, model),))


def work(actions: list[a.Action]) -> list[tuple[str, bool]]:
    return [
        (action.order.model, action.remove) for action in actions if isinstance(action, a.KeepData)
    ]


def recorded(actions: list[a.Action]) -> list[NodeFact]:
    return [fact for each in actions if isinstance(each, a.Record) for fact in each.facts]


def test_an_order_is_carried_out_once_and_its_result_is_recorded() -> None:
    node = Node()
    assert work(node.see(told(order()))) == [("chat", False)]
    assert work(node.see(told(order(), seq=21))) == []
    facts = recorded(node.see(seen(kept_life.MEASURED, size_bytes=9), done()))
    assert facts == [
        KeptObserved(
            node_id=NODE,
            model="chat",
            tier="host",
            request=7,
            number=1,
            state=kept_life.MEASURED,
            size_bytes=9,
        )
    ]


def test_what_an_earlier_agent_left_asks_for_the_list_until_it_comes() -> None:
    node = Node()
    before = keeping.digest_entries(node.state.keeps)
    node.see(held("chat"))
    assert keeping.digest_entries(node.state.keeps) != before == []
    assert work(node.see(told())) == [("chat", True)]
    assert keeping.digest_entries(node.state.keeps) == []


def test_a_grant_of_another_device_is_new_work() -> None:
    node = Node()
    first = order(tier="gpu", granted=9, gpu_bytes={"g1": 9})
    assert work(node.see(told(first))) == [("chat", False)]
    node.see(done(tier="gpu"))
    assert work(node.see(told(first, seq=21))) == []
    both = order(tier="gpu", granted=9, gpu_bytes={"g1": 9, "g2": 9})
    assert work(node.see(told(both, seq=22))) == [("chat", False)]
    lines = keeping.digest_entries(node.state.keeps)
    assert lines == [("chat", "gpu 1 9 g1 9 g2 9", 7)]


def test_a_grant_is_new_work_and_waits_for_the_work_before() -> None:
    node = Node()
    node.see(told(order()))
    assert work(node.see(told(order(granted=9), seq=21))) == []
    assert work(node.see(done())) == [("chat", False)]
    assert node.state.keeps.wanted["chat/host"].granted == 9


def test_an_entry_that_is_no_longer_listed_is_removed_after_its_work() -> None:
    node = Node()
    node.see(told(order()))
    assert work(node.see(told(seq=21))) == []
    assert recorded(node.see(seen(kept_life.READY))) == []
    assert work(node.see(done())) == [("chat", True)]
    assert work(node.see(done())) == []


def test_a_later_placement_removes_the_data_of_the_earlier_one_first() -> None:
    node = Node()
    node.see(told(order()))
    node.see(done())
    assert work(node.see(told(order(number=2), seq=21))) == [("chat", True)]
    assert work(node.see(done())) == [("chat", False)]
    assert recorded(node.see(seen(kept_life.READY))) == []
    assert len(recorded(node.see(seen(kept_life.READY, number=2)))) == 1


def test_an_older_list_changes_nothing() -> None:
    node = Node()
    node.see(told(order(), seq=21))
    assert work(node.see(told(seq=20), done())) == []
    assert list(node.state.keeps.wanted) == ["chat/host"]


def test_the_desired_state_brings_the_whole_list_and_the_digest_covers_it() -> None:
    node = Node()
    before = s.local_digest(node.state)
    wanted = Desired(EPOCH, INCARNATION, 30, (), (), keeps=(order(), order("other")))
    assert work(node.see(o.DesiredReceived(wanted))) == [("chat", False), ("other", False)]
    assert s.local_digest(node.state) != before


def test_the_content_that_a_use_must_match_is_the_last_report_or_what_the_log_has() -> None:

    node = Node()
    node.see(told(order(content="old")))
    node.see(done())
    keeps = node.state.keeps
    assert content_of(keeps, keeps.wanted["chat/host"]) == "old"
    node.see(seen(kept_life.READY, content="new"))
    assert content_of(keeps, keeps.wanted["chat/host"]) == "new"
    node.see(seen(kept_life.FAILED))
    assert content_of(keeps, keeps.wanted["chat/host"]) == "old"


def test_reports_beyond_the_bound_of_one_commit_join_the_next_one() -> None:
    node = Node()
    names = [f"m{number}" for number in range(keeping.FACTS_MAX + 1)]
    node.see(told(*(order(name) for name in names)))
    for name in names:
        measured = o.KeepSeen(
            model=name, tier="host", request=7, number=1, state=kept_life.MEASURED
        )
        apply(node.state, measured, node.now_ns)
    first = recorded(node.did())
    assert next_due_ns(node.state) == 0
    second = recorded(node.did())
    assert next_due_ns(node.state) != 0
    assert len(first) == keeping.FACTS_MAX
    assert [fact.model for fact in first + second if isinstance(fact, KeptObserved)] == names


def test_what_an_earlier_agent_kept_and_is_no_longer_listed_is_removed() -> None:
    node = Node()
    assert work(node.see(held("old"), held("chat"))) == []
    assert work(node.see(told(order()))) == [("old", True), ("chat", False)]
    assert work(node.see(done("old"), told(order(), seq=21))) == []


def test_what_an_earlier_agent_kept_for_another_tenant_is_removed_first() -> None:
    node = Node()
    node.see(held("chat", "other"))
    assert work(node.see(told(order()))) == [("chat", True)]
    assert work(node.see(done())) == [("chat", False)]


def test_what_is_found_after_the_first_list_is_compared_with_it() -> None:
    node = Node()
    node.see(told(order()), done())
    assert work(node.see(held("chat"), held("old"))) == [("old", True)]
