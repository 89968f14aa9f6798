"""When a nats-server that lost its store is started again."""

import json

import pytest

from libs.embedded.store_watch import (
    ANSWER_S,
    EVERY_S,
    LOST_MAX,
    SILENT_S,
    Health,
    StoreWatch,
    health,
)

# Looks at a server that refuses connections until it counts as hung: each takes no time.
SILENT_MAX = int(SILENT_S / EVERY_S)
GOOD, WAITS, LOST, SILENT = Health.GOOD, Health.WAITS, Health.LOST, Health.SILENT


class World:
    def __init__(self) -> None:
        self.said: list[str] = []
        self.restarts = 0
        self.now_s = 100.0
        self.watch = StoreWatch(
            say=self.said.append,
            restart=self.restart,
            now_s=lambda: self.now_s,
        )

    def restart(self) -> None:
        self.restarts += 1

    def answers(self, *found: Health, every_s: float = EVERY_S) -> None:
        for each in found:
            self.now_s += every_s
            self.watch.look(each)


@pytest.fixture
def world() -> World:
    return World()


def test_server_without_its_store_is_restarted_once(world: World) -> None:
    world.answers(GOOD, *[LOST] * LOST_MAX, *[SILENT] * SILENT_MAX)
    assert world.restarts == 1 and "stores nothing" in world.said[0]


def test_server_that_never_stored_anything_is_restarted_too(world: World) -> None:
    world.answers(*[LOST] * LOST_MAX)
    assert world.restarts == 1


def test_server_that_is_silent_while_it_starts_is_left_alone(world: World) -> None:
    world.answers(*[SILENT] * (2 * SILENT_MAX))
    assert world.restarts == 0


def test_server_that_answered_and_then_hangs_is_restarted(world: World) -> None:
    world.answers(GOOD, *[SILENT] * SILENT_MAX)
    assert world.restarts == 1 and "has not answered" in world.said[0]


def test_frozen_server_is_restarted_after_a_time_and_not_after_a_number_of_looks(
    world: World,
) -> None:
    world.answers(GOOD)
    world.answers(*[SILENT] * 4, every_s=ANSWER_S + EVERY_S)
    assert world.restarts == 0
    world.answers(SILENT, every_s=ANSWER_S + EVERY_S)
    assert world.restarts == 1 and "has not answered for 15 s" in world.said[0]


def test_server_is_left_alone_after_a_short_silence(world: World) -> None:
    world.answers(GOOD, *[SILENT] * (SILENT_MAX - 1), GOOD, *[SILENT] * (SILENT_MAX - 1))
    assert world.restarts == 0


def test_server_that_waits_for_the_others_is_left_alone(world: World) -> None:
    world.answers(GOOD, *[WAITS] * (10 * SILENT_MAX))
    assert world.restarts == 0


@pytest.mark.parametrize(
    ("reason", "found"),
    [
        ("JetStream stream 'CORE > FACTS' write error: no space left on device", LOST),
        ("JetStream meta layer write error: no space left on device", LOST),
        ("JetStream not enabled", LOST),
        ("JetStream has not established contact with a meta leader", WAITS),
        ("JetStream is still recovering meta layer", WAITS),
    ],
)
def test_reason_of_a_server_tells_whether_only_a_restart_helps(reason: str, found: Health) -> None:
    body = json.dumps({"status": "unavailable", "errors": [{"type": "STREAM", "error": reason}]})
    assert health(503, body.encode()) is found


def test_answer_without_a_fault_is_good_and_one_that_cannot_be_read_waits() -> None:
    assert health(200, b"") is GOOD
    assert health(500, b"<html>") is WAITS
