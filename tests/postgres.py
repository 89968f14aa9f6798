"""A PostgreSQL server of one test run's own, where this machine has the programs: a new database, a
socket in its own folder, no port.

Nothing depends on it: without the programs, and without MUSTER_TEST_POSTGRES_URL (a database that
may be emptied), such tests are skipped.
"""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from libs.embedded.living import die_with_parent

VARIABLE = "MUSTER_TEST_POSTGRES_URL"
PLACES = "/usr/lib/postgresql"
READY_S = 30.0


def programs() -> Path | None:
    """The folder with initdb and postgres; None when there is none."""
    beside = shutil.which("initdb")
    found = (
        [Path(beside).parent]
        if beside
        else sorted(Path(PLACES).glob("*/bin"), key=lambda path: path.parent.name)[::-1]
    )
    return next(
        (path for path in found if (path / "initdb").exists() and (path / "postgres").exists()),
        None,
    )


@contextmanager
def running(programs: Path) -> Iterator[str]:
    """The URL of an empty database, until the end of the block."""
    folder = Path(tempfile.mkdtemp(prefix="muster-pg-"))
    user = _user()
    if user is not None:
        os.chown(folder, pwd.getpwnam(user).pw_uid, -1)
    data = folder / "data"
    initdb = [
        str(programs / "initdb"),
        "-D",
        str(data),
        "-U",
        "muster",
        "-A",
        "trust",
        "-N",
        "--no-locale",
        "-E",
        "UTF8",
    ]
    subprocess.run(
        initdb,
        check=True,
        capture_output=True,
        user=user,
        cwd=folder,
        env={"PATH": os.environ["PATH"]},
    )
    line = [
        str(programs / "postgres"),
        "-D",
        str(data),
        "-k",
        str(folder),
        "-c",
        "listen_addresses=",
        "-c",
        "max_connections=30",
    ]
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(
            line, stdout=log, stderr=log, user=user, cwd=folder, preexec_fn=die_with_parent()
        )
    try:
        url = f"postgresql://muster@/postgres?host={folder}"
        _wait_ready(url, folder / "log")
        yield url
    finally:
        server.send_signal(signal.SIGINT)  # after SIGTERM it would wait for open connections
        server.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _user() -> str | None:
    """Return the user to run PostgreSQL, which refuses root; None if this is not root."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


def _wait_ready(url: str, log: Path) -> None:
    import psycopg  # a driver for tests only

    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        try:
            psycopg.connect(url).close()
            return
        except psycopg.OperationalError:
            time.sleep(0.05)
    raise AssertionError(f"PostgreSQL does not answer: {log.read_text()[-500:]}")
