"""Requests that the gateway accepts, refuses or ignores, compared by the facts that result."""

from typing import Any

import pytest

from libs.common.errors import Refused
from libs.common.facts import CancelRequested, JobSubmitted, NodeDeclaredDead
from libs.common.model import JobId, JobSpec, NodeId, TenantId
from libs.common.state.cluster import Cancel, Job, Node
from services.api_gateway.intents.job_intents import cancellation, death_declaration, submission
from services.api_gateway.secrets import plain_secrets

J = JobId("j1")


def job(cancel: Cancel | None = None) -> Job:
    return Job(
        job_id=J,
        spec=JobSpec(command=("true",), grace_s=7),
        tenant=TenantId("default"),
        user="",
        seq=1,
        cancel=cancel,
    )


def test_a_request_becomes_the_fact_that_it_describes() -> None:
    body = {
        "command": ["python", "t.py"],
        "name": "t",
        "user": "ada",
        "nodes": 2,
        "gpus": 8,
        "priority": 0,
        "labels": {"a": "b/c"},
    }
    spec = JobSpec(
        command=("python", "t.py"), name="t", nodes=2, gpus=8, priority=0, labels={"a": "b/c"}
    )
    assert submission(body, J) == JobSubmitted(job_id=J, spec=spec, user="ada")


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"fraction": 0.25}, {"gpu_share": 25}),
        ({"fraction": 0.07}, {"gpu_share": 7}),
        ({"fraction": 1}, {"gpu_share": 100}),
        ({"gpu_share": 50}, {"gpu_share": 50}),
        ({"time_limit": "1h30m"}, {"time_limit_s": 5400}),
        ({"time_limit_s": "1-00:00:01"}, {"time_limit_s": 86_401}),
        ({"time_limit_s": 90}, {"time_limit_s": 90}),
        ({"hang_timeout": "10m"}, {"hang_timeout_s": 600}),
        ({"grace_s": "1m", "start_s": "2m"}, {"grace_s": 60, "start_s": 120}),
    ],
)
def test_the_ways_to_write_a_share_and_a_time(
    given: dict[str, Any], wanted: dict[str, Any]
) -> None:
    assert submission({"command": ["true"], **given}, J).spec == JobSpec(
        command=("true",), **wanted
    )


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"comand": ["x"]}, "'comand' is not known: did you mean 'command'"),
        ({"tenant": "x"}, "'tenant' is not known"),
        ({"command": []}, "command: empty"),
        ({"command": [""]}, "command: empty"),
        ({"command": "true"}, "command: expected"),
        ({"command": ["a", 1]}, "command[1]: expected"),
        ({"command": ["a\0"]}, "command: a word contains a NUL"),
        ({"nodes": 0}, "nodes: 0 is out of bounds: give 1 to 1024"),
        ({"nodes": 1025}, "nodes: 1025"),
        ({"nodes_max": 1025}, "nodes_max: 1025"),
        ({"nodes": 4, "nodes_max": 2}, "nodes_max: 2 is less than nodes (4)"),
        ({"gpus": 65}, "gpus: 65"),
        ({"gpus": 0}, "cpus: missing: a job without GPUs must say how many CPUs"),
        ({"gpus": -1}, "gpus: -1"),
        ({"gpus": "8"}, "gpus: expected"),
        ({"gpus": True}, "gpus: expected"),
        ({"gpus": 1 << 70}, "gpus: "),
        ({"gpu_share": 101}, "gpu_share: 101"),
        ({"gpu_share": 0}, "gpu_share: 0"),
        ({"fraction": 0.255}, "fraction: 0.255"),
        ({"fraction": 0}, "fraction: 0"),
        ({"fraction": 1.5}, "fraction: 1.5"),
        ({"fraction": "half"}, "fraction: 'half'"),
        ({"fraction": 0.5, "gpu_share": 50}, "fraction: gpu_share is given too"),
        ({"time_limit": "1h", "time_limit_s": 1}, "time_limit: time_limit_s is given too"),
        ({"time_limit": "soon"}, "time_limit: 'soon' is not a duration"),
        ({"time_limit_s": -1}, "time_limit_s: -1"),
        ({"priority": 101}, "priority: 101"),
        ({"name": "a b"}, "name: 'a b'"),
        ({"name": "../x"}, "name: '../x'"),
        ({"user": "a b"}, "user: 'a b'"),
        ({"user": 7}, "user: 7"),
        ({"workdir": "here"}, "workdir: 'here'"),
        ({"workdir": "/" + "é" * 2_048}, "a path of at most 4095 bytes"),
        ({"env": {"A=B": "x"}}, "env: 'A=B'"),
        ({"env": {"A": 1}}, "env[...]: expected"),
        ({"labels": {"": "x"}}, "labels: ''"),
        ({"retries": 5_000}, "retries: 5000"),
        ({"on_control_loss": "panic"}, "on_control_loss: 'panic'"),
        ({"env": {"A": "x" * 70_000}}, "over the bound"),
    ],
)
def test_invalid_value_is_refused_with_its_name(given: dict[str, Any], named: str) -> None:
    with pytest.raises(Refused) as refused:
        submission({"command": ["true"], **given}, J)
    assert named in str(refused.value)


