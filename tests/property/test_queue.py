"""The queue against a plain list: the heads are the first waiting job of each shape, in order,
whatever came and went.
"""

from collections.abc import Iterator
from itertools import islice

import pytest
from hypothesis import given as draw
from hypothesis import strategies as st

from libs.common.model import JobId, TenantId
from libs.common.state.cluster import Job
from services.scheduler.queueing import lane as lane_module
from services.scheduler.queueing.parking import NO_ROOM, Room
from services.scheduler.queueing.queue import Queue
from services.scheduler.queueing.shape import LaneId, Owner, Waiting, shape_of
from tests.given import spec

STEPS = st.lists(
    st.tuples(st.sampled_from(("add", "remove", "peek")), st.integers(0, 9), st.integers(0, 3)),
    max_size=40,
)

LANE = LaneId("default", "")


def heads(line: Queue) -> Iterator[Waiting]:
    for lane in line.lanes.values():
        yield from lane.heads()


@draw(STEPS)
def test_the_heads_are_the_first_of_each_shape_in_order(steps: list[tuple[str, int, int]]) -> None:
    line = Queue()
    waiting: dict[int, tuple[tuple[int, int, int], Job]] = {}
    for what, number, priority in steps:
        job = Job(
            job_id=JobId(f"j{number}"),
            spec=spec(gpus=number % 3 + 1),
            tenant=TenantId("t"),
            user="",
            seq=number,
        )
        if what == "add" and number not in waiting:
            waiting[number] = ((0, -priority, number), job)
            line.add(job, (0, -priority, number), LANE)
        elif what == "remove":
            waiting.pop(number, None)
            line.remove(job.job_id)
        elif what == "peek":
            next(heads(line), None)
        first: dict[object, tuple[tuple[int, int, int], str]] = {}
        for key, each in sorted(waiting.values(), key=lambda entry: entry[0]):
            first.setdefault(shape_of(each), (key, each.job_id))
        assert [(key, job_id) for key, job_id, _, _ in heads(line)] == list(first.values())


def job(name: str, **fields: int) -> Job:
    return Job(job_id=JobId(name), spec=spec(**fields), tenant=TenantId("t"), user="", seq=1)


def test_entry_added_and_removed_in_front_leaves_nothing_in_the_queue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lane_module, "SPARE", 10)
    line = Queue()
    line.add(job("stays"), (5,), LANE)
    for number in range(200):
        line.add(job(f"j{number}"), (1,), LANE)
        line.remove(JobId(f"j{number}"))
        assert next(line.lanes[LANE].heads()).job_id == "stays"
    asked: list[str] = []
    lane = line.lanes[LANE]
    assert len(lane.front) <= 13

    def room_of(owner: Owner) -> Room:
        asked.append(owner.tenant)
        return NO_ROOM

    assert not list(lane.candidates(room_of, lambda entry: True)) and asked == ["t"]


def test_scans_that_end_early_leave_no_more_than_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_module, "SPARE", 10)
    line = Queue()
    line.add(job("last", cpus_milli=2), (9,), LANE)
    line.add(job("first", cpus_milli=1), (1,), LANE)
    lane = line.lanes[LANE]
    for _ in range(200):
        assert [head.job_id for head in islice(lane.heads(), 2)] == ["first", "last"]
        assert len(lane.front) <= lane_module.SPARE + 2 * len(lane.shapes)
    assert [head.job_id for head in lane.heads()] == ["first", "last"]


def test_shapes_with_one_limit_key_share_one_group_whatever_a_scan_drops() -> None:
    line = Queue()
    for number in range(50):
        line.add(job(f"j{number}", cpus_milli=2 * number + 1), (100 - number, 0), LANE)
        line.add(job(f"gone{number}", cpus_milli=2 * number + 2), (100 - number, 1), LANE)
        line.remove(JobId(f"gone{number}"))
        list(islice(line.lanes[LANE].heads(), 2))
    assert len({id(of_shape.group) for of_shape in line.lanes[LANE].shapes.values()}) == 1
