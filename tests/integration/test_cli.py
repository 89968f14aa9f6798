"""The command as a child process against a server that plays the gateway: lists, faults, machine
output, pipes.
"""

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.integration.cli_world import (
    KEY,
    PATIENCE_S,
    Break,
    Problem,
    Request,
    World,
    ended,
    job,
    output,
    state,
)

JOB = "/v1/jobs/jaaaaaaaaaa"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    made.routes["GET " + JOB] = job()
    made.routes["GET /v1/jobs/train"] = job()
    yield made
    made.close()


# ps


def test_ps_shows_my_live_jobs_in_aligned_columns(world: World) -> None:
    world.routes["GET /v1/jobs"] = {
        "jobs": [job(), job("jbbbbbbbbbb", name="", nodes=4, gpus=8, node_ids=[])],
        "next": None,
    }
    code, out, err = world.run("ps")
    assert (code, err) == (0, "")
    head, first, second = out.splitlines()
    assert head.split() == [
        "ID",
        "NAME",
        "STATE",
        "GPUS",
        "USER",
        "SUBMITTED",
        "RAN",
        "NODES",
        "REASON",
    ]
    assert first.index("running") == second.index("running") == head.index("STATE")
    assert second.split()[:5] == ["jbbbbbbbbbb", "-", "running", "4x8", "ada"]
    (request,) = world.asked("GET", "/v1/jobs")
    assert (request.query, request.user_key) == ({"user": "ada", "limit": "500"}, KEY)


def test_ps_asks_for_what_its_flags_say(world: World) -> None:
    world.routes["GET /v1/jobs"] = {"jobs": [], "next": None}
    assert (
        world.run(
            "ps",
            "--all",
            "-s",
            "failed",
            "-s",
            "queued",
            "-l",
            "team=nlp",
            "--since",
            "2025-01-01T00:00:00Z",
            "-n",
            "5",
        )[0]
        == 0
    )
    (request,) = world.asked("GET", "/v1/jobs")
    expected = {
        "all": "1",
        "state": "failed,queued",
        "label": "team=nlp",
        "since": "2025-01-01T00:00:00+00:00",
        "limit": "5",
        "elements": "1",
    }
    assert request.query == expected


def test_ps_reads_all_pages(world: World) -> None:
    pages = {"": {"jobs": [job("ja")], "next": 7}, "7": {"jobs": [job("jb")], "next": None}}
    world.routes["GET /v1/jobs"] = lambda request: pages[request.query.get("after", "")]
    _, out, _ = world.run("ps", "-o", "json")
    assert [each["id"] for each in json.loads(out)] == ["ja", "jb"]


def test_machine_output_is_the_gateways_own_fields(world: World) -> None:
    world.routes["GET /v1/jobs"] = {"jobs": [job()], "next": None}
    assert json.loads(world.run("ps", "-o", "json")[1]) == [job()]
    assert yaml.safe_load(world.run("ps", "-o", "yaml")[1]) == [job()]
    assert world.run("ps", "--no-headers")[1].split()[0] == "jaaaaaaaaaa"
    assert "python train.py" in world.run("ps", "-o", "wide")[1]


def test_no_colours_and_no_control_characters_reach_a_pipe(world: World) -> None:
    world.routes["GET /v1/jobs"] = {"jobs": [job(name="a\x1b[31mb")], "next": None}
    assert "\x1b" not in world.run("ps")[1]


# faults


def test_an_unreachable_gateway_is_one_line_that_says_where_and_what_to_do(world: World) -> None:
    world.profile({"gateway": "http://127.0.0.1:1"})
    code, out, err = world.run("ps")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith(
        "muster: no gateway answers at http://127.0.0.1:1 (from "
    ) and err.endswith("with: muster up\n")


def test_dead_address_in_the_environment_is_not_answered_with_muster_up(world: World) -> None:
    code, _, err = world.run("ps", MUSTER_URL="http://127.0.0.1:1")
    assert code == 1
    assert "unset MUSTER_URL" in err
    assert "muster up" not in err


