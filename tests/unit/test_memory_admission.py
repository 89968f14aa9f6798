"""The connections of the memory broker are shared among users."""

from dataclasses import dataclass

from services.node_agent.memory.admission import (
    CONNECTIONS_MAX,
    CONNECTIONS_OF_USER_MAX,
    gives_way,
)


@dataclass(eq=False)
class Client:
    """A connection of a user, with or without a token."""

    uid: int
    key: str = ""


def test_users_with_many_connections_do_not_keep_another_user_out() -> None:
    first = [Client(1) for _ in range(CONNECTIONS_OF_USER_MAX)]
    second = [Client(2, "job.1") for _ in range(CONNECTIONS_MAX - CONNECTIONS_OF_USER_MAX)]
    assert gives_way(3, first + second) == (True, first[0])
    del first[0]
    assert gives_way(3, [*first, *second, Client(3)]) == (True, second[0])


def test_a_user_with_too_many_connections_loses_one_of_its_own_that_sent_no_token() -> None:
    mine = [Client(1, "job.1") for _ in range(CONNECTIONS_OF_USER_MAX)]
    assert gives_way(1, [Client(2), *mine]) == (False, None)
    mine[7].key = ""
    assert gives_way(1, [Client(2), *mine]) == (True, mine[7])


def test_a_user_with_as_many_connections_as_any_other_takes_none_of_theirs() -> None:
    known = [Client(uid) for uid in range(4) for _ in range(CONNECTIONS_MAX // 4)]
    assert gives_way(0, known) == (False, None)
    assert gives_way(5, known) == (True, known[0])


def test_a_connection_is_accepted_while_there_is_room() -> None:
    assert gives_way(1, [Client(1), Client(2)]) == (True, None)
