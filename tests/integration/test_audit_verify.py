"""The command `verify` changes nothing and prints one line for each fault of its surroundings."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from libs.common import subjects
from libs.common.facts import VERSION, Commit, JobAdmitted, encode
from libs.common.model import JobId
from libs.common.transport.log import Entry
from libs.embedded.servers import free_ports
from services.audit.chain.segments import Finding
from services.audit.chain.verify import Report, check
from services.audit.commands import _code
from services.audit.store.store import Store
from tests.integration.audit_world import tamper


def verify(state: Path, **more: str) -> tuple[int, str, str]:
    """Run the command without a log; return exit code, output and complaints."""
    (port,) = free_ports(1)
    environment = {
        "PATH": os.environ["PATH"],
        "MUSTER_STATE": str(state),
        "MUSTER_NATS": f"nats://127.0.0.1:{port}",
        **more,
    }
    line = [sys.executable, "-m", "services.audit", "verify"]
    done = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, done.stderr


def archive(folder: Path, commits: int = 3) -> Path:
    store = Store(f"sqlite:///{folder / 'audit.db'}")
    store.migrate()
    facts = (JobAdmitted(job_id=JobId("j1")),)
    store.append(
        [
            Entry(
                n,
                subjects.QUOTA,
                encode(
                    Commit(
                        version=VERSION,
                        min_reader=VERSION,
                        writer=subjects.QUOTA,
                        number=n,
                        epoch=0,
                        at_ns=n,
                        seen=0,
                        facts=facts,
                    )
                ),
            )
            for n in range(1, commits + 1)
        ]
    )
    store.close()
    return folder


def test_missing_archive_is_reported_in_one_line_and_not_created(tmp_path: Path) -> None:
    code, out, said = verify(tmp_path)
    assert (code, out, len(said.splitlines())) == (2, "", 1)
    assert f"there is no archive at {tmp_path}/audit.db" in said
    assert verify(tmp_path / "nowhere")[0] == 2
    assert verify(tmp_path, MUSTER_AUDIT_URL=f"sqlite:///{tmp_path}/other.db")[0] == 2
    assert list(tmp_path.iterdir()) == []


def test_archive_is_verified_without_the_log_and_the_report_says_so(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "a place"
    folder.mkdir()
    before = (archive(folder) / "audit.db").read_bytes()
    code, out, said = verify(folder)
    assert (code, len(said.splitlines())) == (0, 1)
    assert "not compared with the log: no NATS server answers" in said
    assert out.startswith("3 commits checked, not compared with the log: the chain is whole")
    assert (folder / "audit.db").read_bytes() == before


def test_file_that_is_no_archive_is_reported_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "audit.db").touch()
    code, out, said = verify(tmp_path)
    assert code == 3 and "the schema is not the archive's" in said.splitlines()[-1]
    assert (out, (tmp_path / "audit.db").stat().st_size) == ("", 0)


@pytest.mark.parametrize(
    "edit",
    [
        "update commits set data = 'a text' where seq = 2",
        "update commits set data = cast(x'ff00' as text) where seq = 2",
        "update commits set subject = x'00' where seq = 2",
        "update commits set subject = 'nodots' where seq = 2",
        "update commits set subject = cast(x'ff' as text) where seq = 2",
        "update commits set hash = x'00' where seq = 3",
        "update commits set previous_hash = x'00' where seq = 2",
        "update commits set seq = 'a text' where seq = 3",
        "update commits set at_ns = 'a text' where seq = 2",
        "update facts set seq = 'a text' where seq = 2",
        "update facts set kind = x'00' where seq = 2",
    ],
)
def test_a_value_of_another_type_is_a_finding(tmp_path: Path, edit: str) -> None:
    url = f"sqlite:///{archive(tmp_path)}/audit.db"
    tamper(url, edit)
    code, out, _ = verify(tmp_path)
    assert code == 3 and "finding" in out.splitlines()[-1]


def test_the_same_bytes_as_a_text_are_unchanged(tmp_path: Path) -> None:
    url = f"sqlite:///{archive(tmp_path)}/audit.db"
    tamper(url, "update commits set data = cast(data as text) where seq = 2")
    store = Store(url, read_only=True)
    assert check(store).findings == ()
    store.close()


@pytest.mark.parametrize(
    ("wrongs", "ended", "code"),
    [
        ((), "", 0),
        (("behind",), "", 1),
        ((), "the log fell silent", 1),
        (("behind", "changed"), "", 3),
    ],
)
def test_an_archive_behind_the_log_is_not_called_a_changed_one(
    wrongs: tuple[str, ...], ended: str, code: int
) -> None:
    findings = tuple(Finding(1, 2, wrong, "") for wrong in wrongs)  # type: ignore[arg-type]
    assert _code(Report(commits=1, head_hash="x", findings=findings, ended=ended)) == code