def test_the_environment_goes_before_the_profile(world: World) -> None:
    world.routes["GET /v1/nodes"] = {"nodes": []}
    world.profile({"gateway": "http://127.0.0.1:1", "key": "old"})
    assert world.run("nodes", MUSTER_URL=world.url, MUSTER_API_KEY="new")[0] == 0
    assert world.seen[-1].user_key == "new"


@pytest.mark.parametrize(
    ("problem", "said"),
    [
        (Problem(404, "no job has the id 'x'"), "no job has the id 'x'"),
        (
            Problem(409, "'x' is ambiguous", {"candidates": ["xa", "xb"]}),
            "'x' is ambiguous: xa, xb",
        ),
        (Problem(503, "two\nlines"), "two lines"),
    ],
)
def test_a_refusal_is_its_detail_in_one_line(world: World, problem: Problem, said: str) -> None:
    world.routes["GET /v1/jobs/x"] = problem
    assert world.run("describe", "x") == (1, "", f"muster: {said}\n")


def test_an_answer_that_is_not_a_gateways_is_said_so(world: World) -> None:
    world.routes["GET /v1/nodes"] = lambda request: iter((b"<html>",))
    code, _, err = world.run("nodes")
    assert code == 1 and "check that it is a Muster gateway" in err and err.count("\n") == 1


