"""The sdist and the wheel, equal byte for byte for equal sources.

Times come from the commit (SOURCE_DATE_EPOCH), modes are 0644 or 0755, owners are 0. The wheel is
built from the sdist, so that both hold the same. Tests: tests/unit/test_release_files.py.
"""

import gzip
import hashlib
import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Final

from libs.common.errors import Refused

# The first moment that a zip file can hold, 1980-01-01 in seconds.
ZIP_EPOCH: Final = 315_532_800
BUILD_S: Final = 600.0


def sources(root: Path, revision: str, folder: Path) -> int:
    """Unpack a revision into `folder` and return the time of its commit in seconds."""
    archive = _git(root, "archive", "--format=tar", revision)
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for member in tar.getmembers():
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            tar.extract(member, folder, filter="fully_trusted")
            if not member.issym():
                os.chmod(folder / member.name, member.mode)
    return max(int(_git(root, "log", "-1", "--format=%ct", revision)), ZIP_EPOCH)


def changes(root: Path) -> str:
    """Return the names of changed files that no commit holds, one a line."""
    return _git(root, "status", "--porcelain").decode()


def sdist(source: Path, into: Path, epoch: int) -> Path:
    """Build the sdist of a source folder and pack it again without times and owners."""
    _build("--sdist", source, into, epoch)
    (path,) = into.glob("*.tar.gz")
    path.write_bytes(repacked(path.read_bytes(), epoch))
    return path


def wheel(archive: Path, work: Path, into: Path, epoch: int) -> Path:
    """Build the wheel from an sdist that is unpacked in `work`."""
    with tarfile.open(archive) as tar:
        tar.extractall(work, filter="data")
    (source,) = work.iterdir()
    _build("--wheel", source, into, epoch)
    (path,) = into.glob("*.whl")
    return path


def repacked(archive: bytes, epoch: int) -> bytes:
    """Return a .tar.gz with the same files in order, with one time, one owner and two modes."""
    packed = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(archive)) as old,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as new,
    ):
        for member in sorted(old.getmembers(), key=lambda each: each.name):
            member.mtime = epoch
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            member.pax_headers = {}
            new.addfile(member, old.extractfile(member) if member.isfile() else None)
    return gzip.compress(packed.getvalue(), mtime=epoch)


def sums(paths: list[Path]) -> str:
    """Return the lines of a SHA256SUMS file, sorted by name."""
    return "".join(
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(paths)
    )


def dated(changelog: str, version: str) -> bool:
    """Return whether the changelog has a section `## VERSION (DATE)`."""
    return any(line.startswith(f"## {version} (") for line in changelog.splitlines())


def _build(kind: str, source: Path, into: Path, epoch: int) -> None:
    # The files that setuptools copies get their modes from this process's mask.
    os.umask(0o022)
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch)}
    line = [sys.executable, "-m", "build", kind, "--outdir", str(into), str(source)]
    done = subprocess.run(
        line, env=environment, capture_output=True, text=True, check=False, timeout=BUILD_S
    )
    if done.returncode:
        tail = (done.stdout + done.stderr)[-2_000:]
        raise Refused(f"`python -m build {kind}` failed, so there is no release:\n{tail}")


def _git(root: Path, *arguments: str) -> bytes:
    line = ["git", "-C", str(root), *arguments]
    done = subprocess.run(line, capture_output=True, check=False)  # nosec B607
    if done.returncode:
        raise Refused(f"git {arguments[0]} failed in {root}: {done.stderr.decode().strip()}")
    return done.stdout
