"""Which kept traces go: the oldest of the job, then the oldest of the tenant that has most."""

from services.node_agent.tracing.surplus import Held, surplus


def held(name: str, tenant: str, job: str, made: int, size: int) -> Held:
    return Held(name, tenant, job, made, size)


def test_within_the_bounds_everything_stays() -> None:
    assert surplus([held("a", "t", "j", 1, 10), held("b", "t", "j", 2, 10)], 20, 20) == []


def test_a_job_with_too_much_loses_its_oldest() -> None:
    traces = [held("new", "t", "j", 2, 10), held("old", "t", "j", 1, 10), held("x", "t", "k", 0, 5)]
    assert [one.folder for one in surplus(traces, 15, 100)] == ["old"]


def test_a_full_node_takes_from_the_tenant_that_has_most() -> None:
    traces = [
        held("small", "small", "s", 0, 5),
        held("big-1", "big", "b1", 1, 10),
        held("big-2", "big", "b2", 2, 10),
    ]
    assert [one.folder for one in surplus(traces, 100, 15)] == ["big-1"]
    assert [one.folder for one in surplus(traces, 100, 14)] == ["big-1", "big-2"]


def test_a_trace_that_is_larger_than_the_bound_goes() -> None:
    assert [one.folder for one in surplus([held("a", "t", "j", 1, 10)], 9, 100)] == ["a"]
    assert [one.folder for one in surplus([held("a", "t", "j", 1, 10)], 90, 0)] == ["a"]