def test_an_answer_cut_in_the_middle_is_one_line(world: World) -> None:
    def cut(request: Request) -> Iterator[bytes]:
        yield b'{"nodes": ['
        raise Break

    world.routes["GET /v1/nodes"] = cut
    code, _, err = world.run("nodes")
    assert code == 1 and err.startswith("muster: ") and err.count("\n") == 1


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("pss", "muster: unknown verb 'pss' (did you mean 'ps'?); see muster --help"),
        ("squeue", "muster: unknown verb 'squeue' (did you mean 'ps'?); see muster --help"),
        (
            "ps --sate x",
            "muster: no such option '--sate' (did you mean '--state'?); see muster ps --help",
        ),
        ("ps --since soon", "muster: --since: 'soon' is neither a duration"),
        (
            "submit",
            "muster: no job: give a job file, or a command after --; see muster submit --help",
        ),
        ("run -l x true", "muster: --label 'x': use K=V; see muster run --help"),
        ("run -t soon true", "muster: invalid value for '-t' / '--time': 'soon' is not a duration"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(world: World, line: str, said: str) -> None:
    code, out, err = world.run(*shlex.split(line))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(said)


def test_a_reader_that_goes_away_is_no_fault(world: World) -> None:
    world.routes["GET /v1/jobs"] = {"jobs": [job(f"j{i:010}") for i in range(20_000)], "next": None}
    command = (
        f'{shlex.quote(sys.executable)} -c "from libs.cli.main import main; main()" ps -n 20000 '
        "| head -n 2"
    )
    process = subprocess.run(
        command,
        shell=True,
        capture_output=True,
        cwd=Path.cwd(),
        env=world.environ(),
        timeout=PATIENCE_S,
        check=False,
    )
    assert process.stderr == b"" and len(process.stdout.splitlines()) == 2


# submit


def test_submit_prints_ids_only_and_sends_what_the_file_says(world: World) -> None:
    ids = iter(("ja", "jb"))
    world.routes["POST /v1/jobs"] = lambda request: {"id": next(ids), "warnings": []}
    (world.home / "jobs.yaml").write_text(
        "command: [a]\ngpus: 2\n---\ncommand: b | c\nworkdir: /x\nuser: eve\n"
    )
    assert world.run("submit", "jobs.yaml") == (0, "ja\njb\n", "")
    sent = [request.json for request in world.asked("POST", "/v1/jobs")]
    assert sent == [
        {"command": ["a"], "gpus": 2, "user": "ada", "workdir": str(world.home)},
        {"command": ["/bin/sh", "-c", "b | c"], "user": "eve", "workdir": "/x"},
    ]


def test_submit_reads_standard_input_and_commands(world: World) -> None:
    world.routes["POST /v1/jobs"] = {"id": "ja", "warnings": ["env X_TOKEN looks like a secret"]}
    assert world.run("submit", "-", stdin=b"command: [a]\n") == (
        0,
        "ja\n",
        "muster: warning: env X_TOKEN looks like a secret\n",
    )
    assert world.run("submit", "-g", "1", "--", "python", "-u", "x.py")[0] == 0
    assert world.asked("POST", "/v1/jobs")[-1].json["command"] == ["python", "-u", "x.py"]


def test_nothing_is_submitted_when_one_document_is_bad(world: World) -> None:
    (world.home / "jobs.yaml").write_text("command: [a]\n---\ncommand: [b]\ngpu: 2\n")
    assert world.run("submit", "jobs.yaml") == (
        2,
        "",
        "muster: jobs.yaml:4: unknown key 'gpu' (did you mean 'gpus'?)\n",
    )
    assert world.seen == []


def test_a_job_that_the_gateway_refuses_is_named_by_its_place(world: World) -> None:
    world.routes["POST /v1/jobs"] = Problem(422, "gpus: 99 is out of bounds")
    (world.home / "job.yaml").write_text("\ncommand: [a]\ngpus: 99\n")
    assert world.run("submit", "job.yaml") == (
        1,
        "",
        "muster: job.yaml:2: gpus: 99 is out of bounds\n",
    )


def test_a_dry_run_submits_nothing(world: World) -> None:
    world.routes["POST /v1/jobs"] = {"dry_run": True, "spec": {}, "warnings": []}
    (world.home / "job.yaml").write_text("command: [a]\n")
    assert world.run("submit", "--dry-run", "job.yaml") == (0, "job.yaml:1 is valid\n", "")
    assert world.asked("POST", "/v1/jobs")[0].query == {"dry_run": "true"}


# one job


def test_logs_prints_each_stream_to_its_own(world: World) -> None:
    world.routes["GET " + JOB + "/output"] = lambda request: iter(
        (request.query["stream"].encode() + b"\n",)
    )
    assert world.run("logs", "train") == (0, "stdout\n", "stderr\n")
    assert world.run("logs", "--stderr", "train") == (0, "", "stderr\n")


def test_logs_of_an_earlier_attempt_are_asked_for_by_its_number(world: World) -> None:
    world.routes["GET /v1/jobs/train"] = job(attempt=2)
    world.routes["GET " + JOB + "/output"] = lambda request: iter(
        [request.query["attempt"].encode(), request.query["rank"].encode()]
    )
    assert world.run(
        "logs", "-f", "--attempt", "1", "--rank", "3", "--stream", "stdout", "train"
    ) == (0, "13", "")


def test_logs_that_are_gone_are_one_clear_line(world: World) -> None:
    world.routes["GET /v1/jobs/train"] = job(attempt=2)
    world.routes["GET " + JOB + "/output"] = Problem(
        410, "the stdout of job j, attempt 1, rank 0 is gone"
    )
    assert world.run("logs", "--attempt", "1", "train") == (
        1,
        "",
        "muster: the stdout of job j, attempt 1, rank 0 is gone\n",
    )


def test_logs_follows_to_the_end(world: World) -> None:
    frames = (
        state("running"),
        output("stdout", 0, b"a\n"),
        output("stderr", 0, b"b\n"),
        ended(3, "failed"),
    )
    world.routes["GET " + JOB + "/attach"] = lambda request: iter(frames)
    assert world.run("logs", "-f", "train") == (0, "a\n", "b\n")
    assert world.run("logs", "-f", "--stream", "stdout", "train") == (0, "a\n", "")


def test_cancel_sends_signal_and_grace_and_goes_on_after_a_refusal(world: World) -> None:
    world.routes["POST /v1/jobs/b/cancel"] = Problem(409, "job b has ended already")
    world.routes["POST " + JOB + "/cancel"] = job()
    assert world.run("cancel", "-s", "INT", "--grace", "1m", "b", "jaaaaaaaaaa") == (
        1,
        "",
        "muster: job b has ended already\n",
    )
    assert world.asked("POST", JOB + "/cancel")[0].json == {
        "signal": "INT",
        "grace_s": 60,
        "user": "ada",
    }


def test_kill_kills(world: World) -> None:
    world.routes["POST " + JOB + "/kill"] = job()
    assert world.run("kill", "jaaaaaaaaaa") == (0, "", "")


def test_wait_exits_with_the_jobs_code_when_it_has_ended(world: World) -> None:
    answers = iter((job(), Problem(503, "away"), job(state="failed", exit_code=9)))
    world.routes["GET /v1/jobs/train/wait"] = lambda request: next(answers)
    world.routes["GET " + JOB + "/wait"] = lambda request: next(answers)
    assert world.run("wait", "train") == (9, "", "")


def test_wait_gives_up_at_its_timeout(world: World) -> None:
    world.routes["GET /v1/jobs/train/wait"] = job()
    assert world.run("wait", "--timeout", "0", "train") == (
        124,
        "",
        "muster: job train is still running after 0 s\n",
    )


def test_why_prints_the_answer_the_blockers_and_the_remedy(world: World) -> None:
    blockers = [{"what": "devices in use", "count": 3, "detail": "node-1, node-2, node-3"}]
    answer = {
        "job_id": "j",
        "state": "queued",
        "answer": "not enough is free",
        "blockers": blockers,
        "remedy": "wait",
        "at": 9,
    }
    world.routes["GET /v1/jobs/train/why"] = answer
    assert world.run("why", "train", "--at", "9")[1].splitlines() == [
        "queued: not enough is free",
        "",
        "COUNT  WHAT            DETAIL",
        "    3  devices in use  node-1, node-2, node-3",
        "",
        "Remedy: wait",
    ]
    assert world.seen[-1].query == {"at": "9"}


def test_state_is_now_or_at_a_number(world: World) -> None:
    world.routes["GET /v1/cluster"] = {"seq": 12}
    world.routes["GET /v1/state"] = lambda request: {"seq": int(request.query["at"])}
    assert json.loads(world.run("state")[1]) == {"seq": 12}
    assert json.loads(world.run("state", "--at", "3")[1]) == {"seq": 3}


# the cluster


def test_nodes_gpus_and_top_print_what_there_is(world: World) -> None:
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


def test_node_dead_says_so_and_passes_a_refusal_on(world: World) -> None:
    world.routes["POST /v1/nodes/node-1/dead"] = {"id": "node-1", "state": "unreachable"}
    world.routes["POST /v1/nodes/node-2/dead"] = Problem(409, "node node-2 is healthy")
    assert world.run("node", "dead", "node-1") == (0, "", "")
    assert world.asked("POST", "/v1/nodes/node-1/dead")[0].json == {"user": "ada"}
    assert world.run("node", "dead", "node-2") == (1, "", "muster: node node-2 is healthy\n")


def test_audit_verify_passes_its_verdict_through(world: World) -> None:
    package = world.home / "ours" / "services" / "audit"
    package.mkdir(parents=True)
    for each in (package, package.parent):
        (each / "__init__.py").touch()
    (package / "__main__.py").write_text(
        "import os, sys\nprint(sys.argv[1:], os.environ['MUSTER_STATE'])\nsys.exit(3)\n"
    )
    code, out, _ = world.run("audit", "verify", PYTHONPATH=f"{world.home / 'ours'}:{Path.cwd()}")
    assert (code, out) == (3, f"['verify'] {world.home / 'state'}\n")


def test_audit_never_runs_what_lies_in_the_working_directory(world: World) -> None:
    package = world.home / "services" / "audit"
    package.mkdir(parents=True)
    (package / "__main__.py").write_text("print('not ours')\n")
    assert "not ours" not in world.run("audit", "verify")[1]


# prune


def test_prune_says_what_went_per_node_and_in_all(world: World) -> None:
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


def test_prune_without_a_bound_asks_nothing(world: World) -> None:
    assert world.run("prune")[0] == 2
    assert world.seen == []


def test_logs_say_that_a_job_was_pruned(world: World) -> None:
    world.routes[f"GET {JOB}/output"] = Problem(
        410, "the stdout of job j is gone: it was pruned on node n1"
    )
    assert world.run("logs", "--stream", "stdout", "train") == (
        1,
        "",
        "muster: the stdout of job j is gone: it was pruned on node n1\n",
    )
