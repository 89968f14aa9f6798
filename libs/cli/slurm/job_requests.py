"""The flags of sbatch, srun and salloc that describe a job, and the job that they make.

The values are read by `libs/cli/formats/sbatch.py`, as in a script. Pure. Tests:
tests/unit/test_slurm_jobs.py.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from libs.cli.formats.job_fields import Written
from libs.cli.formats.sbatch import job_of
from libs.cli.formats.sbatch_flags import ALONE, HONOURED, MAY_TAKE, NOT_HONOURED, SHORT
from libs.cli.formats.sbatch_script import Flag, Script
from libs.cli.slurm.ids import dependencies_of
from libs.cli.slurm.options import MAY, NONE, ONE, Given, Option
from libs.common.errors import Refused

Job = dict[str, Any]

# Flags that change nothing that the job could miss: they are accepted, with a warning.
IGNORED: Final = (
    "account", "qos", "mail-type", "mail-user", "comment", "wckey", "nice", "verbose",
    "get-user-env", "propagate", "no-kill", "use-min-nodes", "wait-all-nodes", "cpu-freq",
    "distribution", "profile", "hint",
)  # fmt: skip
ALL_SHORT: Final = {name: letter for letter, name in SHORT.items()}
# Flags of sbatch about the job that scripts may hold as well.
ALSO: Final = ("partition",)


def options(names: Sequence[str]) -> tuple[Option, ...]:
    """Return the flags with these names, with their letters."""
    return tuple(
        Option(
            name,
            ALL_SHORT.get(name, ""),
            NONE if name in ALONE else MAY if name in MAY_TAKE else ONE,
        )
        for name in names
    )


def refused(names: Sequence[str]) -> dict[str, str]:
    """Return what to use instead of the flags that are not among these."""
    return {name: text for name, text in NOT_HONOURED.items() if name not in names}


def with_flags(script: Script, given: Given) -> Script:
    """Put the flags of the command line over those of the script, as Slurm does.

    Raises Refused for a partition that is not one name.
    """
    for name, value in given.flags:
        if name in IGNORED:
            script.warn(0, f"--{name}: not honoured: {NOT_HONOURED.get(name, 'it has no effect')}")
        elif name in HONOURED or name in script.also:
            script.flags[name] = Flag(0, value)
    waits = script.flags.get("dependency")
    if waits:
        script.flags["dependency"] = waits._replace(value=dependencies_of(waits.value))
    return script


def requested(
    script: Script, command: Sequence[str], name: str, environ: Mapping[str, str]
) -> Written:
    """Return the job of the flags; a partition is a queue. Raises Refused."""
    written = job_of(script, command, name, environ)
    if queue := queue_of(script):
        written.job["queue"] = queue
    return written


def queue_of(script: Script) -> str:
    """Return the queue that --partition names, empty without one. Raises Refused for several."""
    found = script.words("partition")
    if len(found) > 1:
        raise Refused(
            f"--partition={','.join(found)}: give one queue; a job of Muster waits in one "
            "(muster queue list)"
        )
    return found[0] if found else ""
