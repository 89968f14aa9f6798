"""`muster log` and the history in `muster describe`, against a fake gateway."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.cli_world import Break, Problem, Request, World, job, line

JOB = "/v1/jobs/jaaaaaaaaaa"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    made.routes["GET " + JOB] = job()
    made.routes["GET /v1/jobs/train"] = job()
    yield made
    made.close()


def fact(seq: int, **changes: object) -> dict[str, object]:
    return {
        "seq": seq,
        "at": "2025-01-01T00:00:00.250Z",
        "writer": "scheduler",
        "kind": "job.queued",
        "summary": "queued",
        **changes,
    }


def test_describe_shows_the_job_its_members_and_its_history(world: World) -> None:
    member = {
        "node_id": "node-1",
        "rank": 0,
        "gpus": [{"uuid": "GPU-1", "share": 100}],
        "state": "started",
        "exit_code": None,
        "signal": 0,
    }
    world.routes["GET /v1/jobs/train"] = job(members=[member], labels={"team": "nlp"})
    world.routes["GET " + JOB + "/history"] = {
        "facts": [fact(3), fact(4, kind="job.placed", summary="placed on node-1")],
        "next": None,
    }
    code, out, _ = world.run("describe", "train")
    assert code == 0
    for words in (
        "jaaaaaaaaaa",
        "python train.py",
        "team=nlp",
        "GPU-1",
        "job.placed",
        "placed on node-1",
    ):
        assert words in out
    assert json.loads(world.run("describe", "train", "-o", "json")[1])["history"][1]["seq"] == 4


def test_facts_repeated_by_a_restarted_agent_are_shown_once(world: World) -> None:
    world.routes["GET /v1/jobs/train"] = job()
    began = {"job_id": "j", "attempt": 1, "node_id": "n"}
    said = [
        ("job.started", began),
        ("job.held", {}),
        ("job.started", began),
        ("job.held", {}),
        ("job.started", {**began, "attempt": 2}),
    ]
    facts = [fact(seq, kind=kind, fact=content) for seq, (kind, content) in enumerate(said)]
    world.routes["GET " + JOB + "/history"] = {"facts": facts, "next": None}
    assert [
        each["seq"]
        for each in json.loads(world.run("describe", "train", "-o", "json")[1])["history"]
    ] == [0, 1, 3, 4]


def test_log_shows_the_last_facts_page_after_page(world: World) -> None:
    pages = {
        "": {"events": [fact(1), fact(2)], "next": 2, "more": True},
        "2": {"events": [fact(3)], "next": 3, "more": False, "seq": 3},
    }
    world.routes["GET /v1/events"] = lambda request: pages[request.query.get("after", "")]
    out = world.run("log", "-n", "2", "--no-headers")[1]
    assert [each.split()[0] for each in out.splitlines()] == ["2", "3"]
    assert world.seen[0].query == {"limit": "1000", "last": "2"}


@pytest.mark.parametrize(
    ("words", "last"),
    [
        ((), "10"),
        (("-n", "3"), "3"),
        (("-n", "3", "--kind", "node.lost"), "3"),
        (("--job", "train"), "10"),
        (("--since", "1h"), None),
    ],
)
def test_log_follows_from_the_last_matches_or_from_a_time(
    world: World, words: tuple[str, ...], last: str | None
) -> None:
    world.routes["GET /v1/events"] = Problem(400, "enough")
    world.run("log", "-f", *words)
    assert world.seen[0].query.get("last") == last


def test_log_follows_through_a_dropped_connection(world: World) -> None:
    asked: list[str | None] = []

    def follow(request: Request) -> object:
        asked.append(request.query.get("after"))
        return _broken() if len(asked) == 1 else Problem(400, "enough")

    def _broken() -> Iterator[bytes]:
        yield line(dict(fact(5))) + b"\n"
        raise Break

    world.routes["GET /v1/events"] = follow
    code, out, _ = world.run("log", "-f", "-o", "json")
    assert (code, json.loads(out)["seq"], asked) == (1, 5, [None, "5"])
