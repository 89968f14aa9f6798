"""A job does what it likes with its door: nothing of it stops the agent or leaves its folder."""

import asyncio
import os
import socket
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from libs.common.model import JobSpec
from libs.common.safety.folder_walk import remove_tree
from services.node_agent.jobs.environment import environment
from services.node_agent.tracing import datagrams, files, removals
from services.node_agent.tracing.doors import DATAGRAMS_MAX, Door, Folders, was_shared
from services.node_agent.tracing.tracing import DAEMON, OUTPUT, OWN, SOCKETS, Tracing, trace_folder
from tests.integration.peer_uploads_world import start_order
from tests.integration.test_pulled_agent import launch_of


@pytest.fixture
async def door(tmp_path: Path) -> AsyncIterator[Door]:
    found = Door(f"/tmp/muster-door-{os.getpid()}", "j.1", "red", 0, ())
    found.open()
    yield found
    found.close()
    assert remove_tree(found.folder)


def client(door: Door, name: str = "dynoconfigclient1") -> socket.socket:
    found = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    found.bind(f"{door.folder}/{name}")
    found.setblocking(False)
    return found


def send(sender: socket.socket, door: Door, data: bytes) -> None:
    sender.sendto(data, f"{door.folder}/{datagrams.SOCKET}")


async def answered(sender: socket.socket) -> bytes:
    async with asyncio.timeout(5):
        return await asyncio.get_running_loop().sock_recv(sender, 4_096)


async def test_garbage_is_ignored_and_the_next_question_is_answered(door: Door) -> None:
    with client(door) as sender:
        for data in (b"x", b"\0" * 200, datagrams.HEADER.pack(1 << 60, b"req"), os.urandom(900)):
            send(sender, door, data)
        send(sender, door, datagrams.request((os.getpid(),)))
        assert datagrams.text_of(await answered(sender)) == ""


async def test_the_kernel_says_who_asks_whatever_the_datagram_says(door: Door) -> None:
    with client(door) as sender:
        send(sender, door, datagrams.request((1, 2, 3)))
        await answered(sender)
    assert [caller.pid for caller in door.living()] == [os.getpid()]


