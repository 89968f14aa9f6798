"""`muster cp` against a real gateway and an agent's file reader: files are whole or absent."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from libs.common import subjects
from libs.common.messages.file_messages import PART_BYTES, FileAsk, FilePart
from libs.common.model import AttemptRef
from services.node_agent.jobs.files import FileAnswers
from tests.integration.gateway_world import KEY, World, gateway_world
from tests.integration.test_cli_identity import Shell


class Place:
    """A gateway, a node whose jobs' working directories are below `root`, and a user's home."""

    def __init__(self, world: World, root: Path, home: Path) -> None:
        self.world, self.root, self.home = world, root, home
        self.shell = Shell(home, world.url)

    def root_of(self, ref: AttemptRef) -> tuple[str, bool, list[int]] | None:
        folder = self.root / f"{ref.job_id}.{ref.attempt}"
        return (str(folder), True, []) if folder.exists() else None

    async def job(
        self, state: str = "running", node: str = "n1", **fields: object
    ) -> tuple[str, Path]:
        """A job and its directory."""
        job_id = await self.world.run_to(state, node, **fields)
        folder = self.root / f"{job_id}.1"
        folder.mkdir()
        return job_id, folder


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    async with gateway_world(tmp_path, ask_ms=500, records_access=True) as world:
        await world.writers.begin_term()
        for node_id in ("n1", "n2"):
            await world.writers.register(node_id)
        for name in ("root", "home"):
            os.mkdir(tmp_path / name)
        found = Place(world, tmp_path / "root", tmp_path / "home")
        answers = FileAnswers("n1", world.bus, found.root_of)
        await answers.listen()
        await found.shell.run("login", world.url, stdin=KEY + "\n")
        yield found
        answers.close()


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize("state", ["running", "completed"])
async def test_cp_copies_a_whole_file_with_its_mode(place: Place, state: str) -> None:
    job, folder = await place.job(state)
    data = os.urandom(3 * PART_BYTES + 7)
    (folder / "out").mkdir()
    (folder / "out/model").write_bytes(data)
    (folder / "out/model").chmod(0o755)
    (folder / "empty").touch()
    (place.home / "results").mkdir()
    for target, expected in (("results", "results/model"), ("named", "named"), ("named", "named")):
        assert await place.shell.run("cp", f"{job}:out/model", target) == ("", "")
        assert (place.home / expected).read_bytes() == data and os.access(
            place.home / expected, os.X_OK
        )
    await place.shell.run("cp", f"{job}:empty")
    assert names(place.home) == ["empty", "named", "profile.json", "results", "results/model"]


async def test_cp_copies_a_folder_without_links_that_point_outside(
    place: Place,
) -> None:
    job, folder = await place.job()
    (folder / "out/deep/er").mkdir(parents=True)
    (folder / "out/deep/er/w").write_bytes(os.urandom(PART_BYTES + 1))
    (folder / "out/empty").mkdir()
    (folder / "out/latest").symlink_to("deep/er")
    (folder / "out/away").symlink_to("/etc/passwd")
    os.mkfifo(folder / "out/pipe")
    _, said = await place.shell.run("cp", f"{job}:out/", "copy")
    assert "skipped the link away" in said
    assert names(place.home / "copy") == ["deep", "deep/er", "deep/er/w", "empty", "latest"]
    assert (place.home / "copy/latest/w").read_bytes() == (folder / "out/deep/er/w").read_bytes()
    await place.shell.run("cp", f"{job}:out", "copy", "--node", "n1")
    _, said = await place.shell.run("cp", f"{job}:out", "copy", code=2)
    assert "copy/out exists already" in said
    await place.shell.run("cp", f"{job}:")
    assert (place.home / job / "out/deep/er/w").exists()


async def test_cp_writes_a_file_or_an_archive_to_standard_output(place: Place) -> None:
    job, folder = await place.job()
    (folder / "x").write_text("hello\n")
    assert await place.shell.run("cp", f"{job}:x", "-") == ("hello\n", "")
    (folder / "x").write_text("y" * 100)
    out, _ = await place.shell.run("cp", f"{job}:.", "-")
    assert out.startswith("x\0") and "y" * 100 in out and len(out) % 512 == 0


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("gone", "no such file: gone"),
        ("..", "leads out"),
        ("/etc/passwd", "leads out"),
        ("out", "leads out"),
        ("pipe", "no file and no folder"),
    ],
)
async def test_a_path_that_is_missing_or_outside_the_job_is_one_line(
    place: Place, path: str, words: str
) -> None:
    job, folder = await place.job()
    (folder / "out").symlink_to("../..")
    os.mkfifo(folder / "pipe")
    _, said = await place.shell.run("cp", f"{job}:{path}", "here", code=1)
    assert words in said and said.count("\n") == 1 and names(place.home) == ["profile.json"]


async def test_cp_explains_unplaced_and_pruned_jobs_and_silent_nodes(
    place: Place,
) -> None:
    waiting = await place.world.run_to("queued")
    assert (
        "has no files yet: it is queued" in (await place.shell.run("cp", f"{waiting}:x", code=1))[1]
    )
    job, folder = await place.job()
    folder.rmdir()
    assert "or is pruned" in (await place.shell.run("cp", f"{job}:x", code=1))[1]
    away, _ = await place.job(node="n2")
    assert (
        "node n2, which has the files, does not answer"
        in (await place.shell.run("cp", f"{away}:x", code=1))[1]
    )
    assert (
        "node_id: node 'n9' does not exist"
        in (await place.shell.run("cp", "--node", "n9", f"{job}:x", code=1))[1]
    )
    assert "use JOB:PATH" in (await place.shell.run("cp", "x", "y", code=2))[1]


async def test_only_its_user_and_operators_copy_files_and_it_is_recorded(
    place: Place,
) -> None:
    world = place.world
    await world.ask("PUT", "/v1/tenants/physics", 201, json={})
    job, folder = await place.job()
    (folder / "x").write_text("mine")
    async with (
        world.as_("member", "bob") as bob,
        world.as_("viewer", "vic") as vic,
        world.as_("member", "eve", "physics") as eve,
    ):
        assert (
            "belongs to tests"
            in (await bob.ask("GET", f"/v1/jobs/{job}/files?path=x", 403))["detail"]
        )
        await vic.ask("GET", f"/v1/jobs/{job}/files?path=x", 403)
        await eve.ask("GET", f"/v1/jobs/{job}/files?path=x", 404)
    async with (
        world.as_("operator", "olga") as olga,
        olga.session.get(f"{world.url}/v1/jobs/{job}/files?path=x") as answer,
    ):
        assert await answer.read() == b"mine"
    await world.gateway.access.flush()
    entries = (await world.ask("GET", "/v1/access?route=/v1/jobs/{ref}/files&limit=100"))["access"]
    assert [(each["user"], each["status"], bool(each["denied"])) for each in entries] == [
        ("bob", 403, True),
        ("vic", 403, True),
        ("eve", 404, True),
        ("olga", 200, False),
    ]


async def test_a_file_that_is_replaced_during_the_copy_is_not_kept(place: Place) -> None:
    """A node whose second answer is of another file."""
    job = await place.world.run_to("running", "n2")

    async def answer(subject: str, data: bytes) -> bytes:
        ask = msgspec.msgpack.decode(data, type=FileAsk)
        part = FilePart(
            kind="file",
            size_bytes=2 * PART_BYTES,
            mode=0o644,
            identity="a" if not ask.offset else "b",
            data=bytes(PART_BYTES),
        )
        return msgspec.msgpack.encode(part)

    await place.world.bus.subscribe(subjects.ask_node("n2", "files"), answer, concurrent=True)
    _, said = await place.shell.run("cp", f"{job}:x", "here", code=1)
    assert "broke" in said and names(place.home) == ["profile.json"]
