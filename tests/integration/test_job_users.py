"""Rights of jobs that run as another user than the agent. Needs root."""

import asyncio
import hashlib
import io
import os
import pwd
import shutil
import tarfile
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from supervision_world import WAIT_S

from libs.common.messages.file_messages import FILE, FOLDER, MISSING, UNREADABLE, FileAsk, FilePart
from libs.common.model import AttemptRef, JobId
from libs.common.transport.bus_memory import MemoryBus
from services.node_agent.core.observations import Observation, ProcessExited
from services.node_agent.directories import accounts
from services.node_agent.directories.accounts import Account
from services.node_agent.directories.acting_as import acting_as
from services.node_agent.directories.job_directories import JobDirectories
from services.node_agent.directories.protocol import Launch
from services.node_agent.jobs.files import FileAnswers, part_of

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a job another user")
USER = "daemon"
REF = AttemptRef(JobId("j"), 1)


class Node:
    def __init__(self, state_dir: Path) -> None:
        self.jobs = JobDirectories(state_dir)
        self.exits: asyncio.Queue[ProcessExited] = asyncio.Queue()

    def told(self, seen: Observation) -> None:
        if isinstance(seen, ProcessExited):
            self.exits.put_nowait(seen)

    async def run(
        self, script: str, account: Account | None, workdir: str = "/", ref: AttemptRef = REF
    ) -> str:
        """Return the job's output of both streams, with the exit code in the last line."""
        base = {"PATH": os.environ["PATH"], **(account.environment if account else {})}
        limits = {
            "stdin": False,
            "output_limit_bytes": 1 << 20,
            "ignore_lease": True,
            "gpus": (),
            "seq": 1,
        }
        argv = ("/bin/sh", "-c", f"exec 2>&1; {script}")
        await self.jobs.launch(
            Launch(ref=ref, rank=0, argv=argv, env=base, workdir=workdir, account=account, **limits)
        )  # type: ignore[arg-type]
        async with asyncio.timeout(WAIT_S):
            end = (await self.exits.get()).exit
        piece = await self.jobs.read_output(ref, "stdout", 0, 1 << 20)
        assert piece is not None
        return f"{piece.data.decode()}{end.exit_code}"


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    """Return a state directory that other users can enter, unlike a test's own folder."""
    for folder in (tmp_path, *tmp_path.parents[:-2]):
        folder.chmod(folder.stat().st_mode | 0o011)
    made = Node(tmp_path / "agent")
    await made.jobs.start(made.told)
    yield made
    await made.jobs.close()


def account() -> Account:
    return accounts.account(USER)._replace(groups=(3, 60))


async def test_job_has_its_users_groups_and_cannot_gain_rights(node: Node) -> None:
    told = await node.run(
        (
            "id -u; id -g; id -G; grep -e NoNewPrivs -e CapEff /proc/self/status; echo $HOME "
            "$USER $LOGNAME"
        ),
        account(),
    )
    known = pwd.getpwnam(USER)
    words = told.split()
    assert words[:2] == [str(known.pw_uid), str(known.pw_gid)]
    assert set(words[2:5]) == {str(known.pw_gid), "3", "60"}
    assert told.split("\n")[3:6] == [
        "CapEff:\t0000000000000000",
        "NoNewPrivs:\t1",
        f"{known.pw_dir} {USER} {USER}",
    ]


async def test_a_program_with_another_user_s_bit_stays_this_user_s(
    node: Node, tmp_path: Path
) -> None:
    copy = tmp_path / "id"
    shutil.copy("/usr/bin/id", copy)
    copy.chmod(0o4755)
    assert (await node.run(f"{copy} -u", account())).split() == [
        str(pwd.getpwnam(USER).pw_uid),
        "0",
    ]


async def test_job_opens_its_streams_by_name_and_reports_checkpoints(node: Node) -> None:
    assert (
        await node.run(
            'echo named > /dev/stdout; touch "$MUSTER_CHECKPOINT_FILE" && echo saved', account()
        )
        == "named\nsaved\n0"
    )
    assert node.jobs.checkpointed_ns(REF) > 0


async def test_job_reports_its_device_seconds(node: Node) -> None:
    assert await node.run('echo 1.5 > "$MUSTER_JOB_DIR/device-seconds"', account()) == "0"
    assert node.jobs.device_s(REF) == 1.5


async def test_job_without_a_report_has_no_device_seconds(node: Node) -> None:
    await node.run("true", account())
    assert node.jobs.device_s(REF) is None


async def test_records_of_a_jobs_end_do_not_belong_to_its_user(node: Node) -> None:
    script = (
        'for f in order.json exit.json; do cat "$MUSTER_JOB_DIR/$f"; done; ls "$MUSTER_JOB_DIR"; '
        'touch "$MUSTER_JOB_DIR/x"; kill -9 $PPID'
    )
    told = await node.run(script, account())
    assert told.count("Permission denied") == 4
    assert "not permitted" in told and told.endswith("\n1")


