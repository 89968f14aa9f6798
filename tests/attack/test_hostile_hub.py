"""A hub that lies, and what a pull makes of it: a clear error, and nothing outside the copy."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from libs.job.pulling import download
from libs.job.pulling import hub as hub_requests
from libs.job.pulling.copies import Copies
from libs.job.pulling.download import Wanted, pull
from libs.job.pulling.errors import PullError
from tests.integration.hub_world import COMMIT, REPOSITORY, Hub, Node
from tests.integration.hub_world import hub as running_hub

pytestmark = pytest.mark.attack

TOKEN = "hf_very-secret"
SHA1 = "a" * 40


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    async with running_hub() as made:
        made.holds("config.json", b'{"layers": 2}')
        made.holds("model.safetensors", os.urandom(1 << 20), large=True)
        yield made


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def entry(path: Any, **more: Any) -> dict[str, Any]:
    return {"type": "file", "path": path, "size": 3, "oid": SHA1, **more}


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ([entry("../../escape")], "only files and folders below the copy"),
        ([entry("/tmp/escape")], "only files and folders below the copy"),
        ([entry("a/../../escape")], "only files and folders below the copy"),
        ([entry("link", type="symlink")], "only files and folders below the copy"),
        ([entry(".muster.json")], "only files and folders below the copy"),
        ([entry("big", size=1 << 60)], "with the size"),
        ([entry("a", lfs={"oid": "x", "size": 3})], "with the hash"),
        ([entry("a"), entry("a/b")], "both as a file and as a folder"),
        (["text"], "no object"),
    ],
)
async def test_a_list_that_is_not_valid_is_refused_whole(
    hub: Hub, node: Node, entries: list[Any], words: str
) -> None:
    hub.entries = entries
    assert words in await node.pull(hub.url, code=1)
    assert not hub.paths() and not node.is_published()
    assert not list(node.folder.parent.rglob("escape"))


async def test_more_bytes_than_the_node_has_are_refused_before_the_first(
    hub: Hub, node: Node
) -> None:
    hub.entries = [entry("big", lfs={"oid": "b" * 64, "size": 1 << 49})]
    out = await node.pull(hub.url, code=1)
    assert "the disk has" in out and not hub.paths()
    node.bound = 1_000
    hub.entries = None
    out = await node.pull(hub.url, code=1)
    assert "all copies together may have 1000 (MUSTER_PULLED_BYTES)" in out and not hub.paths()


async def test_wrong_content_is_never_published(hub: Hub, node: Node) -> None:
    hub.entries = hub.listed()
    hub.files["model.safetensors"] = os.urandom(1 << 20)
    out = await node.pull(hub.url, code=1)
    assert "does not have the hash" in out and not node.is_published()
    assert "model.safetensors" not in node.files()
    hub.entries, hub.commit = None, "d" * 40
    hub.entries, hub.files["config.json"] = hub.listed(), b'{"layers": 3}'
    assert "config.json does not have the hash" in await node.pull(hub.url, code=1)


async def test_a_body_without_an_end_is_cut_at_its_listed_size(hub: Hub, node: Node) -> None:
    async def endless(request: web.Request) -> web.StreamResponse | None:
        if not request.path.endswith("config.json"):
            return None
        answer = web.StreamResponse()
        answer.enable_chunked_encoding()
        await answer.prepare(request)
        try:
            while True:
                await answer.write(bytes(1 << 16))
        except ConnectionError:
            return answer

    hub.before = endless
    out = await node.pull(hub.url, code=1)
    assert "sends more than the 13 bytes of config.json" in out
    kept = sum(path.stat().st_size for path in node.copies.rglob("*") if path.is_file())
    assert kept < 2 << 20 and not node.is_published()


async def test_json_without_an_end_is_refused(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_requests, "JSON_BYTES_MAX", 1 << 18)

    async def endless(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        try:
            while True:
                await answer.write(b" " * (1 << 16))
        except ConnectionError:
            return answer

    hub.before = endless
    with pytest.raises(PullError, match="more than 262144 bytes of JSON"):
        await _pulled(hub, tmp_path)


async def test_a_web_page_is_named_as_one(hub: Hub, node: Node) -> None:
    async def page(request: web.Request) -> web.StreamResponse | None:
        if "/api/" in request.path:
            return None
        return web.Response(text="<html>sign in</html>", content_type="text/html")

    hub.before = page
    assert "answers a web page for" in await node.pull(hub.url, code=1)

    async def all_pages(request: web.Request) -> web.StreamResponse:
        return web.Response(text="<html>sign in</html>", content_type="text/html")

    hub.before = all_pages
    out = await node.pull(hub.url, code=1)
    assert "answers text/html; charset=utf-8 that is not JSON" in out


async def test_the_token_does_not_follow_a_redirect_to_another_host(hub: Hub, node: Node) -> None:
    async with running_hub() as other:
        other.files, hub.token = hub.files, TOKEN
        away = other.url.replace("127.0.0.1", "localhost")

        async def redirect(request: web.Request) -> web.StreamResponse | None:
            if "/resolve/" not in request.path:
                return None
            assert request.headers["Authorization"] == f"Bearer {TOKEN}"
            raise web.HTTPFound(away + request.path)

        hub.before = redirect
        await node.pull(hub.url, HF_TOKEN=TOKEN)
        assert node.files() == hub.files and len(other.seen) == len(hub.files)
        assert not any("Authorization" in each.headers for each in other.seen)


async def test_the_token_follows_a_redirect_of_the_hub_itself(hub: Hub, node: Node) -> None:
    hub.token = TOKEN

    async def redirect(request: web.Request) -> web.StreamResponse | None:
        if "/old/" in request.path or "/api/" in request.path:
            return None
        raise web.HTTPTemporaryRedirect("/old" + request.path)

    hub.before = redirect
    await node.pull(hub.url, HF_TOKEN=TOKEN)
    assert node.files() == hub.files


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://127.0.0.1/x", "/again"])
async def test_redirects_to_files_and_in_circles_are_refused(
    hub: Hub, node: Node, target: str
) -> None:
    async def redirect(request: web.Request) -> web.StreamResponse:
        return web.Response(status=302, headers={"Location": target})

    hub.before = redirect
    out = await node.pull(hub.url, code=1)
    assert "redirects to" in out or "answers 302" in out


async def test_a_next_page_at_another_host_is_refused(hub: Hub, node: Node) -> None:
    async def page(request: web.Request) -> web.StreamResponse | None:
        if "/tree/" not in request.path:
            return None
        answer = web.json_response([])
        answer.headers["Link"] = '<http://localhost:9/x>; rel="next"'
        return answer

    hub.before = page
    assert "names a next page at another host" in await node.pull(hub.url, code=1)


@pytest.mark.parametrize("target", ["http://127.0.0.1:x/", "http://[", "//127.0.0.1:0/"])
async def test_a_next_page_at_an_impossible_address_is_refused(
    hub: Hub, node: Node, target: str
) -> None:
    async def page(request: web.Request) -> web.StreamResponse | None:
        if "/tree/" not in request.path:
            return None
        answer = web.json_response([])
        answer.headers["Link"] = f'<{target}>; rel="next"'
        return answer

    hub.before = page
    out = await node.pull(hub.url, code=1)
    assert "names a next page at another host" in out and "Traceback" not in out


async def test_pages_of_large_entries_are_bounded_together(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_requests, "LIST_BYTES_MAX", 10_000)

    async def page(request: web.Request) -> web.StreamResponse | None:
        if "/tree/" not in request.path:
            return None
        number = len(hub.seen)
        answer = web.json_response([entry(f"f{number}", more="x" * 4_000)])
        answer.headers["Link"] = f'<{request.url}&cursor={number}>; rel="next"'
        return answer

    hub.before = page
    with pytest.raises(PullError, match="in more than 10000 bytes"):
        await _pulled(hub, tmp_path)


async def test_a_hub_that_begins_each_answer_again_and_breaks_off_is_given_up(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "PAUSE_FIRST_S", 0.01)
    monkeypatch.setattr(download, "TRIES", 3)
    asked = 0

    async def cut(request: web.Request) -> web.StreamResponse | None:
        nonlocal asked
        if not request.path.endswith("model.safetensors"):
            return None
        asked += 1
        answer = web.StreamResponse()
        answer.content_length = 1 << 20
        await answer.prepare(request)
        await answer.write(bytes(1 << 18))
        assert request.transport is not None
        request.transport.abort()
        return answer

    hub.before = cut
    with pytest.raises(PullError, match=r"It was tried 3 times; run the pull again"):
        await _pulled(hub, tmp_path)
    assert asked <= 8


@pytest.mark.parametrize("address", ["http://h:x", "http://[", "http://ann:word@h", "h", ""])
def test_an_address_that_is_not_a_hub_s_is_refused_without_its_password(address: str) -> None:
    with pytest.raises(PullError, match="is not valid: give http") as error:
        hub_requests.Hub(address)
    assert "word" not in str(error.value).partition(" is not valid")[0]


@pytest.mark.parametrize("every_s", [0.05, 60.0])
async def test_a_body_that_trickles_or_stalls_is_given_up(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every_s: float
) -> None:
    monkeypatch.setattr(download, "SLOW_S", 0.3)
    monkeypatch.setattr(download, "TRIES", 2)
    ended = asyncio.Event()

    async def trickle(request: web.Request) -> web.StreamResponse | None:
        if not request.path.endswith("model.safetensors"):
            return None
        start = int(request.headers.get("Range", "bytes=0-")[6:-1])
        answer = web.StreamResponse(status=206 if start else 200)
        answer.headers["Content-Range"] = f"bytes {start}-1/1"
        answer.content_length = (1 << 20) - start
        await answer.prepare(request)
        try:
            while not ended.is_set():
                await answer.write(b"x")
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(ended.wait(), every_s)
        except ConnectionError:
            pass
        return answer

    hub.before = trickle
    try:
        with pytest.raises(PullError, match=r"It was tried 2 times; run the pull again"):
            await _pulled(hub, tmp_path, silence_s=0.5)
    finally:
        ended.set()


async def _pulled(hub: Hub, folder: Path, silence_s: float = 5.0) -> None:
    copies = Copies(folder / "copies", folder / "uses")
    copies.folder.mkdir()
    wanted = Wanted(REPOSITORY, "main", free_bytes=0)
    asked = hub_requests.Hub(hub.url, silence_s=silence_s)
    await asyncio.to_thread(pull, asked, copies, wanted, lambda text: None)


async def test_a_folder_that_a_job_replaced_by_a_link_is_not_followed(
    hub: Hub, node: Node, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(b"untouched")
    await node.pull(hub.url)
    assert node.is_published()
    description = node.place().with_name(f"{COMMIT}.json")
    description.unlink()
    description.symlink_to(outside)
    await node.pull(hub.url)
    assert outside.read_bytes() == b"untouched" and not description.is_symlink()
