"""A bad device and a bad job are told apart by who had errors where."""

import pytest

from libs.common import facts as f
from libs.common.model import AttemptRef, GpuId, JobId, NodeId
from libs.common.state import suspects
from libs.common.state.cluster import Job
from libs.common.state.device import ERRORS_KEPT
from tests.history import History, begun, member, placed, refused, requeued


def world(*jobs: str) -> History:
    history = begun(gpus=4)
    for job in jobs:
        history.queue(job)
        assert history.say(placed(job, member("n1", "n1g1")), refused(job, "n1"), requeued(job))
    return history


def erred(history: History, gpu: int, *jobs: str, verdict: str = "restart_job") -> None:
    refs = tuple(AttemptRef(JobId(job), 1) for job in jobs)
    error = "xid 79" if verdict == "reboot_node" else "xid 31"
    seen = f.GpuErrorSeen(
        node_id=NodeId("n1"),
        uuid=GpuId(f"n1g{gpu}"),
        error=error,
        verdict=verdict,
        source="driver",
        jobs=refs,
    )
    assert history.say(seen)


def of_device(history: History, gpu: int) -> str:
    return suspects.of_device(history.cluster, history.cluster.gpus[GpuId(f"n1g{gpu}")])


def job(history: History, name: str) -> Job:
    return history.cluster.jobs[JobId(name)]


def test_a_device_under_different_jobs_that_had_no_errors_elsewhere_is_suspect() -> None:
    history = world("a", "b", "c")
    for name in ("a", "b"):
        erred(history, 1, name)
    assert of_device(history, 1) == ""
    erred(history, 1, "c")
    assert of_device(history, 1).startswith("3 different jobs had errors here and nowhere else")
    assert (of_device(history, 2), suspects.of_job(history.cluster, job(history, "a"))) == ("", "")


def test_a_job_with_errors_on_different_devices_is_suspect_and_speaks_against_none_of_them() -> (
    None
):
    history = world("bad", "a", "b")
    for gpu in (1, 2):
        erred(history, gpu, "bad")
    assert suspects.of_job(history.cluster, job(history, "bad")).startswith(
        "it had errors on 2 different GPUs"
    )
    for name in ("a", "b"):
        erred(history, 1, name)
    assert of_device(history, 1) == ""


def test_the_same_job_again_and_what_means_nothing_count_for_nothing() -> None:
    history = world("a", "b", "c")
    for _ in range(ERRORS_KEPT + 1):
        erred(history, 1, "a")
    for name in ("b", "c"):
        erred(history, 1, name, verdict="ignore")
    assert (
        of_device(history, 1),
        suspects.of_job(history.cluster, job(history, "a")),
        job(history, "b").gpu_errors,
    ) == ("", "", [])
    assert len(job(history, "a").gpu_errors) == ERRORS_KEPT


def test_jobs_that_the_cluster_knows_no_more_count() -> None:
    history = world()
    erred(history, 1, "x", "y", "z")
    assert of_device(history, 1) != ""


def of_node(history: History) -> str:
    return suspects.of_node(history.cluster, history.cluster.nodes[NodeId("n1")])


def test_devices_that_fell_off_their_bus_speak_against_their_node_and_not_against_the_job() -> None:
    history = world("a")
    for gpu in (1, 2):
        erred(history, gpu, "a", verdict="reboot_node")
    assert (of_node(history), suspects.of_job(history.cluster, job(history, "a"))) == ("", "")
    erred(history, 3, "a", verdict="reboot_node")
    assert of_node(history).startswith("3 of its GPUs had errors that take a device")
    assert suspects.of_job(history.cluster, job(history, "a")) == ""


def test_errors_that_a_job_may_cause_say_nothing_of_its_node() -> None:
    history = world("a")
    for gpu in (1, 2, 3):
        erred(history, gpu, "a")
    assert of_node(history) == "" and suspects.of_job(history.cluster, job(history, "a")) != ""


def test_a_device_that_the_cluster_knows_no_more_blames_no_job() -> None:
    history = world("a")
    for gpu in (1, 2):
        erred(history, gpu, "a")
    del history.cluster.gpus[GpuId("n1g2")]
    assert suspects.of_job(history.cluster, job(history, "a")) == ""


@pytest.mark.attack
def test_errors_of_an_nvswitch_speak_against_no_device_no_job_and_no_power_supply() -> None:
    history = world("a", "b", "c")
    for gpu in range(1, 5):
        refs = tuple(AttemptRef(JobId(job), 1) for job in ("a", "b", "c"))
        seen = f.GpuErrorSeen(
            node_id=NodeId("n1"),
            uuid=GpuId(f"n1g{gpu}"),
            error="sxid 24007",
            verdict="reboot_node",
            source="kernel_log",
            jobs=refs,
        )
        assert history.say(seen)
    cluster = history.cluster
    assert [of_device(history, gpu) for gpu in range(1, 5)] == [""] * 4
    assert (
        suspects.of_job(cluster, job(history, "a"))
        == suspects.of_node(cluster, cluster.nodes[NodeId("n1")])
        == ""
    )
