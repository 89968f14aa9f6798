"""Why a process never began (libs/common/life/failed_start.py), and how a model crashed."""

from libs.cli.jobs import why_of
from libs.common.life import failed_start
from libs.common.model import JobId, JobSpec, NodeId, TenantId
from libs.common.model_spec import ModelSpec
from libs.common.state import model_crashes
from libs.common.state.cluster import Cluster, Model
from libs.common.state.job import Job, MemberView

DETAIL = "the command vllm was not found in PATH=/usr/bin"
WORDS = "the command vllm was not found on n1 (exit code 127)"


def test_a_command_that_was_not_found_is_named_with_its_node() -> None:
    assert failed_start.words("exec_failed", DETAIL, "n1", exit_code=127) == WORDS
    shown = failed_start.words("exec_failed", "the directory is missing", "n1", exit_code=None)
    assert shown == "the directory is missing on n1"


def test_a_process_that_began_has_no_such_words() -> None:
    assert failed_start.words("exited", "the main process exited with 1", "n1", exit_code=1) == ""
    assert failed_start.words("exec_failed", "", "n1", exit_code=126) == ""


def test_lists_and_descriptions_of_jobs_use_the_same_words() -> None:
    member = {"reason": "exec_failed", "detail": DETAIL, "node_id": "n1", "exit_code": 127}
    failed = {"state": "failed", "reason": "failed"}
    assert why_of({**failed, "members": [{"reason": "stopped", "node_id": "n0"}, member]}) == WORDS
    assert [why_of(failed), why_of({**failed, "reason": "hung"})] == ["", "hung"]


def crashed(reason: str, known: bool = True) -> tuple[Cluster, Model]:
    """A model whose replica chat-1 crashed last."""
    member = MemberView(
        node_id=NodeId("n1"),
        incarnation=1,
        rank=0,
        gpus=(),
        accounted=0,
        exit_code=127,
        reason=reason,
        detail=DETAIL,
    )
    job = Job(JobId("chat-1"), JobSpec(command=("vllm",)), tenant=TenantId("t"), user="u", seq=1)
    job.members = {NodeId("n1"): member}
    model = Model(
        name="chat",
        tenant=TenantId("t"),
        user="u",
        spec=ModelSpec(command=("vllm",)),
        seq=1,
        replicas=1,
        crashes=3,
        last_crash_ns=5,
        last_crash="failed, exit code 127, chat-1",
    )
    return Cluster(jobs={job.job_id: job} if known else {}), model


def test_the_last_crash_of_a_model_names_the_command_that_was_not_found() -> None:
    assert model_crashes.last_crash(*crashed("exec_failed")) == f"{WORDS}, chat-1"


def test_the_last_crash_is_as_recorded_if_no_more_is_known() -> None:
    for cluster, model in (crashed("exited"), crashed("exec_failed", known=False)):
        assert model_crashes.last_crash(cluster, model) == model.last_crash


def test_the_next_replica_waits_longer_after_each_crash() -> None:
    _, model = crashed("exited")
    waits = []
    for model.crashes in (1, 2, 3, 4, 40):
        waits.append(model_crashes.backoff_until_ns(model))
    assert waits == [0, 5 + 10**9, 5 + 2 * 10**9, 5 + 4 * 10**9, 5 + 300 * 10**9]