async def test_a_sender_outside_the_folder_gets_no_answer(door: Door, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.bind(str(tmp_path / "s"))
        sender.setblocking(False)
        send(sender, door, datagrams.request((1,)))
        await asyncio.sleep(0.05)
        with pytest.raises(BlockingIOError):
            sender.recv(100)
    assert door.living() == []


async def test_an_answer_does_not_follow_a_link(door: Door, tmp_path: Path) -> None:
    """The kernel keeps the name by which a sender bound its socket, whatever is there now."""
    with client(door) as sender, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as victim:
        victim.bind(str(tmp_path / "victim"))
        victim.setblocking(False)
        name = f"{door.folder}/dynoconfigclient1"
        os.unlink(name)
        for link in (os.symlink, os.link):
            link(tmp_path / "victim", name)
            send(sender, door, datagrams.request((os.getpid(),)))
            await asyncio.sleep(0.05)
            with pytest.raises(BlockingIOError):
                victim.recv(100)
            os.unlink(name)


async def test_an_instruction_that_was_not_delivered_stays(door: Door) -> None:
    with client(door) as sender:
        send(sender, door, datagrams.request((os.getpid(),)))
        await answered(sender)
        door.tell(door.living()[0], "START=1")
        os.unlink(f"{door.folder}/dynoconfigclient1")
        send(sender, door, datagrams.request((os.getpid(),)))
        await asyncio.sleep(0.05)
        assert door.untold(door.living()[0])


async def test_other_users_do_not_pass_to_the_folder_of_a_containers_job() -> None:
    outer = f"/tmp/muster-outer-{os.getpid()}"
    shared = Door(outer, "j.1", "red", 0, (), shared=True)
    shared.open()
    try:
        assert os.stat(outer).st_mode & 0o7777 == 0o700
        assert os.stat(shared.folder).st_mode & 0o7777 == 0o1777
        assert was_shared(outer)
    finally:
        shared.close()
        assert remove_tree(outer)
    assert not was_shared(outer)


@pytest.mark.parametrize("daemon", ["0", "1", ""])
async def test_a_job_does_not_choose_the_folder_that_its_container_mounts(
    daemon: str, tmp_path: Path
) -> None:
    chosen = {SOCKETS: "/etc", OUTPUT: "/etc", OWN: "/etc"}
    wish = replace(
        start_order("j"),
        spec=JobSpec(command=("true",), env={**chosen, **({DAEMON: daemon} if daemon else {})}),
    )
    launch = launch_of(wish)
    made = environment(wish, "n1", (), {})
    assert OWN not in made and made[SOCKETS] == "/etc"
    for tracing in (Tracing(), Tracing(tmp_path, 1 << 20, 1 << 20)):
        await tracing.adopt({})
        assert trace_folder(tracing.hold(replace(launch, env=made), wish).env) == ""


async def test_a_flood_is_read_at_a_bounded_rate(door: Door) -> None:
    with client(door) as sender:
        until = time.monotonic() + 0.5
        while time.monotonic() < until:
            try:
                send(sender, door, b"x")
            except BlockingIOError:
                await asyncio.sleep(0.001)
        await asyncio.sleep(0.01)
        assert door.read_in_second <= DATAGRAMS_MAX + 1


def test_a_link_in_place_of_a_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("{}")
    os.symlink(tmp_path / "secret", tmp_path / "ab-0_1.json")
    os.mkfifo(tmp_path / "ab-0_2.json")
    seen = files.seen(str(tmp_path), ["ab-0"])
    assert seen == ({"ab-0": {"ab-0_1.json": 0, "ab-0_2.json": 0}}, True)
    for name in ("ab-0_1.json", "ab-0_2.json"):
        with pytest.raises(OSError):
            files.opened(str(tmp_path / name), [])


def test_a_look_is_bounded_however_many_files_a_job_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "ENTRIES_MAX", 100)
    for number in range(100):
        (tmp_path / f"ab-0_{number}.json").write_text("{}")
    sizes, whole = files.seen(str(tmp_path), ["ab-0", "ab-1"])
    assert (len(sizes["ab-0"]), sizes["ab-1"], whole) == (files.NAMES_MAX + 1, {}, True)
    (tmp_path / "more").touch()
    assert not files.seen(str(tmp_path), ["ab-0"]).whole
    files.clear(str(tmp_path), "ab")
    files.clear(str(tmp_path), "ab")
    assert os.listdir(tmp_path) == ["more"]


def test_a_note_that_leads_elsewhere_is_replaced(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 60)
    deep.mkdir()
    (deep / "trace-folder").write_bytes(b"/etc/none")
    folders = Folders(deep)
    folders.open()
    try:
        assert folders.root.startswith("/tmp/muster-")
        assert len(folders.of("j.1")) <= 54
        again = Folders(deep)
        again.open()
        assert again.of("j.1") == folders.of("j.1") != folders.of("j.2")
    finally:
        os.rmdir(folders.root)


async def test_a_thread_removes_what_ended_jobs_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed = asyncio.Queue[bool]()
    loop = asyncio.get_running_loop()

    def seen(path: str) -> bool:
        on_loop = threading.current_thread() is threading.main_thread()
        done = remove_tree(path)
        loop.call_soon_threadsafe(removed.put_nowait, done and not on_loop)
        return done

    monkeypatch.setattr(removals, "remove_tree", seen)
    monkeypatch.setattr(removals, "GATHER_S", 0.01)
    folders = Folders(tmp_path)
    folders.open()
    try:
        for key in ("j.1", "j.2", "j.3"):
            os.makedirs(f"{folders.of(key)}/sub")
        folders.sweep(["j.1", "j.2"])
        folders.removals.put(folders.of("j.2"))
        os.mkdir(folders.of("j.2"))  # the name is free at once
        async with asyncio.timeout(5):
            assert await removed.get() and await removed.get()
        names = {os.path.basename(folders.of(key)) for key in ("j.1", "j.2")}
        assert set(os.listdir(folders.root)) == names
    finally:
        remove_tree(folders.root)