async def test_job_cannot_open_another_jobs_files(node: Node) -> None:
    other = account()._replace(uid=pwd.getpwnam("bin").pw_uid)
    await node.run("echo mine > $MUSTER_CHECKPOINT_FILE", other, ref=AttemptRef(JobId("k"), 1))
    assert "Permission denied" in await node.run(
        "cat $MUSTER_JOB_DIR/../k.1/own/checkpoint", account()
    )


async def test_upload_belongs_to_the_jobs_user(node: Node) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, kind in (
            ("a", tarfile.REGTYPE),
            ("folder", tarfile.DIRTYPE),
            ("folder/b", tarfile.REGTYPE),
        ):
            member = tarfile.TarInfo(name)
            member.type, member.mode = kind, 0o755
            archive.addfile(member)
    data = packed.getvalue()

    async def pieces() -> AsyncIterator[bytes]:
        yield data

    workdir = await node.jobs.unpack(REF, hashlib.sha256(data).hexdigest(), pieces(), lambda: True)
    assert (
        await node.run(
            "echo new > a && echo new > folder/b && touch c && stat -c %U . folder/b",
            account(),
            workdir,
        )
        == "daemon\ndaemon\n0"
    )


async def test_job_without_an_account_runs_as_the_agents_user(node: Node) -> None:
    assert await node.run("id -u; touch $MUSTER_CHECKPOINT_FILE", None) == f"{os.geteuid()}\n0"
    assert node.jobs.checkpointed_ns(REF) > 0


class Reader:
    """The server for files of a node's jobs.

    It has one thread, so a user that a request left set would show in the next answer.
    """

    def __init__(self, jobs: JobDirectories) -> None:
        self.answers = FileAnswers("n1", MemoryBus(), jobs.root_of)
        self.answers.threads = ThreadPoolExecutor(1)

    def read(self, path: Path | str, ref: AttemptRef = REF) -> FilePart:
        return self.answers.threads.submit(
            part_of,
            self.answers.node_id,
            self.answers.root_of,
            FileAsk(ref.job_id, ref.attempt, str(path).encode()),
        ).result(WAIT_S)


async def test_copy_reads_no_file_that_the_jobs_user_cannot_read(
    node: Node, tmp_path: Path
) -> None:
    nobody, own, closed = accounts.account("nobody"), tmp_path / "own", tmp_path / "closed"
    for folder, mode in ((own, 0o1777), (closed, 0o700)):
        folder.mkdir()
        folder.chmod(mode)
    (closed / "x").write_text("not yours")
    await node.run(f"umask 077; echo mine > {own}/x; ln -s /etc/shadow {own}/link", nobody)
    await node.run("true", None, ref=AttemptRef(JobId("root"), 1))
    reader = Reader(node.jobs)
    for path in (
        "/etc/shadow",
        own / "link",
        closed / "x",
        closed,
        f"/proc/{os.getpid()}/environ",
        "/proc/self/environ",
    ):
        found = reader.read(path)
        assert found.fault in (UNREADABLE, MISSING) and not found.data and not found.names, path
    assert (reader.read(own / "x").kind, reader.read(own / "x").data, reader.read(own).kind) == (
        FILE,
        b"mine\n",
        FOLDER,
    )
    assert reader.read("/etc/shadow", AttemptRef(JobId("root"), 1)).kind == FILE
    assert reader.read("/etc/shadow").fault == UNREADABLE
    assert os.geteuid() == 0


async def test_next_agent_knows_the_owner_of_a_jobs_files(node: Node, tmp_path: Path) -> None:
    await node.run("true", account())
    known = pwd.getpwnam(USER)
    root = JobDirectories(tmp_path / "agent").root_of(REF)
    assert root is not None and root[2] == [known.pw_uid, known.pw_gid, 3, 60]


def standing() -> tuple[int, int, list[int], str]:
    """Return the user, groups and capabilities of this thread."""
    status = Path("/proc/thread-self/status").read_text()
    return os.geteuid(), os.getegid(), os.getgroups(), status.split("CapEff:")[1].split()[0]


def test_one_thread_becomes_the_user_and_changes_back() -> None:
    before, known = standing(), pwd.getpwnam(USER)
    with ThreadPoolExecutor(1) as other:
        assert other.submit(standing).result(WAIT_S) == before
        with acting_as(account().ids):
            assert (standing(), other.submit(standing).result(WAIT_S)) == (
                (known.pw_uid, known.pw_gid, [3, 60], "0" * 16),
                before,
            )
    assert standing() == before
