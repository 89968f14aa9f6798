"""The progress of a pull, from the engine's events."""

import json

import pytest

from services.node_agent.runtimes.pull_progress import LAYERS_MAX, Progress

MIB = 1 << 20


def events(*found: dict[str, object]) -> Progress:
    progress = Progress()
    for each in found:
        progress.note(json.dumps(each).encode())
    return progress


def downloading(layer: str, current: int, total: int) -> dict[str, object]:
    detail = {"current": current * MIB, "total": total * MIB}
    return {"id": layer, "status": "Downloading", "progressDetail": detail}


def test_progress_counts_bytes_and_layers() -> None:
    progress = events(
        {"id": "1.2", "status": "Pulling from team/x"},
        downloading("a", 1, 4),
        downloading("b", 2, 6),
        downloading("a", 3, 4),
    )
    assert progress.words == "5 of 10 MiB, 0 of 2 layers"
    progress.note(b'{"id": "a", "status": "Download complete"}')
    progress.note(b'{"id": "c", "status": "Already exists"}')
    assert progress.words == "6 of 10 MiB, 1 of 2 layers"


def test_an_error_is_kept_and_unknown_lines_are_not_counted() -> None:
    progress = events()
    progress.note(b"<html>")
    progress.note(b"")
    assert progress.wrong == ""
    progress.note(b'{"error": "denied", "errorDetail": {}}')
    progress.note(b'{"error": "later"}')
    assert (progress.wrong, progress.words) == ("denied", "")


@pytest.mark.parametrize(
    ("event", "words"),
    [
        ({"errorDetail": {"message": "denied"}}, "denied"),
        ({"error": "denied", "progressDetail": None}, "denied"),
        ({"errorDetail": {"code": 401}}, "{'code': 401}"),
        ({"errorDetail": "denied"}, "denied"),
        ({"error": None, "errorDetail": {}, "status": "Pulling"}, ""),
    ],
)
def test_a_failure_counts_in_any_form(event: dict[str, object], words: str) -> None:
    assert events(event).wrong == words


def test_an_engine_that_invents_layers_fills_no_memory() -> None:
    progress = events(*(downloading(str(number), 1, 2) for number in range(LAYERS_MAX + 5)))
    assert len(progress.layers) == LAYERS_MAX
