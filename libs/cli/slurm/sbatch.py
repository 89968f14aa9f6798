"""sbatch: submit a script, or one command with --wrap."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from libs.cli.formats.sbatch import command_of, gathered, is_script
from libs.cli.formats.sbatch_flags import HONOURED, SHORT
from libs.cli.formats.sbatch_script import Script
from libs.cli.gateway import ask
from libs.cli.slurm.job_requests import ALSO, IGNORED, options, refused, requested, with_flags
from libs.cli.slurm.options import NONE, Given, Option, Table, parse
from libs.cli.slurm.output_files import redirected
from libs.cli.slurm.requests import say, shown_id
from libs.client.profile import Profile, read_profile
from libs.common.errors import Refused

PROGRAM: Final = "sbatch"
# Flags of sbatch that this program honours itself, in scripts as well.
OWN: Final = (*ALSO, "output", "error", "open-mode", "parsable", "quiet", "wait", "test-only")
NAMES: Final = (*HONOURED, *OWN, *IGNORED)
TABLE: Final = Table(
    PROGRAM,
    (*options(NAMES), Option("wrap", ""), Option("ignore-pbs", "", NONE)),
    refused((*NAMES, "wrap")),
    SHORT,
    stops=True,
)
# Flags of scripts without which a job would start when or where it must not.
NEVER_DROPPED: Final = ("begin", "constraint", "deadline", "exclude", "input", "licenses")
SCRIPT_BYTES_MAX: Final = 4 << 20


def main(words: Sequence[str]) -> int:
    given = parse(TABLE, words)
    text, name, arguments = _script(given)
    script = with_flags(read_flags(text, name), given)
    command = [*command_of(text, name), *arguments]
    written = requested(script, command, name, os.environ)
    job = _with_output(script, written.job)
    quiet = given.has("quiet")
    for warning in () if quiet else written.warnings:
        say(PROGRAM, f"warning: {warning}")
    profile = read_profile()
    return _submit(profile, {"user": profile.user, **job}, given, script)


def read_flags(text: str, name: str) -> Script:
    """Return the flags of a script. Raises Refused for one that must not be dropped."""
    script = gathered(text, name, (*OWN, *NEVER_DROPPED))
    for flag in NEVER_DROPPED:
        if flag in script.flags:
            raise script.fault(flag, f"not supported: {TABLE.refused[flag]}")
    return script


def _script(given: Given) -> tuple[str, str, list[str]]:
    """Return the script's text, its name, and its arguments. Raises Refused."""
    if given.has("wrap"):
        if given.rest:
            raise Refused("--wrap and a script: give one of them")
        return f"#!/bin/sh\n{given.last('wrap')}\n", "wrap", []
    file = given.rest[0] if given.rest else ""
    try:
        text = _read(file)
    except UnicodeDecodeError as error:
        raise Refused(f"{file or 'the standard input'} is not a text file") from error
    except OSError as error:
        raise Refused(f"Unable to open file {file}: {error.strerror}") from error
    if not is_script(text):
        raise Refused(
            "This does not look like a batch script. The first line must start with #! followed by "
            "the path to an interpreter, for instance: #!/bin/sh"
        )
    return text, file or "sbatch", given.rest[1:]


def _read(file: str) -> str:
    data = Path(file).read_bytes() if file else sys.stdin.buffer.read(SCRIPT_BYTES_MAX + 1)
    if len(data) > SCRIPT_BYTES_MAX:
        raise Refused(f"the script is larger than {SCRIPT_BYTES_MAX >> 20} MiB: call a file in it")
    return data.decode()


def open_mode(text: str) -> str:
    """Return `append` or `truncate`; their first letters are accepted, as in Slurm."""
    found = [mode for mode in ("append", "truncate") if text and mode.startswith(text.lower())]
    if not found:
        raise ValueError("expected append or truncate")
    return found[0]


def _with_output(script: Script, job: dict[str, Any]) -> dict[str, Any]:
    """Return the job with -o and -e, and with the current directory."""
    out, err = (script.value(name, str, "") for name in ("output", "error"))
    append = script.value("open-mode", open_mode, "truncate") == "append"
    nodes = int(job.get("nodes_max") or job.get("nodes") or 1)
    command = redirected(job["command"], out, err, append=append, nodes=nodes)
    where = os.path.abspath(job.get("workdir") or "")
    placed = {} if job.get("image") and not job.get("workdir") else {"workdir": where}
    return {**job, "command": command, **placed}


def _submit(profile: Profile, job: dict[str, Any], given: Given, script: Script) -> int:
    dry_run = given.has("test-only") or "test-only" in script.flags
    query = {"dry_run": "true" if dry_run else None}
    answer = ask(profile, "POST", "/v1/jobs", query=query, body=job)
    for warning in answer.get("warnings") or ():
        say(PROGRAM, f"warning: {warning}")
    if dry_run:
        say(PROGRAM, "the job is valid; muster whatif says whether it would start now")
        return 0
    job_id = str(answer["id"])
    if given.has("parsable") or "parsable" in script.flags:
        print(shown_id(job_id), flush=True)
    elif not given.has("quiet"):
        print(f"Submitted batch job {shown_id(job_id)}", flush=True)
    if not (given.has("wait") or "wait" in script.flags):
        return 0
    from libs.cli.following.waiting import wait_for_end
    from libs.cli.jobs import exit_code_of

    return exit_code_of(wait_for_end(profile, job_id))
