"""A hostile dialler gains nothing at an agent's links, and costs a bounded number of sessions."""

import socket
import time
from pathlib import Path

import pytest

from libs.common.messages.file_messages import OUTSIDE
from libs.common.messages.link_messages import LinkAsk
from libs.common.model import JobId, NodeId
from libs.job.transport.errors import Cause, LinkError
from libs.job.transport.link import Link
from services.node_agent.links import grants, links
from services.node_agent.links.serving import is_below
from tests.contract.transport_world import cause_of
from tests.integration.links_world import OTHER, WITHIN_S, Serving, part, serving_at

pytestmark = pytest.mark.attack


def filled(serving: Serving) -> None:
    (serving.root / "out").mkdir()
    (serving.root / "out/model").write_text("mine")
    (serving.root / "secret").write_text("other")
    (serving.root.parent / "beyond").write_text("not yours")
    (serving.root / "out/link").symlink_to("../../beyond")


def is_served(link: Link) -> bool:
    try:
        return part(link, "out/model").data == b"mine"
    except LinkError:
        return False


def gone(serving: Serving) -> None:
    deadline_s = time.monotonic() + WITHIN_S
    while serving.links.sessions:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_a_token_opens_one_session_and_none_after_it(tmp_path: Path) -> None:
    with serving_at(tmp_path / "root") as serving:
        filled(serving)
        token = serving.token("out")
        with serving.dial(token) as first:
            assert is_served(first)
            second = serving.dial(token)  # the handshake cannot tell it from a reconnection
            assert not is_served(second) and is_served(first)
            second.close()
        gone(serving)
        error = cause_of(lambda: serving.dial(token))
        assert error.cause is Cause.REFUSED and "was used" in error.detail


def test_a_token_of_another_node_or_of_an_earlier_agent_is_refused(tmp_path: Path) -> None:
    with serving_at(tmp_path / "root") as serving:
        filled(serving)
        token = serving.token("out")
        error = cause_of(lambda: serving.dial(token, OTHER))
        assert error.cause is Cause.REFUSED and "for node dialler, not other" in error.detail
    with serving_at(tmp_path / "root") as restarted:
        error = cause_of(lambda: restarted.dial(token))
        assert error.cause is Cause.REFUSED and "before the agent restarted" in error.detail


def test_an_expired_token_is_refused(tmp_path: Path) -> None:
    with serving_at(tmp_path / "root") as serving:
        filled(serving)
        token = serving.token("out")
        serving.now_ns += (grants.VALID_S + 10) * 1_000_000_000
        error = cause_of(lambda: serving.dial(token))
        assert error.cause is Cause.REFUSED and "ended" in error.detail


@pytest.mark.parametrize(
    "path",
    ["", "secret", "../beyond", "out/../secret", "out/../../beyond", "out/link", "/etc/passwd"],
)
def test_a_session_reads_nothing_but_below_its_path(tmp_path: Path, path: str) -> None:
    with serving_at(tmp_path / "root") as serving:
        filled(serving)
        with serving.dial(serving.token("out")) as link:
            found = part(link, path)
            assert found.fault == OUTSIDE and not found.data and not found.names


@pytest.mark.parametrize(
    ("path", "top", "below"),
    [
        (b"out/a", b"out", True),
        (b"out", b"out/", True),
        (b"outer", b"out", False),
        (b"a/..", b"a", False),
        (b"x", b"", True),
        (b"/x", b"", False),
        (b"/w/x", b"/w", True),
    ],
)
def test_a_path_is_below_another_by_whole_names(path: bytes, top: bytes, below: bool) -> None:
    assert is_below(path, top) is below


def test_a_node_cannot_open_more_than_its_sessions(tmp_path: Path) -> None:
    with serving_at(tmp_path / "root") as serving:
        filled(serving)
        opened = [serving.dial(serving.token("out")) for _ in range(links.SESSIONS_PER_NODE)]
        assert all(map(is_served, opened))
        more = serving.dial(serving.token("out"))
        assert not is_served(more) and serving.links.sessions == links.SESSIONS_PER_NODE
        for link in (*opened, more):
            link.close()
        gone(serving)
        with serving.dial(serving.token("out")) as link:
            assert is_served(link)


def test_slow_handshakes_hold_up_no_session_and_end(tmp_path: Path) -> None:
    with serving_at(tmp_path / "root") as serving:
        filled(serving)
        host, port = serving.links.address.rsplit(":", 1)
        with serving.dial(serving.token("out")) as link:
            slow = [socket.create_connection((host, int(port))) for _ in range(40)]
            for stream in slow:
                stream.send(b"\xff")
            assert is_served(link)
            later = serving.dial_within(serving.token("out"), 20.0)
            assert is_served(later)
            later.close()
            for stream in slow:
                stream.close()


def test_garbage_ends_the_session(tmp_path: Path) -> None:
    with serving_at(tmp_path / "root") as serving:
        filled(serving)
        with serving.dial(serving.token("out")) as link:
            link.send(b"\xff" * 100)
            gone(serving)


def test_the_number_of_outstanding_tokens_is_bounded_for_each_tenant(tmp_path: Path) -> None:
    with serving_at(tmp_path / "root") as serving:
        filled(serving)
        for _ in range(grants.GRANTS_PER_TENANT):
            serving.token("out")
        refused = serving.links.grant(serving.ask("out"))
        assert not refused.token and "Wait until copies end" in refused.text
        serving.now_ns += (grants.VALID_S + 1) * 1_000_000_000
        assert serving.token("out")


@pytest.mark.parametrize(
    "ask",
    [
        LinkAsk(NodeId("a/b"), "red", JobId("j1"), 1, b"out"),
        LinkAsk(NodeId("dialler"), "red", JobId("j1"), 1, b"out", "write"),
        LinkAsk(NodeId("dialler"), "red", JobId("j1"), 1, b"./" * 600 + b"out"),
    ],
)
def test_no_token_is_signed_for_wrong_wishes(tmp_path: Path, ask: LinkAsk) -> None:
    with serving_at(tmp_path / "root") as serving:
        filled(serving)
        assert not serving.links.grant(ask).token
