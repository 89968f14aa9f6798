"""The index of jobs lists them as a sort by submission would, without sorting for each page."""

from random import Random

from libs.common.model import Allocation, JobId, JobSpec, TenantId
from libs.common.state.cluster import Cluster, Job
from services.api_gateway.views.index import JobIndex, Place

BEFORE_ALL = Place(0, 0)


def job(job_id: str, seq: int) -> Job:
    spec = JobSpec(command=("true",))
    return Job(job_id=JobId(job_id), spec=spec, tenant=TenantId("default"), user="ada", seq=seq)


def add(index: JobIndex, job_id: str, seq: int) -> None:
    index.cluster.jobs[JobId(job_id)] = job(job_id, seq)
    index.touch(JobId(job_id))


def listed(index: JobIndex, page: int) -> list[JobId]:
    """All ids, read `page` places at a time."""
    ids: list[JobId] = []
    last = BEFORE_ALL
    while places := index.listed(last, page):
        assert len(places) <= page
        ids += [place.job_id for place in places]
        last = places[-1]
    return ids


def sorted_ids(cluster: Cluster) -> list[JobId]:
    return [each.job_id for each in sorted(cluster.jobs.values(), key=lambda each: each.seq)]


def test_listed_jobs_have_the_order_of_a_stable_sort_by_submission() -> None:
    random, index = Random(7), JobIndex(Cluster())
    for number in range(300):
        add(index, f"j{random.randrange(1 << 30)}-{number}", random.randrange(1, 60))
    assert [listed(index, page) for page in (1, 7, 1_000)] == [sorted_ids(index.cluster)] * 3


def test_an_index_rebuilt_from_a_snapshot_lists_jobs_in_the_same_order() -> None:
    random, index = Random(8), JobIndex(Cluster())
    for number in range(100):
        add(index, f"j{number}", random.randrange(1, 20))
    assert listed(JobIndex(index.cluster), 9) == listed(index, 9)


def test_listing_continues_after_a_job_that_was_forgotten_in_between() -> None:
    index = JobIndex(Cluster())
    for number in range(1, 7):
        add(index, f"j{number}", number)
    last = index.listed(BEFORE_ALL, 3)[-1]
    index.cluster.jobs[last.job_id].state = "completed"
    index.touch(last.job_id)
    del index.cluster.jobs[last.job_id]
    assert index.forget_gone() == ["j3"]
    assert [place.job_id for place in index.listed(last, 9)] == ["j4", "j5", "j6"]


def test_a_page_reads_only_its_own_places() -> None:
    index = JobIndex(Cluster())
    for number in range(1, 1_001):
        add(index, f"j{number}", number)
    assert [place.seq for place in index.listed(Place(500, 1 << 62), 2)] == [501, 502]


def test_allocations_are_found_by_tenant_until_they_are_forgotten() -> None:
    cluster = Cluster()
    for number in range(4):
        each = job(f"j{number}", number)
        if number % 2:
            each.spec = JobSpec(command=(), allocation=Allocation(expires_s=60))
        cluster.jobs[each.job_id] = each
    index = JobIndex(cluster)
    assert [each.job_id for each in index.allocations_of("default")] == ["j1", "j3"]
    assert index.allocations_of("other") == []
    for number in range(4):
        job_id = JobId(f"j{number}")
        cluster.jobs[job_id].state = "completed"
        index.touch(job_id)
    for gone, left in (("j0", ["j1", "j3"]), ("j1", ["j3"]), ("j2", ["j3"]), ("j3", [])):
        del cluster.jobs[JobId(gone)]
        index.forget_gone()
        assert [each.job_id for each in index.allocations_of("default")] == left
    assert not index.allocations
