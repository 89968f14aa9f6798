"""Copies from node to node over real sockets: whole under their name, or not there at all."""

import os
import resource
from pathlib import Path

import msgspec
import pytest

from libs.common.messages.copy_messages import COPIED, FAILED, UNKNOWN, CopyPoll, CopyState
from libs.common.messages.file_messages import MISSING, OUTSIDE, PART_BYTES, PRUNED, UNWRITABLE
from libs.common.subjects import ask_node
from libs.common.transport.bus_memory import MemoryBus
from tests.integration.copies_world import WITHIN_S, fetching_at

# A user that is neither root nor one of the system's.
OTHER_USER = 54_321


def test_a_file_is_copied_with_its_mode_and_replaces_a_file(tmp_path: Path) -> None:
    data = os.urandom(9 * PART_BYTES + 7)
    with fetching_at(tmp_path) as fetching:
        source = fetching.serving.root / "model"
        source.write_bytes(data)
        source.chmod(0o4777)
        (fetching.root / "in").mkdir()
        (fetching.root / "named").write_text("old")
        for path, placed in (("", "model"), ("in", "in/model"), ("in/", "in/model"), ("named", "")):
            done = fetching.copied("model", path)
            assert (done.state, done.text) == (COPIED, "")
            assert (done.files, done.size_bytes) == (1, len(data))
            assert os.fsdecode(done.placed) == (placed or path)
            assert (fetching.root / (placed or path)).read_bytes() == data
            assert (fetching.root / (placed or path)).stat().st_mode & 0o7777 == 0o755
        assert fetching.names() == ["in", "in/model", "model", "named"]


def test_a_folder_is_copied_without_links_that_lead_out_of_it(tmp_path: Path) -> None:
    with fetching_at(tmp_path) as fetching:
        out = fetching.serving.root / "out"
        (out / "deep/er").mkdir(parents=True)
        (out / "deep/er/w").write_bytes(os.urandom(PART_BYTES + 1))
        (out / "empty").mkdir()
        (out / "nothing").touch()
        (out / "latest").symlink_to("deep/er")
        (out / "deep/up").symlink_to("../nothing")
        (out / "away").symlink_to("/etc/passwd")
        (out / "deep/beside").symlink_to("../../out/nothing")
        done = fetching.copied("out", "copy")
        assert (done.state, done.files, done.folders, done.skipped) == (COPIED, 2, 4, 2)
        assert fetching.names() == [
            "copy",
            *("copy/deep", "copy/deep/er", "copy/deep/er/w", "copy/deep/up"),
            *("copy/empty", "copy/latest", "copy/nothing"),
        ]
        assert (fetching.root / "copy/latest/w").read_bytes() == (out / "deep/er/w").read_bytes()
        assert fetching.copied("out", "copy").placed == b"copy/out"
        again = fetching.copied("out", "copy")
        assert (again.state, again.fault) == (FAILED, UNWRITABLE)
        assert "exists already" in again.text
        assert fetching.copied("", "whole").state == COPIED
        assert (fetching.root / "whole/out/deep/er/w").exists()


def test_a_folder_with_more_names_than_one_page_is_copied_whole(tmp_path: Path) -> None:
    with fetching_at(tmp_path) as fetching:
        (fetching.serving.root / "many").mkdir()
        for number in range(1_200):
            (fetching.serving.root / f"many/{number}").symlink_to("t" * 500)
        done = fetching.copied("many", "copy")
        assert (done.state, done.text) == (COPIED, "")
        assert len(os.listdir(fetching.root / "copy")) == 1_200


def test_a_copy_goes_on_after_a_broken_connection(tmp_path: Path) -> None:
    data = os.urandom(12 * PART_BYTES)
    with fetching_at(tmp_path, bytes_per_s=4 * PART_BYTES) as fetching:
        (fetching.serving.root / "model").write_bytes(data)
        start = fetching.request("model")
        fetching.copies.begin(start)
        fetching.until(lambda: fetching.copies.look(start.copy).size_bytes > 2 * PART_BYTES)
        for link in list(fetching.serving.links._listener._links.values()):
            link.progress.suspend()
        done = fetching.ended(start)
        assert (done.state, done.text) == (COPIED, "")
        assert (fetching.root / "model").read_bytes() == data


