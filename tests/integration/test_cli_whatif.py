"""`muster whatif` over a gateway that notes what it is sent."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.cli_world import World

WAITS = {
    "would_start": False,
    "placement": [],
    "answer": "it would wait",
    "blockers": [{"count": 1, "what": "devices in use", "detail": "a"}],
}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    made.routes["POST /v1/whatif"] = {**WAITS, "remedy": "add 1 node", "at": 7}
    yield made
    made.close()


def test_a_job_is_asked_about_and_not_submitted(world: World) -> None:
    code, out, _ = world.run("whatif", "--gpus", "8", "--nodes", "2")
    assert code == 1 and out.startswith("it would wait\n") and "Remedy: add 1 node" in out
    (sent,) = [request.json for request in world.asked("POST", "/v1/whatif")]
    assert (sent["gpus"], sent["nodes"], sent["command"], "add_nodes" in sent) == (
        8,
        2,
        ["true"],
        False,
    )
    assert world.asked("POST", "/v1/jobs") == []


def test_nodes_that_are_not_bought_go_along_and_the_exit_code_says_yes(world: World) -> None:
    world.routes["POST /v1/whatif"] = {
        **WAITS,
        "would_start": True,
        "answer": "it would start now, on new_1",
        "blockers": [],
        "remedy": None,
    }
    line = (
        "whatif",
        "--gpus",
        "8",
        "--add-nodes",
        "2",
        "--add-gpus",
        "8",
        "--add-model",
        "H100",
        "--",
        "python",
        "x.py",
    )
    assert world.run(*line) == (0, "it would start now, on new_1\n", "")
    (sent,) = [request.json for request in world.asked("POST", "/v1/whatif")]
    assert (sent["add_nodes"], sent["command"]) == (
        {"nodes": 2, "gpus": 8, "model": "H100"},
        ["python", "x.py"],
    )


def test_what_new_nodes_are_is_said_only_with_how_many(world: World) -> None:
    code, _, err = world.run("whatif", "--add-gpus", "8")
    assert (code, world.seen) == (2, []) and "--add-nodes" in err
