"""Checkpoints in the agent's core: recorded at intervals, and at once after a stop."""

import msgspec

from libs.common import facts as f
from services.node_agent.core import actions as a
from services.node_agent.core import observations as o
from services.node_agent.core.attempt_facts import CHECKPOINT_EVERY_NS
from services.node_agent.core.decide import (
    next_due_ns,
)
from tests.given_node import (
    NODE,
    Node,
    ref,
    start,
    started,
    stop,
)


def test_checkpoint_is_recorded_once_with_whether_it_answers_a_stop() -> None:
    node = Node().running()
    said = f.JobCheckpointed(job_id=ref().job_id, attempt=1, node_id=NODE, at_ns=70)
    assert node.see(o.Checkpointed("j.1", 70)) == [a.Record((said,), (o.Mark("j.1", 1),))]
    assert node.see(o.Checkpointed("j.1", 70)) == []
    node.orders(stop())
    asked = msgspec.structs.replace(said, asked=True, at_ns=80)
    assert node.see(o.Checkpointed("j.1", 80)) == [a.Record((asked,), (o.Mark("j.1", 1),))]


def checkpointed(at_ns: int, asked: bool = False) -> a.Record:
    fact = f.JobCheckpointed(job_id=ref().job_id, attempt=1, node_id=NODE, asked=asked, at_ns=at_ns)
    return a.Record((fact,), (o.Mark("j.1", 1),))


def test_latest_of_many_checkpoints_is_recorded_at_intervals() -> None:
    node = Node().running()
    assert node.see(o.Checkpointed("j.1", 70)) == [checkpointed(70)]
    assert node.see(o.Checkpointed("j.1", 71)) == node.see(o.Checkpointed("j.1", 72)) == []
    assert next_due_ns(node.state) == node.now_ns + CHECKPOINT_EVERY_NS
    assert node.later(CHECKPOINT_EVERY_NS - 1) == []
    assert node.later(1) == [checkpointed(72)]
    assert next_due_ns(node.state) is None and node.later(CHECKPOINT_EVERY_NS) == []
    assert node.see(o.Checkpointed("j.1", 73)) == [checkpointed(73)]


def test_only_a_checkpoint_after_the_stop_answers_it_and_it_is_reported_at_once() -> None:
    node = Node().running()
    node.see(o.Checkpointed("j.1", 70), o.Checkpointed("j.1", 71))
    node.see(o.Checkpointed("j.1", 72))
    assert node.orders(stop(grace_ms=60_000)) == [a.StopJob(ref(), 15, 60_000)]
    assert node.see(o.Checkpointed("j.1", 73)) == [checkpointed(73, asked=True)]
    assert node.see(o.Checkpointed("j.1", 74)) == []
    assert node.later(CHECKPOINT_EVERY_NS) == [checkpointed(74, asked=True)]


def test_last_checkpoint_of_an_ending_attempt_is_recorded() -> None:
    node = Node().running()
    node.see(o.Checkpointed("j.1", 70))
    node.see(o.Checkpointed("j.1", 71))
    assert checkpointed(71) in node.see(o.ProcessExited("j.1", o.Exit(executed=True, exit_code=0)))


def test_checkpoint_waits_until_the_start_is_recorded() -> None:
    node = Node()
    node.orders(start())
    assert node.see(o.JobLaunched("j.1"), o.Checkpointed("j.1", 70)) == []
    begun = node.see(o.ProcessStarted("j.1", 77))
    assert begun[0].facts[0] == started() and len(begun[0].facts) == 2  # type: ignore[union-attr]
