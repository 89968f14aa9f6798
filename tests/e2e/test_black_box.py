"""A user's actions in order on one cluster; each test leaves the cluster as it was.

Tests of features that the stack or the command lacks are skipped.
"""

import json
import time
from collections.abc import Iterator
from typing import Any, Final

import pytest

from libs.cli.verb_group import VERBS
from libs.common.errors import Refused
from tests.e2e.compose import ComposeStack
from tests.e2e.stack import Stack, known, muster, said, until

ON_TWO: Final = ("--workdir", "/tmp", "--nodes", "2", "--gpus", "4")
ALL_GPUS: Final = ("--workdir", "/tmp", "--nodes", "4", "--gpus", "8")
# Rank 0 waits for the other at the address that both were given.
GANG: Final = """
import os, socket, time
place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
if os.environ["RANK"] == "0":
    with socket.create_server(("", place[1])) as server:
        print("rank 1 is on", server.accept()[0].recv(100).decode())
else:
    while True:
        try:
            socket.create_connection(place, 1.0).sendall(os.environ["MUSTER_NODE_ID"].encode())
            break
        except OSError:
            time.sleep(0.05)
"""
MODEL: Final = "tiny"
ARCHIVED_S: Final = 20.0


def submit(stack: Stack, *words: str, flags: tuple[str, ...] = ()) -> str:
    return said(stack, "submit", "--workdir", "/tmp", *flags, "--", *words)


def job(stack: Stack, job_id: str, **more: Any) -> dict[str, Any]:
    found = known(stack, "describe", job_id, **more)
    return dict(found[0] if isinstance(found, list) else found)


def running(stack: Stack, job_id: str) -> None:
    until(lambda: job(stack, job_id)["state"] == "running", f"{job_id} runs")


def test_only_the_gateways_are_published(stack: Stack) -> None:
    if not isinstance(stack, ComposeStack):
        pytest.skip("processes publish nothing: all of them listen on loopback")
    assert set(stack.published()) == set(stack.gateways)


def test_a_request_without_a_key_is_refused(stack: Stack) -> None:
    refused = muster(stack, "ps", key="mk_wrong")
    assert refused.returncode != 0 and "key" in refused.stderr


def test_a_job_runs_with_its_devices_and_ends_with_its_exit_code(stack: Stack) -> None:
    done = muster(
        stack,
        "run",
        "--workdir",
        "/tmp",
        "--gpus",
        "2",
        "--",
        "sh",
        "-c",
        "echo $CUDA_VISIBLE_DEVICES; exit 3",
    )
    assert (done.returncode, done.stdout.count("GPU-")) == (3, 2), done.stderr


def test_a_gang_reaches_its_first_member_at_the_address_that_it_was_given(stack: Stack) -> None:
    assert said(stack, "run", *ON_TWO, "--", "python3", "-c", GANG).startswith("rank 1 is on node-")


def test_a_jobs_output_can_be_read_after_its_end(stack: Stack) -> None:
    job_id = submit(stack, "sh", "-c", "echo to stdout; echo to stderr >&2", flags=("--gpus", "1"))
    said(stack, "wait", job_id)
    done = muster(stack, "logs", job_id)
    assert (done.stdout, done.stderr) == ("to stdout\n", "to stderr\n")


def test_a_cancelled_job_ends_and_its_gpus_are_free_again(stack: Stack) -> None:
    job_id = submit(stack, "sleep", "600", flags=("--nodes", "4", "--gpus", "8"))
    running(stack, job_id)
    said(stack, "cancel", job_id)
    said(stack, "run", *ALL_GPUS, "--", "true")
    assert job(stack, job_id)["state"] == "cancelled"


def test_a_job_that_must_wait_says_why(stack: Stack) -> None:
    job_id = submit(stack, "true", flags=("--gpus", "9"))
    until(lambda: "at most 8 GPUs" in said(stack, "why", job_id), "the reason is known")
    said(stack, "cancel", job_id)


@pytest.fixture
def deployed(stack: Stack) -> Iterator[str]:
    if "deploy" not in VERBS:
        pytest.skip("this command has no verb `deploy`: models are not there")
    said(
        stack,
        "deploy",
        MODEL,
        "--replicas",
        "2",
        "--wait",
        "--",
        *stack.example,
        "--port",
        "{port}",
        "--model",
        MODEL,
    )
    yield MODEL
    said(stack, "undeploy", MODEL)


def test_a_model_answers_the_openai_client(stack: Stack, deployed: str) -> None:
    openai = pytest.importorskip("openai")
    for url in stack.gateways.values():
        client = openai.OpenAI(base_url=f"{url}/v1", api_key=stack.key)
        asked = {"model": deployed, "messages": [{"role": "user", "content": "hello"}]}
        assert deployed in [each.id for each in client.models.list()]
        assert client.chat.completions.create(**asked).usage.completion_tokens > 0
        assert [
            chunk for chunk in client.chat.completions.create(**asked, stream=True) if chunk.choices
        ]


def test_a_viewer_sees_and_changes_nothing(stack: Stack) -> None:
    if "key" not in VERBS:
        pytest.skip("this command has no verb `key`: roles are not there")
    made = json.loads(
        said(stack, "key", "create", "--user", "eve", "--role", "viewer", "-o", "json")
    )
    key = next(
        value for value in made.values() if isinstance(value, str) and value.startswith("msk_")
    )
    said(stack, "ps", key=key)
    refused = muster(stack, "submit", "--workdir", "/tmp", "--gpus", "1", "--", "true", key=key)
    assert refused.returncode != 0 and "viewer" in refused.stderr, refused.stderr


