"""Filters of watched jobs, and the journal that clients with the same interest share."""

from hypothesis import given, settings
from hypothesis import strategies as st

from libs.common.life import job_life
from libs.common.model import JobId, JobSpec, NodeId, TenantId
from libs.common.state.cluster import Job, MemberView
from services.api_gateway.views.interests import SHORTEN_AFTER, Interest, JobFilter, Journal


def job(state: str = "queued", **fields: object) -> Job:
    spec = JobSpec(command=("true",), queue="q")
    found = Job(
        job_id=JobId("j1"), spec=spec, tenant=TenantId("physics"), user="ada", seq=1, state=state
    )
    for name, value in fields.items():
        setattr(found, name, value)
    return found


def on(node_id: str) -> dict[NodeId, MemberView]:
    return {NodeId(node_id): MemberView(NodeId(node_id), 1, 0, (), 1)}


def test_an_empty_filter_begins_with_live_jobs_and_wants_every_change() -> None:
    chosen = JobFilter()
    assert [state for state in (*job_life.LIVE, *job_life.ENDED) if chosen.matches(job(state))] == [
        *job_life.LIVE
    ]
    assert chosen.wants(job("completed"), "releasing", ())


def test_each_field_of_a_filter_excludes_other_jobs() -> None:
    assert JobFilter(tenant="physics", user="ada", queue="q", kind="job").matches(job())
    for other in (
        JobFilter(tenant="chemistry"),
        JobFilter(user="bob"),
        JobFilter(queue="default"),
        JobFilter(kind="replica"),
        JobFilter(node="n1"),
        JobFilter(states=("running",)),
        JobFilter(only=frozenset({JobId("j2")})),
    ):
        assert not other.matches(job()) and not other.wants(job(), "", ())


def test_elements_match_only_if_asked_for_or_named() -> None:
    element = job(array=JobId("j0"))
    assert not JobFilter().is_of(element)
    assert JobFilter(elements=True).is_of(element)
    assert JobFilter(only=frozenset({JobId("j1")}), user="bob").is_of(element)


def test_named_jobs_match_in_any_state() -> None:
    assert JobFilter(only=frozenset({JobId("j1")})).matches(job("failed"))


def test_a_client_learns_that_a_job_left_its_filter() -> None:
    queued = JobFilter(states=("queued",))
    assert queued.wants(job("placed"), "queued", ())
    assert not queued.wants(job("running"), "placed", ())
    here = JobFilter(node="n1")
    assert here.wants(job(members=on("n1")), "queued", ())
    assert here.wants(job(), "releasing", (NodeId("n1"),))
    assert not here.wants(job(), "releasing", (NodeId("n2"),))


def test_a_journal_has_each_change_once_at_its_last_place() -> None:
    journal = Journal(Interest())
    for name in ("a", "b", "a"):
        journal.note_job(JobId(name))
    journal.note_nodes([NodeId("n1"), NodeId("n2"), NodeId("n1")])
    assert journal.since(0) == (["b", "a"], ["n2", "n1"])
    assert journal.since(journal.tick) == ([], [])


@settings(deadline=None)
@given(
    st.lists(
        st.one_of(
            st.integers(0, 9).map(lambda number: ("job", number)),
            st.integers(0, 2).map(lambda reader: ("read", reader)),
            st.just(("shorten", 0)),
        )
    )
)
def test_every_reader_gets_exactly_what_changed_since_it_read_last(
    steps: list[tuple[str, int]],
) -> None:
    journal = Journal(Interest())
    read = [0, 0, 0]
    waiting: list[dict[str, None]] = [{}, {}, {}]
    for step, number in steps:
        if step == "job":
            journal.note_job(JobId(str(number)))
            for each in waiting:
                each.pop(str(number), None)
                each[str(number)] = None
        elif step == "read":
            assert journal.since(read[number])[0] == list(waiting[number])
            read[number], waiting[number] = journal.tick, {}
        else:
            journal.shorten(min(read))
    assert [journal.since(tick)[0] for tick in read] == [list(each) for each in waiting]


def test_a_journal_is_long_when_it_has_grown_since_it_was_shortened() -> None:
    journal = Journal(Interest())
    for number in range(SHORTEN_AFTER):
        journal.note_job(JobId(str(number)))
    assert not journal.is_long
    journal.note_nodes([NodeId("n")])
    assert journal.is_long
    journal.shorten(SHORTEN_AFTER - 1)
    assert journal.since(0) == ([JobId(str(SHORTEN_AFTER - 1))], [NodeId("n")])
    assert not journal.is_long
