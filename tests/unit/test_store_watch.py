"""When a nats-server that lost its store is started again."""

import pytest

from libs.embedded.store_watch import BAD_MAX, StoreWatch

NEEDED = 64


class World:
    def __init__(self) -> None:
        self.free = 100
        self.said: list[str] = []
        self.restarts = 0
        self.watch = StoreWatch(lambda: self.free, NEEDED, self.said.append, self.restart)

    def restart(self) -> None:
        self.restarts += 1

    def answers(self, *good: bool) -> None:
        for each in good:
            self.watch.look(each)


@pytest.fixture
def world() -> World:
    return World()


def test_server_without_its_store_is_restarted_once(world: World) -> None:
    world.answers(True, *[False] * BAD_MAX, *[False] * BAD_MAX)
    assert world.restarts == 1 and "no JetStream" in world.said[0]


def test_server_is_left_alone_while_it_starts(world: World) -> None:
    world.answers(*[False] * (2 * BAD_MAX))
    assert world.restarts == 0


def test_server_is_left_alone_after_a_short_silence(world: World) -> None:
    world.answers(True, *[False] * (BAD_MAX - 1), True, *[False] * (BAD_MAX - 1))
    assert world.restarts == 0


def test_full_disk_is_waited_for(world: World) -> None:
    world.free = NEEDED - 1
    world.answers(True, *[False] * (2 * BAD_MAX))
    assert world.restarts == 0
    world.free = NEEDED
    world.answers(False)
    assert world.restarts == 1
