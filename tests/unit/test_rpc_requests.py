"""The HTTP request that each message stands for."""

from typing import Any

import pytest

from libs.common.errors import Refused
from services.api_gateway.rpc.methods import METHODS, Method
from services.api_gateway.rpc.requests import Asked, asked, client_of, scope_of

BY_NAME = {each.name: each for each in METHODS}


def request(method: str, /, **fields: Any) -> Asked:
    return asked(BY_NAME[method], fields)


@pytest.mark.parametrize(
    ("name", "fields", "path", "query", "body"),
    [
        ("GetJob", {"ref": "a b", "min_seq": 3}, "/v1/jobs/a b", b"min_seq=3", b""),
        (
            "ListJobs",
            {"all": True, "label": ["a", "b=c"]},
            "/v1/jobs",
            b"all=true&label=a&label=b%3Dc",
            b"",
        ),
        ("ListNodes", {}, "/v1/nodes", b"limit=500", b""),
        ("ListNodes", {"limit": 7}, "/v1/nodes", b"limit=7", b""),
        ("SubmitJob", {"command": ["true"]}, "/v1/jobs", b"", b'{"command":["true"]}'),
        ("CheckJob", {"gpus": 2}, "/v1/jobs", b"dry_run=true", b'{"gpus":2}'),
        ("CancelJob", {"ref": "j"}, "/v1/jobs/j/cancel", b"", b""),
        ("CancelJob", {"ref": "j", "grace_s": "5"}, "/v1/jobs/j/cancel", b"", b'{"grace_s":"5"}'),
        (
            "SendInput",
            {"ref": "j", "data": b"hi", "eof": False},
            "/v1/jobs/j/stdin",
            b"eof=false",
            b"hi",
        ),
        ("UndeployModel", {"name": "m", "user": "u"}, "/v1/deployments/m", b"", b'{"user":"u"}'),
        ("ReleaseAllocation", {"ref": "a"}, "/v1/allocations/a", b"", b""),
        ("GetServedModel", {"id": "org/m"}, "/v1/models/org/m", b"", b""),
        (
            "Chat",
            {"model": "m", "more": {"n": 2}},
            "/v1/chat/completions",
            b"",
            b'{"model":"m","n":2}',
        ),
        ("ChatStream", {"model": "m"}, "/v1/chat/completions", b"", b'{"model":"m","stream":true}'),
        ("FollowEvents", {"after": 4}, "/v1/events", b"after=4", b""),
    ],
)
def test_the_request_of_a_message(
    name: str, fields: dict[str, Any], path: str, query: bytes, body: bytes
) -> None:
    found = request(name, **fields)
    assert (found.path, found.query, found.body) == (path, query, body)


@pytest.mark.parametrize("ref", ["", "a/why", "/"])
def test_a_name_that_would_be_another_path_is_refused(ref: str) -> None:
    with pytest.raises(Refused, match=r"ref: .* is not a valid id or name"):
        request("GetJob", ref=ref)


def test_headers_say_what_the_body_is() -> None:
    assert request("SubmitJob", gpus=1).headers == [
        (b"content-type", b"application/json"),
        (b"content-length", b"10"),
    ]
    assert request("SendInput", ref="j", data=b"hi").headers == [
        (b"content-type", b"application/octet-stream"),
        (b"content-length", b"2"),
    ]
    assert request("FollowEvents").headers == [(b"accept", b"text/event-stream")]


def test_only_known_metadata_become_headers() -> None:
    metadata = (
        ("authorization", "Bearer k"),
        ("cookie", "muster_session=x"),
        ("host", "evil"),
        ("idempotency-key", b"once"),
    )
    method: Method = BY_NAME["GetJob"]
    scope = scope_of(method, request("GetJob", ref="ä"), metadata, "ipv4:10.0.0.1:4711")
    assert scope["headers"] == [(b"authorization", b"Bearer k"), (b"idempotency-key", b"once")]
    assert scope["client"] == ("10.0.0.1", 4711)
    assert scope["raw_path"] == b"/v1/jobs/%C3%A4"
    assert scope["detail"] == "/muster.v1.Jobs/GetJob"


@pytest.mark.parametrize(
    ("peer", "client"),
    [
        ("ipv4:127.0.0.1:80", ("127.0.0.1", 80)),
        ("ipv6:[::1]:80", ("::1", 80)),
        ("ipv6:%5B::1%5D:80", ("::1", 80)),
        ("unix:/a", None),
        ("ipv4:127.0.0.1", None),
        ("", None),
    ],
)
def test_the_address_of_a_client(peer: str, client: tuple[str, int] | None) -> None:
    assert client_of(peer) == client
