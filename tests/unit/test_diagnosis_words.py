"""Recorded diagnoses: which are recorded, which are kept, and how users see them."""

from libs.common import facts as f
from libs.common.change import IGNORED
from libs.common.diagnosis import evidence as e
from libs.common.diagnosis.evidence import Group, Suspect, Verdict
from libs.common.model import JobId, NodeId
from libs.common.state.cluster import Job
from libs.common.state.diagnosis import DIAGNOSES_KEPT
from services.api_gateway.views import diagnosis_words as words
from services.scheduler.explain.explain import explain
from services.scheduler.state.state import State
from tests.given import given, member, placed, registered, started, tell, waiting

J = JobId("j")
SUSPECTS = (Suspect(3, NodeId("a"), "it is stopped"), Suspect(4, NodeId("b"), "it sleeps"))
GROUPS = (Group("0-2", 3, "train.py:40", "collective"), Group("3", 1, "data.py:7", "input"))
STOPPED = Verdict(e.STOPPED, "rank 3 is stopped", "stopped", SUSPECTS, GROUPS)
INPUT = Verdict(e.INPUT, "all ranks wait for their input", "input")


def running() -> State:
    return given(registered("a"), waiting("j"), placed("j", member("a", 0)), started("j", "a"))


def job_of(state: State) -> Job:
    return state.cluster.jobs[J]


def record(state: State, verdict: Verdict, at_s: float = 0) -> None:
    fact = words.fact_of(job_of(state), verdict, "ada", automatic=False)
    state.refresh(tell(state.cluster, fact, at_s=at_s))


def test_a_verdict_is_recorded_with_its_first_suspect_and_the_number_of_others() -> None:
    fact = words.fact_of(job_of(running()), STOPPED, "ada", automatic=False)
    assert fact == f.JobDiagnosed(
        job_id=J,
        attempt=1,
        verdict=e.STOPPED,
        sentence="rank 3 is stopped",
        cause="stopped",
        rank=3,
        node_id=NodeId("a"),
        others=1,
        places=("0-2: train.py:40", "3: data.py:7"),
        user="ada",
    )


def test_a_verdict_without_a_suspect_names_no_rank_and_no_node() -> None:
    fact = words.fact_of(job_of(running()), INPUT, "", automatic=True)
    assert (fact.rank, fact.node_id, fact.others, fact.places) == (-1, "", 0, ())
    assert fact.automatic


def test_long_texts_are_cut_before_they_are_recorded() -> None:
    groups = (Group("1," * words.RANKS_MAX, 1, "p" * 2 * words.PLACE_MAX, "code"),)
    verdict = Verdict(e.NONE, "s" * 2 * words.SENTENCE_MAX, groups=groups)
    fact = words.fact_of(job_of(running()), verdict, "ada", automatic=False)
    assert len(fact.sentence) == words.SENTENCE_MAX
    assert len(fact.places[0]) == words.RANKS_MAX + len(": ") + words.PLACE_MAX


def test_only_a_verdict_that_differs_from_the_last_one_of_the_attempt_is_news() -> None:
    state = running()
    assert words.is_news(job_of(state), STOPPED) and words.is_news(job_of(state), INPUT)
    record(state, STOPPED)
    assert not words.is_news(job_of(state), STOPPED)
    assert words.is_news(job_of(state), INPUT)
    record(state, INPUT)
    assert not words.is_news(job_of(state), INPUT)
    job_of(state).attempt = 2
    assert words.is_news(job_of(state), INPUT)


def test_diagnoses_are_shown_with_the_last_one_first_and_no_rank_as_null() -> None:
    state = running()
    record(state, STOPPED, at_s=1)
    record(state, INPUT, at_s=2)
    last, first = words.diagnoses_of(job_of(state))
    assert (last.verdict, last.rank, last.at) == (e.INPUT, None, "1970-01-01T00:00:02.000Z")
    assert (first.verdict, first.rank, first.node_id) == (e.STOPPED, 3, "a")
    assert (first.others, first.places) == (1, ("0-2: train.py:40", "3: data.py:7"))


def test_of_each_job_the_last_diagnoses_are_kept() -> None:
    state = running()
    for number in range(DIAGNOSES_KEPT + 2):
        record(state, Verdict(e.NONE, str(number)))
    kept = [each.sentence for each in job_of(state).diagnoses]
    assert kept == [str(number) for number in range(2, DIAGNOSES_KEPT + 2)]


def test_a_diagnosis_of_an_unknown_job_or_of_an_attempt_that_never_began_is_ignored() -> None:
    state = running()
    for job_id, attempt in ((JobId("unknown"), 1), (J, 2)):
        fact = f.JobDiagnosed(job_id=job_id, attempt=attempt, verdict=e.NONE, sentence="s")
        assert tell(state.cluster, fact) is IGNORED
    assert job_of(state).diagnoses == ()


def test_why_names_the_last_diagnosis_of_this_attempt_only() -> None:
    state = running()
    record(state, STOPPED)
    runs = "it runs on a and does not wait"
    assert explain(state, J)["answer"] == (
        f"{runs}; diagnosed: rank 3 is stopped (muster diagnose j --last)"
    )
    job_of(state).attempt = 2
    assert explain(state, J)["answer"] == runs


def test_the_history_says_for_whom_a_job_was_diagnosed() -> None:
    say = words.DIAGNOSIS_WORDS[f.JobDiagnosed]
    asked = words.fact_of(job_of(running()), STOPPED, "ada", automatic=False)
    assert say(asked) == "diagnosed for ada: rank 3 is stopped"
    unasked = words.fact_of(job_of(running()), STOPPED, "", automatic=True)
    assert say(unasked) == "diagnosed without a request: rank 3 is stopped"
