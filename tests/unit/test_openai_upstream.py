"""Which failures leave a request unseen by every replica, and what a replica is told."""

import aiohttp
import pytest
from aiohttp.client_reqrep import ConnectionKey

from services.api_gateway.openai.upstream import (
    NoKey,
    describe,
    headers_for,
    never_sent,
    unprocessed,
)

KEY = ConnectionKey("h", 1, False, True, None, None, None, None)


def caused(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


UNWRITTEN = aiohttp.ClientConnectionResetError("Cannot write to closing transport")
WRAPPED = caused(aiohttp.ClientOSError(None, "Can not write request body"), UNWRITTEN)
REFUSED = aiohttp.ClientConnectorError(KEY, OSError(111, "refused"))
UNKNOWN = (
    aiohttp.ServerDisconnectedError(),
    aiohttp.ClientOSError(104, "reset"),
    aiohttp.ClientPayloadError("cut"),
    ConnectionResetError(),
)


@pytest.mark.parametrize("error", [UNWRITTEN, WRAPPED])
def test_a_connection_closed_before_it_was_written_to_cannot_have_carried_the_request(
    error: BaseException,
) -> None:
    assert never_sent(error) and unprocessed(error)


def test_a_refused_connection_carried_nothing_and_its_replica_is_not_asked_again() -> None:
    assert unprocessed(REFUSED) and not never_sent(REFUSED)


def test_a_replica_without_a_key_got_nothing_and_is_not_asked_again() -> None:
    error = NoKey("the replica has no key")
    assert unprocessed(error) and not never_sent(error)
    assert "no key" in describe(error)


@pytest.mark.parametrize("error", UNKNOWN)
def test_a_connection_that_died_later_may_have_carried_it(error: BaseException) -> None:
    assert not never_sent(error) and not unprocessed(error)


def test_a_replica_is_told_the_request_s_id_and_trace_and_no_secret() -> None:
    given = {
        b"authorization": b"Bearer k",
        b"cookie": b"a",
        b"tracestate": b"x=1",
        b"openai-organization": b"o",
    }
    assert dict(headers_for("r1", given)) == {
        "content-type": "application/json",
        "x-request-id": "r1",
        "tracestate": "x=1",
    }