def test_a_lost_administrators_key_is_replaced_on_the_host(stack: Stack) -> None:
    key = stack.reset_key()
    assert key != stack.key
    for url in stack.gateways.values():
        until(
            lambda url=url: muster(stack, "key", "list", key=key, url=url).returncode == 0,
            "the new key is taken",
        )  # type: ignore[misc]
    said(stack, "key", "list")


JOINED_S: Final = 30.0
SHOWS: Final = ("sh", "-c", "echo $MUSTER_NODE_ID $WORD")


def test_another_machine_joins_runs_a_job_that_names_a_secret_and_is_removed(stack: Stack) -> None:
    stack.join(said(stack, "node", "add", "far"))
    until(lambda: "far" in said(stack, "nodes", "--no-headers"), "the machine is a node", JOINED_S)
    said(stack, "secret", "set", "word", given="xyzzy")
    job_id = submit(stack, *SHOWS, flags=("--nodes", "5", "--gpus", "2", "--secret", "word=WORD"))
    said(stack, "wait", job_id)
    shown = [said(stack, "logs", job_id, "--rank", str(rank)) for rank in range(5)]
    assert sorted(shown) == [
        f"{name} xyzzy" for name in ("far", "node-1", "node-2", "node-3", "node-4")
    ]
    said(stack, "secret", "rm", "word")
    said(stack, "node", "remove", "far")
    assert stack.joined_ends(JOINED_S) == Refused.exit_code
    until(
        lambda: "far" not in said(stack, "nodes", "--no-headers"), "it is a node no more", JOINED_S
    )


def test_a_gateway_that_is_killed_comes_back_and_the_others_go_on(stack: Stack) -> None:
    first, *others = stack.gateways
    stack.kill(first)
    for name in others:
        assert (
            said(
                stack,
                "run",
                "--workdir",
                "/tmp",
                "--gpus",
                "1",
                "--",
                "echo",
                "on",
                url=stack.gateways[name],
            )
            == "on"
        )
    until(lambda: muster(stack, "nodes").returncode == 0, f"{first} answers again")


def leader(stack: Stack) -> str:
    """The part whose term it is, as the log tells."""
    (fact,) = known(stack, "log", "--kind", "term.began", "--limit", "1")
    return stack.schedulers[fact["fact"]["instance"]]


def test_a_scheduler_that_is_killed_is_replaced_and_no_job_notices(stack: Stack) -> None:
    survivor = submit(stack, "sleep", "8", flags=("--gpus", "1"))
    running(stack, survivor)
    killed, began = leader(stack), time.monotonic()
    stack.take_away(killed)
    assert (
        said(stack, "run", "--workdir", "/tmp", "--gpus", "1", "--", "echo", "placed") == "placed"
    )
    print(f"placed {time.monotonic() - began:.1f} s after {killed} was killed")
    assert len(stack.schedulers) == 1 or leader(stack) != killed
    stack.bring_back(killed)
    said(stack, "wait", survivor)
    assert (job(stack, survivor)["state"], job(stack, survivor)["attempt"]) == ("completed", 1)


def test_the_log_goes_on_without_its_leader(stack: Stack) -> None:
    if not stack.servers:
        pytest.skip("processes have one nats-server: nothing can take over from it")
    killed, began = stack.stream_leader(), time.monotonic()
    stack.take_away(killed)
    assert (
        said(stack, "run", "--workdir", "/tmp", "--gpus", "1", "--", "echo", "recorded")
        == "recorded"
    )
    print(f"recorded {time.monotonic() - began:.1f} s after {killed} was killed")
    stack.bring_back(killed)
    until(lambda: stack.stream_leader() not in ("", killed), "another server leads")


@pytest.mark.parametrize("kind", ["quota", "audit", "node-2"])
def test_a_part_that_is_killed_comes_back(stack: Stack, kind: str) -> None:
    """A gang that meets a node's agent just as it dies is run again, and `run` shows what each
    attempt wrote.
    """
    stack.kill(kind)
    assert set(said(stack, "run", *ALL_GPUS, "--", "echo", "on").split()) == {"on"}


def test_after_a_planned_stop_everything_is_still_known(stack: Stack) -> None:
    job_id = submit(stack, "true", flags=("--gpus", "1", "--name", "before"))
    said(stack, "wait", job_id)
    stack.restart()
    assert job(stack, job_id)["state"] == "completed"
    assert set(said(stack, "run", *ALL_GPUS, "--", "echo", "on").split()) == {"on"}


def test_no_server_of_the_log_refused_another(stack: Stack) -> None:
    if not isinstance(stack, ComposeStack):
        pytest.skip("processes have one nats-server")
    said_by_them = stack.run("logs", "--no-color", *stack.servers).stdout
    assert "Server is ready" in said_by_them and "TLS route handshake error" not in said_by_them


def test_a_signed_head_that_was_kept_outside_is_of_this_chain_and_a_forged_one_is_not(
    stack: Stack,
) -> None:
    head = said(stack, "audit", "head")
    until(
        lambda: stack.verify(head).returncode == 0,
        "the archive holds the head that was kept",
        ARCHIVED_S,
    )
    forged = stack.verify(json.dumps({**json.loads(head), "hash": "0" * 64}))
    assert forged.returncode != 0 and "head 1" in forged.stdout, forged.stdout


def test_the_audit_chain_is_whole_at_the_end(stack: Stack) -> None:
    """Soon: an archive that is a moment behind the log is a finding too."""
    until(lambda: stack.verify().returncode == 0, "the archive has all of the log", ARCHIVED_S)
    assert "the chain is whole" in stack.verify().stdout
