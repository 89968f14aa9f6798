"""The places for connections: who gives way."""

from services.api_gateway.http.places import Places, places_by_files
from tests.attack.serving_world import with_files


class Client:
    """A connection that notes that it was closed."""

    def __init__(self, places: Places) -> None:
        self.is_closed = False
        places.take(self)

    def give_way(self) -> None:
        self.is_closed = True


def closed(*clients: Client) -> list[bool]:
    return [each.is_closed for each in clients]


def test_the_connection_that_has_waited_longest_gives_way() -> None:
    places = Places(2)
    first, second = Client(places), Client(places)
    assert closed(first, second) == [False, False]
    third = Client(places)
    assert closed(first, second, third) == [True, False, False]
    assert (len(places), places.given_way) == (2, 1)


def test_a_connection_with_a_request_keeps_its_place_until_it_is_answered() -> None:
    places = Places(2)
    busy, idle = Client(places), Client(places)
    places.serve(busy)
    more = Client(places)
    assert closed(busy, idle, more) == [False, True, False]
    places.wait(busy)
    last = Client(places)
    assert closed(busy, more, last) == [False, True, False]
    assert closed(busy, last, Client(places)) == [True, False, False]


def test_a_new_connection_gives_way_if_all_others_are_busy() -> None:
    places = Places(1)
    busy = Client(places)
    places.serve(busy)
    assert closed(Client(places), busy) == [True, False]


def test_a_connection_that_is_gone_is_not_counted_and_waits_for_nothing() -> None:
    places = Places(1)
    gone = Client(places)
    places.leave(gone)
    places.wait(gone)
    places.serve(gone)
    assert len(places) == 0
    assert closed(Client(places), gone) == [False, False]


def test_half_of_the_files_are_for_clients() -> None:
    with with_files(512):
        assert places_by_files().most == 256
