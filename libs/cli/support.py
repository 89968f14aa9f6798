"""The support bundle: diagnostics in one file, each part bounded and redacted.

If a part cannot be read, its file holds the error: bundles are made of broken clusters. The bundle
holds only ids, states and times of jobs, so commands and environments do not depend on the
redaction. Tests: tests/integration/test_support_bundle.py.
"""

import io
import json
import os
import platform
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from libs.cli.gateway import Json, ask, opened
from libs.cli.verb_group import VERBS
from libs.cli.verbs.config import rows_of
from libs.client.profile import Profile, read_profile
from libs.common import installed
from libs.common.errors import MusterError
from libs.common.safety.redaction import redacted
from libs.common.settings import configuration

LOG_BYTES_MAX: Final = 2 << 20
LOGS_MAX: Final = 2_000
ASK_S: Final = 10.0
DOCTOR_S: Final = 60.0
JOBS_MAX: Final = 1_000
FACTS_MAX: Final = 1_000
METRICS_BYTES_MAX: Final = 4 << 20
SECRET_BYTES_MAX: Final = 4_096
# The fields of facts and jobs that do not reveal what users compute.
FACT_FIELDS: Final = ("seq", "at", "kind", "writer")
INNER_FIELDS: Final = (
    "job_id",
    "attempt",
    "node_id",
    "reason",
    "exit_code",
    "signal",
    "incarnation",
    "epoch",
)
JOB_FIELDS: Final = (
    "id",
    "state",
    "reason",
    "attempt",
    "node_ids",
    "submitted_at",
    "queued_at",
    "placed_at",
    "started_at",
    "ended_at",
)


def bundle(path: Path, state: Path) -> int:
    """Write the bundle, readable by its owner only, and return the number of its parts.

    Raises OSError if the file cannot be written.
    """
    profile = read_profile()
    secrets = list(_secrets(profile, state))
    count = 0
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, text in _parts(profile, state):
            data = redacted(text, secrets).encode()
            entry = tarfile.TarInfo(f"muster-support/{name}")
            entry.size, entry.mtime, entry.mode = len(data), int(time.time()), 0o600
            archive.addfile(entry, io.BytesIO(data))
            count += 1
    return count


def _secrets(profile: Profile, state: Path) -> Iterator[str]:
    """Yield every secret that this user can read here; the redaction hides them."""
    yield profile.key
    for folder in (state / "keys", *(state / "services").glob("*/keys")):
        for path in sorted(folder.glob("*")) if folder.is_dir() else ():
            if (
                path.is_file()
                and path.stat().st_size <= SECRET_BYTES_MAX
                and os.access(path, os.R_OK)
            ):
                yield from path.read_text(errors="replace").split()
    for name, value in os.environ.items():
        if any(word in name.upper() for word in ("KEY", "SECRET", "TOKEN", "PASSWORD")):
            yield value


def _parts(profile: Profile, state: Path) -> Iterator[tuple[str, str]]:
    for name, part in _answers(profile).items():
        yield name, _text_or_error(part)
    for path in sorted((state / "logs").glob("*.log*"))[:LOGS_MAX]:
        yield f"logs/{path.name}", _text_or_error(lambda path=path: _tail(path))  # type: ignore[misc]


def _answers(profile: Profile) -> dict[str, Callable[[], str]]:
    parts: dict[str, Callable[[], str]] = {
        "this-machine.json": lambda: _json(_machine()),
        "configuration.json": lambda: _json(_configuration()),
        "version.json": lambda: _json(_get(profile, "/v1/version")),
        "cluster.json": lambda: _json(_get(profile, "/v1/cluster")),
        "nodes.json": lambda: _json(_get(profile, "/v1/nodes")),
        "gpus.json": lambda: _json(_get(profile, "/v1/gpus")),
        "jobs.json": lambda: _json(_jobs(profile)),
        "facts.json": lambda: _json(_facts(profile)),
        "readyz.json": lambda: _page(profile, "/readyz"),
        "metrics.txt": lambda: _page(profile, "/metrics"),
    }
    if "doctor" in VERBS:
        parts["doctor.txt"] = _doctor
    return parts


def _text_or_error(part: Callable[[], str]) -> str:
    try:
        return part()
    except (MusterError, OSError, subprocess.SubprocessError) as error:
        return f"not available: {error}\n"


def _json(value: object) -> str:
    return json.dumps(value, indent=1) + "\n"


def _machine() -> Json:
    return {
        "made_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "muster": installed.version(),
        "python": sys.version,
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "load": os.getloadavg(),
    }


def _configuration() -> Json:
    found = configuration.resolve()
    return {"settings": rows_of(found), "problems": list(found.problems)}


def _get(profile: Profile, path: str) -> Json:
    return ask(profile, "GET", path, answer_s=ASK_S)


def _jobs(profile: Profile) -> list[Json]:
    """Return the active jobs without their commands."""
    page = ask(profile, "GET", "/v1/jobs", {"limit": JOBS_MAX}, answer_s=ASK_S)
    return [{name: job.get(name) for name in JOB_FIELDS} for job in page["jobs"]]


def _facts(profile: Profile) -> list[Json]:
    """Return the last facts without the content of requests."""
    page = ask(
        profile, "GET", "/v1/events", {"last": FACTS_MAX, "limit": FACTS_MAX}, answer_s=ASK_S
    )
    return [
        {name: row.get(name) for name in FACT_FIELDS}
        | {name: row["fact"][name] for name in INNER_FIELDS if name in row.get("fact", {})}
        for row in page["events"]
    ]


def _page(profile: Profile, path: str) -> str:
    with opened(profile, path, silence_s=ASK_S) as stream:
        found = b""
        for piece in stream.pieces():
            found += piece
            if len(found) > METRICS_BYTES_MAX:
                break
    return found.decode(errors="replace")


def _doctor() -> str:
    line = [sys.executable, "-P", "-c", "from libs.cli.main import main; main()", "doctor"]
    found = subprocess.run(line, capture_output=True, text=True, timeout=DOCTOR_S, check=False)
    return found.stdout + found.stderr


def _tail(path: Path) -> str:
    """Return the end of a log file."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - LOG_BYTES_MAX))
        return file.read(LOG_BYTES_MAX).decode(errors="replace")