@pytest.mark.parametrize("body", [None, [], "x", 1, {}])
def test_invalid_request_is_refused(body: object) -> None:
    with pytest.raises(Refused):
        submission(body, J)


@pytest.mark.parametrize("name", ["HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "db_password"])
def test_a_variable_that_looks_like_a_secret_is_refused_with_what_to_do(name: str) -> None:
    with pytest.raises(Refused) as refused:
        submission({"command": ["true"], "env": {name: "hunter2"}}, J)
    assert f"--secret NAME={name}" in str(refused.value) and "hunter2" not in str(refused.value)


def test_a_variable_that_only_resembles_one_or_is_empty_is_not() -> None:
    env = {"TOKENIZERS_PARALLELISM": "0", "MONKEY": "1", "HF_TOKEN": ""}
    assert submission({"command": ["true"], "env": env}, J).spec.env == env


@pytest.mark.parametrize("name", [15, "15", "TERM", "SIGTERM", "term"])
def test_a_cancel_takes_a_signal_by_number_and_by_name(name: object) -> None:
    assert cancellation({"signal": name}, job()) == CancelRequested(job_id=J, signal=15, grace_s=7)


@pytest.mark.parametrize(
    "body",
    [
        {"signal": 0},
        {"signal": 65},
        {"signal": "NOPE"},
        {"signal": "²"},
        {"grace_s": -1},
        {"grace": 1},
        [],
        {"signal": True},
    ],
)
def test_a_cancel_that_is_not_valid_is_refused(body: object) -> None:
    with pytest.raises(Refused):
        cancellation(body, job())


def test_a_cancel_that_asks_for_no_more_than_was_asked_records_nothing() -> None:
    assert cancellation(None, job(Cancel(7, 15))) is None
    assert cancellation({"grace_s": 3}, job(Cancel(7, 15))) == CancelRequested(
        job_id=J, signal=15, grace_s=3
    )


def test_a_node_is_declared_dead_as_it_is_now_and_once() -> None:
    node = Node(NodeId("n"), "unreachable", incarnation=4, lost=3)
    said = death_declaration({"user": "ada"}, node)
    assert said == NodeDeclaredDead(node_id=NodeId("n"), incarnation=4, lost=3, user="ada")
    node.word = (4, 3)
    assert death_declaration(None, node) is None
    node.lost = 4
    assert death_declaration(None, node) == NodeDeclaredDead(
        node_id=NodeId("n"), incarnation=4, lost=4
    )


def test_the_death_of_a_node_that_is_not_lost_yet_is_recorded_each_time() -> None:
    node = Node(NodeId("n"), "healthy", incarnation=4, lost=3, word=(4, 3))
    assert death_declaration(None, node) == NodeDeclaredDead(
        node_id=NodeId("n"), incarnation=4, lost=3
    )


def test_a_job_may_go_on_without_a_lease() -> None:
    assert submission({"command": ["true"], "on_control_loss": "continue"}, J).spec.ignores_lease


def test_a_job_over_the_devices_of_one_commit_is_refused() -> None:
    body = {"command": ["true"], "nodes": 1_024, "gpus": 16}
    assert submission(body, JobId("j")).spec.nodes == 1_024
    for more in ({"gpus": 17}, {"nodes": 1, "gpus": 17, "nodes_max": 1_024}):
        with pytest.raises(Refused, match="one job may have 16384: ask for fewer"):
            submission(body | more, JobId("j"))


@pytest.mark.attack
def test_the_size_of_a_request_is_checked_before_any_pattern_reads_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read: list[int] = []
    monkeypatch.setattr(plain_secrets, "in_text", lambda text: read.append(len(text)) or "")
    monkeypatch.setattr(
        plain_secrets, "in_command", lambda words: read.append(len(" ".join(words))) or ""
    )
    for body in (
        {"command": ["sh", "-c", "x://" * 30_000]},
        {"command": ["true"], "env": {"A": "eyJaaaaaaaa-" * 10_000}},
    ):
        with pytest.raises(Refused, match="over the bound"):
            submission(body, J)
    assert read == []
    submission({"command": ["sh", "-c", "x://" * 10_000]}, J)
    assert read == [len("sh -c ") + 40_000]


@pytest.mark.attack
@pytest.mark.parametrize(
    "given",
    [
        {"name": "a\n"},
        {"user": "ada\n"},
        {"labels": {"a": "b\n"}},
        {"labels": {"a\n": "b"}},
        {"env": {"A\n": "b"}},
        {"image": "debian\n"},
        {"vendor": "nvidia\n"},
        {"node_list": ["n1\n"]},
        {"placement": "pack\n"},
        {"time_limit": "1h\n"},
        {"gpu_memory": "1GiB\0"},
        {"compute_capability": "8.0\n"},
        {"compute_capability_min": [2**63, 0]},
        {"compute_capability_min": [0, -1]},
        {"array": {"0": "1"}},
        {"array": True},
        {"array": "0-9\n"},
    ],
)
def test_no_name_ends_with_a_newline_and_no_number_is_without_bounds(given: dict[str, Any]) -> None:
    with pytest.raises(Refused):
        submission({"command": ["true"], **given}, J)
