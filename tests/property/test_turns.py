"""Turns in a queue with time slices, second by second.

No job is preempted before the end of its slice, and every job gets its turn within a bound,
whatever the queue's policy.
"""

from random import Random

from hypothesis import given as sampled
from hypothesis import settings
from hypothesis import strategies as st

from libs.common import facts as f
from libs.common.change import Stamp
from libs.common.model import JobId
from libs.common.state.ordering import POLICIES
from libs.common.subjects import GATEWAY_KIND, QUOTA_KIND
from services.scheduler.decide.decide import decide
from services.scheduler.state.state import State
from tests.given import SECOND_NS, finished, given, registered, released, spec, started, tell

SLICE_S = 5
# From the word to stop until another one runs there: a second each to end, to be placed and to be
# seen to run.
CHANGE_S = 3
TIME_S = 240


class Story:
    """One node on which jobs never end by themselves: `since` is when each came into line, `began`
    when it was seen to run.
    """

    def __init__(self, gpus: int, policy: str) -> None:
        queue = f.QueueSet(queue="default", policy=policy, time_slice_s=SLICE_S)
        self.state: State = given(registered("a", gpus=gpus), queue)
        self.since: dict[str, int] = {}
        self.began: dict[str, int] = {}
        self.longest_s = 0

    def come(self, name: str, now_s: int, words: dict[str, int]) -> None:
        asked = spec(preemptible=True, checkpoint_grace_s=1, **words)
        self._hear(
            f.JobSubmitted(job_id=JobId(name), spec=asked, tenant="default"), now_s, GATEWAY_KIND
        )  # type: ignore[arg-type]
        self._hear(f.JobAdmitted(job_id=JobId(name)), now_s, QUOTA_KIND)
        self.since[name] = now_s

    def _hear(self, fact: f.AnyFact, now_s: int, writer: str) -> None:
        self.state.imagine(
            fact,
            Stamp(
                seq=len(self.state.cluster.jobs),
                at_ns=now_s * SECOND_NS,
                epoch=1,
                writer=writer,
                writer_id="",
            ),
        )

    def second(self, now_s: int) -> None:
        for job in list(self.state.cluster.jobs.values()):
            told: list[f.AnyFact] = []
            if job.stop_reason:
                told = [
                    finished(job.job_id, "a", None, job.attempt, reason="stopped"),
                    released(job.job_id, "a", job.attempt),
                ]
            elif job.state == "placed":
                told, self.began[job.job_id] = [started(job.job_id, "a", job.attempt)], now_s
            for fact in told:
                self.state.refresh(tell(self.state.cluster, fact, now_s))
        while facts := decide(self.state, now_s * SECOND_NS):
            self.state.apply_own(facts, now_s * SECOND_NS)
            for fact in facts:
                self._said(fact, now_s)

    def _said(self, fact: f.AnyFact, now_s: int) -> None:
        if isinstance(fact, f.JobPreempted):
            assert fact.sliced and now_s - self.began[fact.job_id] >= SLICE_S
            self.since[fact.job_id] = now_s
        if isinstance(fact, f.JobPlaced):
            self.longest_s = max(self.longest_s, now_s - self.since.pop(fact.job_id))


@settings(max_examples=60, deadline=None)
@sampled(st.integers(0, 1 << 32))
def test_no_job_is_preempted_before_its_slice_ends_and_each_gets_a_turn(seed: int) -> None:
    chance = Random(seed)
    gpus, jobs = chance.choice((1, 2, 3)), chance.randint(2, 8)
    story = Story(gpus, chance.choice(POLICIES))
    comes = {f"j{number}": chance.randrange(20) for number in range(jobs)}
    large = chance.random() < 0.3
    for now_s in range(TIME_S):
        for name, at_s in comes.items():
            if at_s == now_s:
                words = {
                    "estimate_s": chance.randrange(1, 900),
                    "deadline_ns": chance.choice((0, 30, 9_000)) * SECOND_NS,
                }
                story.come(name, now_s, words | {"gpus": gpus if large and name == "j0" else 1})
        story.second(now_s)
    # Each of the others has one turn at most before it; one that needs all the devices waits until
    # all turns are over.
    rounds = -(-(jobs - 1) // gpus) + large * jobs
    waits = [TIME_S - since for since in story.since.values()]
    assert max((story.longest_s, *waits)) <= (rounds + 1) * (SLICE_S + CHANGE_S)
