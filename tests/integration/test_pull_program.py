"""The packed program of a pull against a real hub."""

import asyncio
import os
import signal
import time
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from services.node_agent.pulled.program import packed
from tests.integration.hub_world import COMMIT, PATIENCE_S, REPOSITORY, Hub, Node
from tests.integration.hub_world import hub as running_hub

MIB = 1 << 20


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    async with running_hub() as made:
        made.holds("config.json", b'{"layers": 2}')
        made.holds("empty.txt", b"")
        made.holds("sub/tokenizer.json", b"{}")
        made.holds("model.safetensors", os.urandom(3 * MIB), large=True)
        yield made


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


async def until(condition: object) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


async def test_a_pull_brings_all_files_and_publishes_the_copy(hub: Hub, node: Node) -> None:
    hub.page = 2
    out = await node.pull(hub.url)
    assert f"pulled {REPOSITORY}@{COMMIT}: 4 files, 3.0 MiB" in out
    assert node.files() == hub.files and node.is_published()
    assert not node.place().with_name(f"{COMMIT}.parts").exists()


async def test_a_second_pull_fetches_nothing(hub: Hub, node: Node) -> None:
    await node.pull(hub.url)
    asked = len(hub.paths())
    assert "is there already: 4 files" in await node.pull(hub.url)
    assert len(hub.paths()) == asked
    hub.before = _never
    assert "is there already" in await node.pull(hub.url, REPOSITORY, "--revision", COMMIT)


async def _never(request: web.Request) -> web.StreamResponse:
    raise AssertionError("the hub is asked")


async def test_include_pulls_some_files_and_a_later_pull_adds_the_others(
    hub: Hub, node: Node
) -> None:
    await node.pull(hub.url, REPOSITORY, "--include", "*.json")
    assert sorted(node.files()) == ["config.json", "sub/tokenizer.json"]
    await node.pull(hub.url)
    assert node.files() == hub.files and hub.paths().count(f"{COMMIT}/config.json") == 1
    out = await node.pull(hub.url, REPOSITORY, "--include", "*.gguf", code=1)
    assert "matches no file" in out and "config.json" in out


async def test_a_pull_that_was_killed_continues_where_it_ended(hub: Hub, node: Node) -> None:
    data, halfway = hub.files["model.safetensors"], asyncio.Event()

    async def half(request: web.Request) -> web.StreamResponse | None:
        if not request.path.endswith("model.safetensors") or "Range" in request.headers:
            return None
        answer = web.StreamResponse(headers={"Content-Length": str(len(data))})
        await answer.prepare(request)
        await answer.write(data[: 2 * MIB])
        await halfway.wait()
        return answer

    hub.before = half
    process = await node.start(hub.url, REPOSITORY)
    parts = node.place().with_name(f"{COMMIT}.parts")
    await until(lambda: sum(path.stat().st_size for path in parts.glob("*")) >= 2 * MIB)
    process.send_signal(signal.SIGKILL)
    await process.wait()
    halfway.set()
    assert not node.is_published()
    hub.sent_bytes = 0
    await node.pull(hub.url)
    assert node.files() == hub.files and hub.sent_bytes < 2 * MIB
    ranges = [each.headers.get("Range") for each in hub.seen if each.path.endswith("safetensors")]
    assert ranges == [None, f"bytes={2 * MIB}-"]


async def test_a_connection_that_breaks_is_continued_by_the_same_pull(hub: Hub, node: Node) -> None:
    data, cuts = hub.files["model.safetensors"], [MIB, MIB]

    async def cut(request: web.Request) -> web.StreamResponse | None:
        if not request.path.endswith("model.safetensors") or not cuts:
            return None
        start = int(request.headers.get("Range", "bytes=0-")[6:-1])
        answer = web.StreamResponse(status=206 if start else 200)
        answer.content_length = len(data) - start
        answer.headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        await answer.prepare(request)
        await answer.write(data[start : start + cuts.pop()])
        assert request.transport is not None
        request.transport.close()
        return answer

    hub.before = cut
    await node.pull(hub.url)
    assert node.files() == hub.files
    ranges = [each.headers.get("Range") for each in hub.seen if each.path.endswith("safetensors")]
    assert ranges == [None, f"bytes={MIB}-", f"bytes={2 * MIB}-"]


async def test_a_hub_that_ignores_ranges_sends_the_file_from_its_beginning(
    hub: Hub, node: Node
) -> None:
    data, cuts = hub.files["model.safetensors"], [MIB]

    async def whole(request: web.Request) -> web.StreamResponse | None:
        if not request.path.endswith("model.safetensors"):
            return None
        answer = web.StreamResponse(headers={"Content-Length": str(len(data))})
        await answer.prepare(request)
        await answer.write(data[: cuts[0] if cuts else None])
        if cuts and request.transport is not None:
            cuts.clear()
            request.transport.close()
        return answer

    hub.before = whole
    await node.pull(hub.url)
    assert node.files() == hub.files


async def test_two_pulls_of_one_repository_fetch_each_file_once(hub: Hub, node: Node) -> None:
    outs = await asyncio.gather(node.pull(hub.url), node.pull(hub.url))
    assert node.files() == hub.files
    assert sorted(hub.paths()) == sorted(
        f"{COMMIT}/{path}" for path in hub.files if hub.files[path]
    )
    assert sorted("is there already" in out for out in outs) == [False, True]