def test_a_target_that_is_not_here_or_not_the_tenant_s_is_refused(tmp_path: Path) -> None:
    with fetching_at(tmp_path) as fetching:
        (fetching.serving.root / "x").touch()
        for path, job, fault in (
            ("", "j9", PRUNED),
            ("", "j3", OUTSIDE),
            ("../beyond", "j2", OUTSIDE),
            ("gone/x", "j2", MISSING),
            ("gone/", "j2", UNWRITABLE),
        ):
            done = fetching.copied("x", path, job)
            assert (done.state, done.fault) == (FAILED, fault), done.text
        assert fetching.names() == [] and not (tmp_path / "beyond").exists()


def test_a_full_disk_leaves_nothing_behind_and_is_named(tmp_path: Path) -> None:
    with fetching_at(tmp_path) as fetching:
        (fetching.serving.root / "out").mkdir()
        (fetching.serving.root / "out/a").write_text("first")
        with (fetching.serving.root / "out/b").open("wb") as file:
            file.truncate(1 << 43)  # sparse: more than this disk has
        done = fetching.copied("out")
        assert (done.state, done.fault) == (FAILED, UNWRITABLE)
        assert "node dialler has" in done.text and "'b'" in done.text
        assert fetching.names() == []


def test_a_write_that_fails_midway_leaves_nothing_behind(tmp_path: Path) -> None:
    with fetching_at(tmp_path) as fetching:
        (fetching.serving.root / "out").mkdir()
        (fetching.serving.root / "out/a").write_text("first")
        (fetching.serving.root / "out/b").write_bytes(bytes(3 * PART_BYTES))
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2 * PART_BYTES + 1, hard))
        try:
            done = fetching.copied("out")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert (done.state, done.fault) == (FAILED, UNWRITABLE)
        assert done.text == "node dialler cannot write 'b': File too large"
        assert fetching.names() == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_a_copy_is_written_as_the_user_of_its_job(tmp_path: Path) -> None:
    for folder in (tmp_path, *tmp_path.parents[:-2]):
        folder.chmod(folder.stat().st_mode | 0o011)
    with fetching_at(tmp_path) as fetching:
        (fetching.serving.root / "out/deep").mkdir(parents=True)
        (fetching.serving.root / "out/deep/a").write_bytes(bytes(2 * PART_BYTES))
        (fetching.serving.root / "out/b").symlink_to("deep/a")
        (fetching.root / "closed").mkdir(0o700)
        (fetching.root / "own").mkdir()
        os.chown(fetching.root / "own", OTHER_USER, OTHER_USER)
        fetching.root.chmod(0o755)
        fetching.ids = [OTHER_USER, OTHER_USER]
        assert fetching.copied("out", "own").state == COPIED
        made = [fetching.root / f"own/out{name}" for name in ("", "/deep", "/deep/a", "/b")]
        assert {path.lstat().st_uid for path in made} == {OTHER_USER}
        for path in ("closed", ""):
            done = fetching.copied("out", path)
            assert (done.state, done.fault) == (FAILED, UNWRITABLE)
            assert "Permission denied" in done.text
        assert os.listdir(fetching.root / "closed") == []
        assert os.geteuid() == 0


async def test_a_gateway_starts_a_copy_and_looks_at_it_over_the_bus(tmp_path: Path) -> None:
    bus = MemoryBus()
    with fetching_at(tmp_path) as fetching:
        (fetching.serving.root / "x").write_text("hello")
        await fetching.copies.listen(bus)

        async def said(data: bytes) -> CopyState:
            reply = await bus.request(ask_node("dialler", "copy"), data, WITHIN_S)
            return msgspec.msgpack.decode(reply, type=CopyState)

        start = fetching.request("x")
        assert (await said(msgspec.msgpack.encode(start))).copy == start.copy
        assert (await said(msgspec.msgpack.encode(start))).copy == start.copy
        fetching.ended(start)
        found = await said(msgspec.msgpack.encode(CopyPoll(start.copy)))
        assert (found.state, found.size_bytes, found.node_id) == (COPIED, 5, "server")
        assert (await said(msgspec.msgpack.encode(CopyPoll("none")))).fault == UNKNOWN
        assert "not a CopyRequest" in (await said(b"\xff")).text
