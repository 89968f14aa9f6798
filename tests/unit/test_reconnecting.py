"""Which server a client tries next."""

from urllib.parse import urlparse

from nats.aio.client import Server

from libs.common.transport.reconnecting import PAUSE_S, ServerChoice

POOL = [Server(urlparse(f"nats://{name}:4222")) for name in ("a", "b", "c")]


def chosen(choice: ServerChoice) -> str:
    server, pause_s = choice(POOL, {})
    assert server is not None and pause_s == PAUSE_S
    return server.uri.netloc


def test_server_that_was_left_is_the_last_one_to_be_tried_again() -> None:
    choice = ServerChoice()
    choice.note("b:4222")
    first, second, third = chosen(choice), chosen(choice), chosen(choice)
    assert {first, second} == {"a:4222", "c:4222"} and third == "b:4222"
    assert chosen(choice) == first


def test_clients_that_leave_one_server_spread_over_the_others() -> None:
    found = set()
    for _ in range(64):
        choice = ServerChoice()
        choice.note("a:4222")
        found.add(chosen(choice))
    assert found == {"b:4222", "c:4222"}


def test_only_server_is_tried_again_and_again() -> None:
    choice = ServerChoice()
    assert all(choice(POOL[:1], {})[0] == POOL[0] for _ in range(3))
