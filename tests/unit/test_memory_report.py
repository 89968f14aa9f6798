"""The agent's report about granted memory: by device, attempt and purpose, within bounds."""

from libs.common.messages.memory_messages import DeviceMemory, MemoryReport, UsedMemory
from libs.common.model import JobId
from services.node_agent.memory import report as r
from services.node_agent.memory.device_memory import HOST_DRIVER, Device
from services.node_agent.memory.grants import HOST, Attempt, Grant

DEVICES = {0: Device(0, HOST_DRIVER, 100, "GPU-a"), HOST: Device(HOST, HOST_DRIVER, 50)}


def attempt(key: str, lost: bool = False) -> Attempt:
    return Attempt(key, "t", b"", {0: 40}, "/", lost)


def told(*grants: Grant, lost: bool = False) -> MemoryReport:
    answers = {0: "", HOST: "no room"}
    attempts = {"j.1": attempt("j.1", lost)}
    return r.report(DEVICES, answers, attempts=attempts, grants=grants, restarts=2)


def test_grants_are_summed_by_attempt_device_and_purpose() -> None:
    found = told(
        Grant(1, "j.1", 0, 10, "weights", None),
        Grant(2, "j.1", 0, 5, "weights", None),
        Grant(3, "j.1", HOST, 7, "staging", None),
    )
    assert found.devices == (
        DeviceMemory("GPU-a", 100, 15),
        DeviceMemory("host", 50, 7, "no room"),
    )
    assert found.used == (
        UsedMemory(JobId("j"), 1, "GPU-a", "weights", 15),
        UsedMemory(JobId("j"), 1, "host", "staging", 7),
    )


def test_an_attempt_whose_grants_are_unknown_counts_as_its_pool() -> None:
    found = told(lost=True)
    assert [(row.purpose, row.granted_bytes) for row in found.used] == [(r.LOST, 40)]
    assert found.devices[0].granted_bytes == 40


def test_the_purposes_of_one_attempt_are_bounded_and_no_byte_is_lost() -> None:
    grants = [Grant(n, "j.1", 0, 1, f"purpose {n}", None) for n in range(1, 101)]
    found = told(*grants)
    assert len(found.used) == r.PURPOSES_MAX + 1
    assert sum(row.granted_bytes for row in found.used) == 100


def test_metrics_have_a_line_per_device_and_job_and_none_without_a_broker() -> None:
    lines = r.metrics("n", told(Grant(1, "j.1", 0, 10, 'a"b', None)))
    assert 'muster_pool_granted_bytes{UUID="GPU-a",Hostname="n"} 10' in lines
    assert 'muster_pool_capacity_bytes{UUID="host",Hostname="n"} 50' in lines
    assert 'muster_pool_usable{UUID="host",Hostname="n"} 0' in lines
    assert 'muster_pool_job_bytes{UUID="GPU-a",hpc_job="j",Hostname="n"} 10' in lines
    assert 'muster_memory_broker_starts_total{Hostname="n"} 2' in lines
    assert r.metrics("n", MemoryReport()) == []


def test_metrics_of_weights_have_a_line_per_device_and_model() -> None:
    lines = r.weights_metrics("n", {("GPU-a", "chat"): 10})
    line = 'muster_resident_weights_bytes{UUID="GPU-a",model="chat",Hostname="n"} 10'
    assert lines[-1] == line
    assert r.weights_metrics("n", {}) == []


def test_the_jobs_of_one_device_with_metrics_of_their_own_are_bounded() -> None:
    used = tuple(UsedMemory(JobId(f"j{n}"), 1, "GPU-a", "", 1) for n in range(30))
    lines = r.metrics("n", MemoryReport((DEVICE,), used, 1))
    jobs = [line for line in lines if line.startswith("muster_pool_job_bytes")]
    assert len(jobs) == r.JOBS_MAX + 1
    assert jobs[-1] == 'muster_pool_job_bytes{UUID="GPU-a",hpc_job="other",Hostname="n"} 14'


DEVICE = DeviceMemory("GPU-a", 100, 30)
