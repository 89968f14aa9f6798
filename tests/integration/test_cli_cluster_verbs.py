"""The verbs for nodes, GPUs, audit and output against a fake gateway."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.cli_world import (
    Problem,
    World,
    job,
)

JOB = "/v1/jobs/jaaaaaaaaaa"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    made.routes["GET " + JOB] = job()
    made.routes["GET /v1/jobs/train"] = job()
    yield made
    made.close()


def test_nodes_gpus_and_top_print_the_cluster(world: World) -> None:
    node = {
        "id": "node-1",
        "state": "healthy",
        "gpus_total": 1,
        "gpus_free": 0,
        "job_ids": ["j"],
        "gpu_model": "H100",
    }
    holders = [{"job_id": "jaaaaaaaaaa", "attempt": 1, "share": 25}]
    gpu = {
        "uuid": "G",
        "node_id": "node-1",
        "index": 0,
        "model": "H100",
        "memory_bytes": 80 << 30,
        "state": "IN_USE",
        "held_share": 25,
    }
    world.routes["GET /v1/nodes"] = {"nodes": [node]}
    world.routes["GET /v1/gpus"] = {"gpus": [{**gpu, "holders": holders}]}
    world.routes["GET /v1/jobs"] = {"jobs": [job()], "next": None}
    world.routes["GET /v1/cluster"] = {
        "cluster_id": "c",
        "seq": 5,
        "leader": "a",
        "gpu_share_total": 100,
        "gpu_share_held": 25,
    }
    assert world.run("nodes", "--no-headers")[1].split()[:6] == [
        "node-1",
        "healthy",
        "1",
        "0",
        "1",
        "H100",
    ]
    assert world.run("gpus", "--no-headers")[1].split() == [
        "node-1",
        "0",
        "H100",
        "80",
        "GiB",
        "in_use",
        "25%",
        "jaaaaaaaaaa",
        "25%",
    ]
    code, out, err = world.run("top")
    assert (code, err) == (0, "") and "0.25 of 1 held" in out and "jaaaaaaaaaa" in out


def test_nodes_shows_one_with_its_gpus(world: World) -> None:
    gpu = {
        "uuid": "G",
        "node_id": "node-1",
        "index": 0,
        "model": "H100",
        "memory_bytes": 80 << 30,
        "state": "AVAILABLE",
        "holders": [],
    }
    isolation = {"cpu": "enforced", "mps": "lost: no control program"}
    node = {
        "id": "node-1",
        "state": "healthy",
        "gpus_total": 1,
        "gpus_free": 1,
        "job_ids": [],
        "gpu_model": "H100",
    }
    drivers = {"nvidia": "580.65.06", "cuda": "13.0"}
    found = {"node": {**node, "isolation": isolation, "drivers": drivers}, "gpus": [gpu]}
    world.routes["GET /v1/nodes/node-1"] = found
    world.routes["GET /v1/nodes/node-9"] = Problem(404, "no node 'node-9' has registered")
    code, out, _ = world.run("nodes", "node-1", "--no-headers")
    first, _, versions, _, title, lost, _, second = out.splitlines()
    assert versions == "Drivers: nvidia 580.65.06, cuda 13.0"
    assert (code, first.split()[:4], second.split()[:3]) == (
        0,
        ["node-1", "healthy", "1", "1"],
        ["node-1", "0", "H100"],
    )
    assert (title, lost) == ("This node cannot enforce or provide:", "  mps: no control program")
    assert json.loads(world.run("nodes", "node-1", "-o", "json")[1]) == found
    assert world.run("nodes", "node-9") == (1, "", "muster: no node 'node-9' has registered\n")


def test_node_dead_sends_a_declaration_and_prints_a_refusal(world: World) -> None:
    world.routes["POST /v1/nodes/node-1/dead"] = {"id": "node-1", "state": "unreachable"}
    world.routes["POST /v1/nodes/node-2/dead"] = Problem(409, "node node-2 is healthy")
    assert world.run("node", "dead", "node-1") == (0, "", "")
    assert world.asked("POST", "/v1/nodes/node-1/dead")[0].json == {"user": "ada"}
    assert world.run("node", "dead", "node-2") == (1, "", "muster: node node-2 is healthy\n")


def test_audit_verify_exits_with_the_verdict(world: World) -> None:
    package = world.home / "ours" / "services" / "audit"
    package.mkdir(parents=True)
    for each in (package, package.parent):
        (each / "__init__.py").touch()
    (package / "__main__.py").write_text(
        "import os, sys\nprint(sys.argv[1:], os.environ['MUSTER_STATE'])\nsys.exit(3)\n"
    )
    code, out, _ = world.run("audit", "verify", PYTHONPATH=f"{world.home / 'ours'}:{Path.cwd()}")
    assert (code, out) == (3, f"['verify'] {world.home / 'state'}\n")


def test_audit_never_runs_code_of_the_working_directory(world: World) -> None:
    package = world.home / "services" / "audit"
    package.mkdir(parents=True)
    (package / "__main__.py").write_text("print('not ours')\n")
    assert "not ours" not in world.run("audit", "verify")[1]


# prune


def test_prune_prints_deletions_per_node_and_in_total(world: World) -> None:
    row = {"size_bytes": 3 << 20, "jobs_left": 2, "bytes_left": 0, "error": ""}
    nodes = [
        {"node_id": "n1", "jobs": 4, "uncopied": 1, **row},
        {"node_id": "n2", "jobs": 0, "uncopied": 0, **row},
    ]
    world.routes["POST /v1/prune"] = {
        "nodes": nodes,
        "jobs": 4,
        "size_bytes": 6 << 20,
        "uploads": 2,
        "uploads_bytes": 1 << 20,
        "dry_run": True,
    }
    code, out, err = world.run("prune", "--older-than", "7d", "--keep-bytes", "10GiB", "--dry-run")
    assert (code, err) == (0, "")
    assert out.splitlines()[1].split() == [
        "n1",
        "4",
        "3.0",
        "MiB",
        "2",
        "0",
        "B",
        "1",
        "not",
        "copied",
        "off",
        "yet",
    ]
    assert out.splitlines()[-1] == "4 jobs and 2 uploads, 7.0 MiB would be removed"
    (request,) = world.asked("POST", "/v1/prune")
    assert json.loads(request.body) == {
        "older_than_s": 7 * 86_400,
        "keep_bytes": 10 << 30,
        "dry_run": True,
    }


def test_prune_names_the_nodes_that_did_not_answer(world: World) -> None:
    row = {
        "node_id": "n1",
        "jobs": 0,
        "size_bytes": 0,
        "jobs_left": 0,
        "bytes_left": 0,
        "uncopied": 0,
        "error": "does not answer",
    }
    world.routes["POST /v1/prune"] = {
        "nodes": [row],
        "jobs": 0,
        "size_bytes": 0,
        "uploads": 0,
        "uploads_bytes": 0,
        "dry_run": False,
    }
    code, _, err = world.run("prune", "--keep-bytes", "0")
    assert (code, err) == (1, "muster: these nodes did not answer in full: n1\n")


def test_prune_without_a_limit_sends_no_request(world: World) -> None:
    assert world.run("prune")[0] == 2
    assert world.seen == []


def test_a_model_s_queue_and_its_tenants_shares_are_printed(world: World) -> None:
    share = {
        "tenant": "research",
        "priority": "low",
        "weight": 300,
        "waiting_requests": 1,
        "waiting_tokens": 512,
        "tokens": 4096,
        "percent": 75,
    }
    model = {
        "name": "chat",
        "tenant": "default",
        "state": "ready",
        "ready": 1,
        "wanted": 1,
        "gpus": 1,
        "generation": 1,
        "crashes": 0,
        "command": ["serve"],
        "replicas": [],
        "queue": {"waiting_requests": 1, "waiting_tokens": 512, "shares": [share]},
    }
    world.routes["GET /v1/deployments/chat"] = model
    world.routes["GET /v1/deployments/chat/why"] = {"answer": "1 of 1 replicas are ready"}
    code, text, err = world.run("models", "chat")
    assert code == 0, (text, err)
    assert "queue    1 request waits with 512 input tokens (in this gateway)" in text
    [line] = [line for line in text.splitlines() if "research" in line]
    assert line.split() == ["research", "low", "300", "1", "512", "4096", "75", "%"]
    del model["queue"]
    code, text, _ = world.run("models", "chat")
    assert code == 0, "a gateway of an earlier version gives no queue"
    assert "research" not in text


def test_cluster_prints_members_log_and_certificates_and_fails_if_one_needs_an_operator(
    world: World,
) -> None:
    member = {"service": "scheduler", "instance": "a", "state": "leader", "epoch": 9, "lag": 0}
    log = {
        "commits": 12,
        "size_bytes": 3 << 20,
        "limit_bytes": 4 << 20,
        "filled_pct": 75.0,
        "growth_bytes_per_day": 1 << 20,
        "days_left": 1.0,
        "warning": "the log is 75 % full: make room soon",
        "servers": [{"name": "nats-1", "state": "leader", "lag": 0}],
    }
    certificate = {
        "name": "authority",
        "subject": "CN=muster",
        "ends_at": "2027-01-02T00:00:00Z",
        "days_left": 400,
        "warning": "",
    }
    shown = {
        "members": [{**member, "heard_s_ago": 0.4, "version": "1.0"}],
        "log": log,
        "certificates": [certificate],
    }
    world.routes["GET /v1/cluster"] = shown
    code, out, err = world.run("cluster")
    assert code == 1 and "the log is 75 % full: make room soon" in err
    lines = [line.split() for line in out.splitlines() if line]
    assert lines[1] == ["scheduler", "a", "leader", "9", "0", "0s", "ago", "1.0"]
    assert "12 commits, 3.0 MiB of 4.0 MiB (75.0 %)" in out and "1 days left" in out
    assert ["nats-1", "leader", "0"] in lines
    assert ["authority", "400", "2027-01-02", "CN=muster"] in lines
    world.routes["GET /v1/cluster"] = {**shown, "log": {**log, "warning": ""}}
    code, out, err = world.run("cluster", "-o", "json")
    assert (code, err) == (0, "") and json.loads(out)["members"][0]["state"] == "leader"
