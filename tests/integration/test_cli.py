"""The command as a child process against a fake gateway: lists, errors, JSON, pipes."""

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


# ps


def test_ps_shows_my_active_jobs_in_aligned_columns(world: World) -> None:
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


def test_ps_sends_its_flags_as_filters(world: World) -> None:
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


def test_ps_without_own_jobs_points_to_those_of_others(world: World) -> None:
    world.routes["GET /v1/jobs"] = lambda request: {
        "jobs": [] if "user" in request.query else [job("ja"), job("jb")],
        "next": None,
    }
    line = "muster: you have no active jobs; 2 of other users: list them with muster ps --all\n"
    assert world.run("ps")[2] == line
    assert world.run("ps", "-o", "json") == (0, "[]\n", "")
    assert world.run("ps", "-s", "failed")[2] == ""


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


# errors


def test_an_unreachable_gateway_is_one_line_with_address_and_advice(world: World) -> None:
    world.profile({"gateway": "http://127.0.0.1:1"})
    code, out, err = world.run("ps")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith(
        "muster: no gateway answers at http://127.0.0.1:1 (from "
    ) and err.endswith("check the address and that its cluster runs\n")


def test_a_stopped_cluster_of_this_machine_is_started_with_muster_up(world: World) -> None:
    world.profile({"gateway": "http://127.0.0.1:1", "state": str(world.home / "state")})
    code, out, err = world.run("ps")
    assert (code, out) == (1, "")
    assert err.endswith("start a cluster here with: muster up\n")


def test_a_dead_address_in_muster_url_does_not_suggest_muster_up(world: World) -> None:
    code, _, err = world.run("ps", MUSTER_URL="http://127.0.0.1:1")
    assert code == 1
    assert "unset MUSTER_URL" in err
    assert "muster up" not in err


def test_the_environment_overrides_the_profile(world: World) -> None:
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
def test_a_refusal_prints_its_detail_in_one_line(world: World, problem: Problem, said: str) -> None:
    world.routes["GET /v1/jobs/x"] = problem
    assert world.run("describe", "x") == (1, "", f"muster: {said}\n")


def test_an_answer_of_another_server_is_reported(world: World) -> None:
    world.routes["GET /v1/nodes"] = lambda request: iter((b"<html>",))
    code, _, err = world.run("nodes")
    assert code == 1 and "check that it is a Muster gateway" in err and err.count("\n") == 1


def test_a_truncated_answer_is_one_line(world: World) -> None:
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
        ("run --nmae x true", "muster: no such option '--nmae' (did you mean '--name'?)"),
        ("usage --usr ada", "muster: no such option '--usr' (did you mean '--user'?)"),
        ("price --user ada", "muster: no such option '--user'; see muster price --help"),
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


def test_a_closed_pipe_on_stdout_is_not_an_error(world: World) -> None:
    world.routes["GET /v1/jobs"] = {"jobs": [job(f"j{i:010}") for i in range(2_000)], "next": None}
    command = (
        f'{shlex.quote(sys.executable)} -c "from libs.cli.main import main; main()" ps -n 2000 '
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