async def test_a_moved_branch_is_a_second_copy_and_the_name_moves_with_it(
    hub: Hub, node: Node
) -> None:
    await node.pull(hub.url)
    hub.commit, hub.files["config.json"] = "d" * 40, b"{}"
    await node.pull(hub.url)
    assert node.files("d" * 40)["config.json"] == b"{}" and node.is_published()
    described = [
        node.place(commit).with_name(f"{commit}.json").read_text() for commit in (COMMIT, "d" * 40)
    ]
    assert ['"main"' in text for text in described] == [False, True]


async def test_temporary_errors_are_tried_again(hub: Hub, node: Node) -> None:
    failures = [503, 429, 502]

    async def fail(request: web.Request) -> web.StreamResponse | None:
        return web.Response(status=failures.pop()) if failures else None

    hub.before = fail
    assert "trying again" in await node.pull(hub.url)
    assert node.files() == hub.files


async def test_a_private_repository_needs_a_token_which_is_never_shown(
    hub: Hub, node: Node, tmp_path: Path
) -> None:
    hub.token = "hf_very-secret"
    out = await node.pull(hub.url, code=1)
    assert "no token was given" in out and "muster secret set" in out
    out = await node.pull(hub.url, HF_TOKEN="hf_wrong", code=1)
    assert "this token may not read it" in out and "hf_wrong" not in out
    out = await node.pull(hub.url, HF_TOKEN=hub.token)
    assert node.files() == hub.files and hub.token not in out
    assert hub.token.encode() not in _everything(tmp_path)


def _everything(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


async def test_names_that_are_none_and_a_missing_revision_are_refused(hub: Hub, node: Node) -> None:
    out = await node.pull(hub.url, "../../etc", code=1)
    assert "is not the name of a repository" in out
    out = await node.pull(hub.url, REPOSITORY, "--revision", "nothing", code=1)
    assert "answers 404" in out and "check the repository, the revision" in out
    assert "is not valid: give http" in await node.pull("ftp://x", code=1)


async def test_a_copy_from_another_node_is_verified_and_published(hub: Hub, tmp_path: Path) -> None:
    nodes = []
    for name in "ab":
        (tmp_path / name).mkdir()
        nodes.append(Node(tmp_path / name))
    source, target = nodes
    await source.pull(hub.url)
    assert "is there already" in await source.pull("http://127.0.0.1:9", REPOSITORY, "--held")
    out = await target.pull(hub.url, REPOSITORY, "--held", code=1)
    assert "this node has no copy" in out
    size = str(sum(map(len, hub.files.values())))
    words = (REPOSITORY, "--revision", f"{COMMIT}/main", "--from-peer", size)
    process = await target.start(hub.url, *words)
    await until(lambda: (target.copies / "Team--Tiny-1B/lock").exists())
    _land(source, target)
    out, _ = await process.communicate()
    assert process.returncode == 0 and b"from another node: 4 files" in out, out
    assert target.files() == hub.files and target.is_published()
    assert not list(target.copies.glob(".from-peer-*"))


async def test_a_wrong_file_from_another_node_is_refused(hub: Hub, tmp_path: Path) -> None:
    nodes = []
    for name in "ab":
        (tmp_path / name).mkdir()
        nodes.append(Node(tmp_path / name))
    source, target = nodes
    await source.pull(hub.url)
    (source.place() / "config.json").write_bytes(b'{"layers": 3}')
    words = (REPOSITORY, "--revision", COMMIT, "--from-peer", str(4 * MIB))
    process = await target.start(hub.url, *words)
    await until(lambda: (target.copies / "Team--Tiny-1B/lock").exists())
    _land(source, target)
    out, _ = await process.communicate()
    assert process.returncode == 1 and b"does not have the recorded hash" in out
    assert not target.is_published() and not list(target.copies.glob(".from-peer-*"))


async def test_a_copy_that_came_although_the_node_has_it_is_removed(
    hub: Hub, tmp_path: Path
) -> None:
    nodes = []
    for name in "ab":
        (tmp_path / name).mkdir()
        nodes.append(Node(tmp_path / name))
    source, target = nodes
    await source.pull(hub.url)
    await target.pull(hub.url)
    _land(source, target)
    words = (REPOSITORY, "--revision", COMMIT, "--from-peer", str(4 * MIB))
    assert "is there already" in await target.pull(hub.url, *words)
    assert not list(target.copies.glob(".from-peer-*"))


async def test_first_pulls_that_begin_at_once_share_one_whole_program(tmp_path: Path) -> None:
    for number in range(20):
        folder = tmp_path / str(number)
        folder.mkdir()
        made = await asyncio.gather(*(asyncio.to_thread(packed, folder) for _ in range(8)))
        assert len({*made}) == 1 and zipfile.ZipFile(made[0]).testzip() is None
        assert list(folder.iterdir()) == [made[0]]


def _land(source: Node, target: Node) -> None:
    """Copy the folder as an agent does: it appears under its name when it is complete."""
    draft = target.copies / ".muster-copy-x"
    draft.mkdir()
    for path in sorted(source.place().rglob("*")):
        at = draft / path.relative_to(source.place())
        if path.is_dir():
            at.mkdir()
        else:
            at.parent.mkdir(exist_ok=True)
            at.write_bytes(path.read_bytes())
    draft.rename(target.copies / ".from-peer-job-1.1")
