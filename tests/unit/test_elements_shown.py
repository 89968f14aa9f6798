"""The list of an array's elements: each has its own state and exit code."""

from msgspec.structs import replace

from libs.common import arrays
from libs.common import facts as f
from libs.common.model import JobId
from libs.common.state.cluster import Job
from services.api_gateway.views.elements import elements_shown, no_output, words_of_short
from services.scheduler.state.state import State
from tests.given import finished, given, member, placed, registered, released, started, tell
from tests.given import waiting as queued
from tests.unit.test_short_arrays import NODE, begun, results, say, short

Row = tuple[int, str, int | None, str, str]


def rows(state: State, after: int = 0, limit: int = 100) -> list[Row]:
    shown = elements_shown(state.cluster, array(state), after, limit)
    return [(each.number, each.state, each.exit_code, each.reason, each.job) for each in shown]


def array(state: State) -> Job:
    return state.cluster.jobs[JobId("j")]


def two_batches() -> State:
    """Batches of three and two elements; the first runs, the second waits."""
    return given(
        NODE,
        short("0-9"),
        begun("0-9", 0, 3),
        begun("0-9", 3, 2),
        placed("j_0-2", member("a", 0)),
        started("j_0-2", "a"),
        results("j_0-2", (1, 0), begun=2),
    )


def test_elements_of_batches_have_their_own_results() -> None:
    assert rows(two_batches(), limit=6) == [
        (0, "completed", 0, "", "j_0-2"),
        (1, "running", None, "", "j_0-2"),
        (2, "queued", None, "", "j_0-2"),
        (3, "queued", None, "", "j_3-4"),
        (4, "queued", None, "", "j_3-4"),
        (5, "queued", None, "", ""),
    ]


def test_a_page_begins_and_ends_inside_a_batch() -> None:
    state = two_batches()
    assert rows(state, 1, 3) == rows(state)[1:4] and len(rows(state)) == 10
    assert rows(state, 0, 2) == rows(state)[:2]
    assert rows(state, 7, 2) == rows(state)[7:9] and rows(state, 10) == []


def test_an_element_that_an_older_scheduler_began_is_a_job_of_its_own() -> None:
    """It does not know short arrays, so its fact has no count."""
    alone = f.ElementBegun(
        job_id=JobId("j_3"), array=JobId("j"), number=3, tenant=array(two_batches()).tenant
    )
    state = given(NODE, short("0-9"), begun("0-9", 0, 3), alone, begun("0-9", 4, 2))
    assert state.cluster.jobs[JobId("j_3")].batch is None
    assert [each[4] for each in rows(state, 2, 3)] == ["j_0-2", "j_3", "j_4-5"]
    state = say(
        state,
        placed("j_3", member("a", 0)),
        started("j_3", "a"),
        finished("j_3", "a", 7),
        released("j_3", "a"),
        f.JobClosed(job_id=JobId("j_3"), attempt=1, outcome="failed", reason="failed", exit_code=7),
    )
    assert rows(state, 3, 1) == [(3, "failed", 7, "failed", "j_3")]
    elements = array(state).elements
    assert elements is not None and elements.ended == {"failed": 1}


def test_failed_and_lost_elements_say_why() -> None:
    state = say(
        two_batches(),
        results("j_0-2", (1, 7), first=1, begun=3),
        finished("j_0-2", "a", None, reason="supervisor_lost"),
        released("j_0-2", "a"),
        f.JobClosed(job_id=JobId("j_0-2"), attempt=1, outcome="failed", elements=2),
    )
    assert [row[1:4] for row in rows(state)[:3]] == [
        ("completed", 0, ""),
        ("failed", 7, "failed"),
        ("failed", None, "element_lost"),
    ]


def test_the_rest_of_a_cancelled_array_is_cancelled() -> None:
    state = two_batches()
    for fact in (
        f.CancelRequested(job_id=JobId("j")),
        f.JobClosed(job_id=JobId("j_3-4"), attempt=1, outcome="cancelled", reason="cancelled"),
    ):
        tell(state.cluster, fact)
    assert rows(state)[3] == (3, "cancelled", None, "cancelled", "j_3-4")
    array(state).state = "cancelled"
    assert rows(state)[5] == (5, "cancelled", None, "cancelled", "")


def test_forgotten_batches_and_elements_are_unknown() -> None:
    state = two_batches()
    del state.cluster.jobs[JobId("j_3-4")]
    assert [row[1] for row in rows(state)[3:5]] == ["unknown"] * 2
    ordinary = given(registered("a"), queued("j", array=arrays.parse("5-6")))
    begin = f.ElementBegun(
        job_id=JobId("j_5"), array=JobId("j"), number=5, tenant=array(ordinary).tenant
    )
    tell(ordinary.cluster, begin)
    assert rows(ordinary) == [
        (5, "queued", None, "", "j_5"),
        (6, "queued", None, "", ""),
    ]
    del ordinary.cluster.jobs[JobId("j_5")]
    assert rows(ordinary)[0][1] == "unknown"


def test_an_element_of_a_short_array_says_where_it_is_seen() -> None:
    state = two_batches()
    found = words_of_short(array(state), JobId("j_4"))
    assert "muster logs j_3-4" in found and "== element 4 ==" in found
    assert "has not begun" in words_of_short(array(state), JobId("j_8"))
    assert words_of_short(array(state), JobId("j_77")) == ("array j has no element 77: it has 0-9")
    ordinary = given(NODE, queued("j", array=replace(arrays.parse("0-9"), short=False)))
    assert words_of_short(array(ordinary), JobId("j_4")) == ""


def test_an_array_names_what_has_its_output() -> None:
    assert no_output(array(two_batches())) == (
        "array j has no output of its own: name one of its batches, which `muster ps --elements j` "
        "shows"
    )
    ordinary = given(registered("a"), queued("j", array=arrays.parse("5-6")))
    assert no_output(array(ordinary)).endswith("name one of its elements, j_NUMBER")
