"""The queue against a plain list: the heads are the first waiting job of each shape, in order, whatever came and went."""

from collections.abc import Iterator

from hypothesis import given as draw
from hypothesis import strategies as st

from libs.common.cluster import Job
from libs.common.model import JobId, TenantId
from services.scheduler.queue import LaneId, Queue, Waiting, shape_of
from tests.given import spec

STEPS = st.lists(st.tuples(st.sampled_from(("add", "remove", "peek")), st.integers(0, 9), st.integers(0, 3)), max_size=40)

LANE = LaneId("default", "")


def heads(queue: Queue) -> Iterator[Waiting]:
    for lane in queue.lanes.values():
        yield from lane.heads()


@draw(STEPS)
def test_the_heads_are_the_first_of_each_shape_in_order(steps: list[tuple[str, int, int]]) -> None:
    queue = Queue()
    waiting: dict[int, tuple[tuple[int, int, int], Job]] = {}
    for what, number, priority in steps:
        job = Job(JobId(f"j{number}"), spec(gpus=number % 3 + 1), TenantId("t"), "", number)
        if what == "add" and number not in waiting:
            waiting[number] = ((0, -priority, number), job)
            queue.add(job, (0, -priority, number), LANE)
        elif what == "remove":
            waiting.pop(number, None)
            queue.remove(job.job_id)
        elif what == "peek":
            next(heads(queue), None)
        first: dict[object, tuple[tuple[int, int, int], str]] = {}
        for key, each in sorted(waiting.values(), key=lambda entry: entry[0]):
            first.setdefault(shape_of(each), (key, each.job_id))
        assert [(key, job_id) for key, job_id, _, _ in heads(queue)] == list(first.values())
