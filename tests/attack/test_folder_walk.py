"""A job that replaces its folders by links while root works on them reaches no file of root.

Root fills, gives, measures and removes the folders. Needs root. The attacker is a real process of
the job's user (`exchanging.py`). Its target is a folder of root with a file of mode 0600.
"""

import io
import os
import stat
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from libs.common.safety.folder_walk import give_file, give_tree, remove_tree, size_of
from libs.common.safety.unpacking import unpack
from services.node_agent.directories import job_ownership
from services.node_agent.directories.accounts import Account
from services.node_agent.directories.job_directories import _remove_unmarked
from services.node_agent.directories.kept_directories import _empty, _scan
from services.node_agent.directories.unpacking import FILES

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can give a folder to another user"
)
UID = 71_234
JOB = Account(name="tenant", uid=UID, gid=UID, groups=(), home="/", shell="/bin/sh")
ROUNDS = 12
# The least that a file with content takes on a disk.
SECTOR_BYTES = 512
ENTRIES = 200
DEEP = 3_000
SECRET = b"not yours\n"


class Ground:
    """A state directory that other users can enter, and the attacker's target.

    Both are on one file system, so that hard links are possible.
    """

    def __init__(self, top: Path) -> None:
        self.jobs, self.victim = top / "state" / "jobs", top / "victim"
        self.victim.mkdir(mode=0o755)
        (self.victim / "secret").write_bytes(SECRET)
        (self.victim / "secret").chmod(0o600)
        for number in range(ENTRIES):  # the names that the upload has too
            (self.victim / f"f{number}").write_bytes(SECRET)
            (self.victim / f"f{number}").chmod(0o600)
        self.jobs.mkdir(parents=True)

    def is_untouched(self) -> bool:
        files = [self.victim, *self.victim.iterdir()]
        owners = {(path.stat().st_uid, path.stat().st_gid) for path in files}
        modes = {stat.S_IMODE(path.stat().st_mode) for path in files[1:]}
        texts = {path.read_bytes() for path in files[1:]}
        links = {path.stat().st_uid for path in self.victim.iterdir()}
        return (len(files), owners, modes, texts, links) == (
            ENTRIES + 2,
            {(0, 0)},
            {0o600},
            {SECRET},
            {0},
        )


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    for folder in (tmp_path, *tmp_path.parents[:-2]):
        folder.chmod(folder.stat().st_mode | 0o011)
    made = Ground(tmp_path)
    attacker = Path(__file__).with_name("exchanging.py")
    script = tmp_path / attacker.name  # a checkout may be closed to other users
    script.write_bytes(attacker.read_bytes())
    line = [
        getattr(sys, "_base_executable", sys.executable),
        "-I",
        "-S",
        str(script),
        str(UID),
        str(made.jobs),
        str(made.victim),
    ]
    attacks = [subprocess.Popen(line, stdout=subprocess.PIPE, cwd="/") for _ in range(2)]
    try:
        for each in attacks:
            assert each.stdout is not None and each.stdout.readline() == b"ready\n"
        yield made
        assert [each.poll() for each in attacks] == [None, None], (
            "an attacker ended before the test did"
        )
    finally:
        for each in attacks:
            each.kill()
            each.wait()
            assert each.stdout is not None
            each.stdout.close()


def archive() -> io.BytesIO:
    """Return an upload with many files at the top and many in a folder."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        folder = tarfile.TarInfo("folder")
        folder.type, folder.mode = tarfile.DIRTYPE, 0o755
        tar.addfile(folder)
        for number in range(ENTRIES):
            for name in (f"f{number}", f"folder/f{number}"):
                tar.addfile(tarfile.TarInfo(name))
    packed.seek(0)
    return packed


def test_nothing_of_root_s_is_given_away_while_an_upload_is_unpacked_and_given(
    ground: Ground,
) -> None:
    packed = archive()
    for number in range(ROUNDS):
        job_dir = ground.jobs / f"j{number}.1"
        job_dir.mkdir(mode=0o700)
        packed.seek(0)
        unpack(packed, job_dir / FILES, 1_000)
        refused = ""
        try:
            job_ownership.give(ground.jobs, str(job_dir), JOB)
        except OSError as error:
            refused = str(error)
        assert ground.is_untouched(), f"in round {number}"
        assert (job_dir / FILES).stat().st_uid == UID and not refused


def test_nothing_of_root_s_is_read_or_removed_while_ended_jobs_are_measured_and_emptied(
    ground: Ground,
) -> None:
    packed = archive()
    for number in range(ROUNDS):
        job_dir = ground.jobs / f"j{number}.1"
        packed.seek(0)
        job_dir.mkdir(mode=0o700)
        unpack(packed, job_dir / FILES, 1_000)
        job_ownership.give(ground.jobs, str(job_dir), JOB)
        time.sleep(0.01)  # the attackers find it
        assert _scan(str(job_dir)).kept.size_bytes < ENTRIES * SECTOR_BYTES, (
            "a file of root's was measured"
        )
        if number % 2:
            _empty(job_dir)
        else:
            _remove_unmarked(str(job_dir))
        assert ground.is_untouched(), f"in round {number}"


def test_a_folder_that_a_job_may_enter_already_is_not_given_again(tmp_path: Path) -> None:
    for name, mode, owner in (("open", 0o755, 0), ("theirs", 0o700, UID)):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(mode)
        os.chown(tmp_path / name, owner, owner)
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        for name in ("open", "theirs"):
            with pytest.raises(PermissionError, match="closed to others"):
                give_tree(folder, name, UID, UID)
    finally:
        os.close(folder)


@pytest.mark.parametrize("kind", ["second name", "pipe", "link to a folder"])
def test_only_files_with_one_name_and_links_themselves_are_given(tmp_path: Path, kind: str) -> None:
    (tmp_path / "top").mkdir(mode=0o700)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_bytes(SECRET)
    entry = tmp_path / "top" / "entry"
    if kind == "second name":
        os.link(tmp_path / "other" / "file", entry)
    elif kind == "pipe":
        os.mkfifo(entry)
    else:
        entry.symlink_to(tmp_path / "other")
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        if kind == "link to a folder":
            give_tree(folder, "top", UID, UID)
            assert entry.lstat().st_uid == UID
        else:
            with pytest.raises(PermissionError, match="one name only"):
                give_tree(folder, "top", UID, UID)
            assert (tmp_path / "top").stat().st_uid == 0
            with pytest.raises(PermissionError, match="one name only"):
                give_file(folder, "top", UID, UID)
    finally:
        os.close(folder)
    assert {path.stat().st_uid for path in (tmp_path / "other", tmp_path / "other" / "file")} == {0}


def test_folders_nested_deeper_than_any_stack_are_measured_and_removed(tmp_path: Path) -> None:
    top = tmp_path / "top"
    top.mkdir()
    here = os.open(top, os.O_RDONLY)
    for _ in range(DEEP):
        os.mkdir("d", dir_fd=here)
        inner = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.write(bottom := os.open("file", os.O_WRONLY | os.O_CREAT, dir_fd=here), SECRET)
    for descriptor in (bottom, here):
        os.close(descriptor)
    before = len(os.listdir("/proc/self/fd"))
    assert size_of(top) >= len(SECRET)
    assert remove_tree(top)
    assert not top.exists()
    assert len(os.listdir("/proc/self/fd")) <= before
