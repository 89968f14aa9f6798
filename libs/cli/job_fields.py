"""What a job may ask for, as people write it: the keys of a job file, and what each must be.

The gateway checks meaning (ranges, what fits together); this table checks form, where the line is still known.
`jobfile.py` reads these from YAML, `jobflags.py` from flags; both give the same JSON for POST /v1/jobs.
"""

from typing import Final, NamedTuple

TEXT: Final = "a text"
WHOLE: Final = "a whole number"
NUMBER: Final = "a number"
TRUTH: Final = "true or false"
TEXTS: Final = "a mapping of names to texts"
COMMAND: Final = "a list of arguments, or a text for /bin/sh -c"
DURATION: Final = "a duration such as 90, 1h30m or 1-12:00:00"


class Field(NamedTuple):
    """`wire` is the name in the gateway's JSON."""

    form: str
    wire: str


FIELDS: Final[dict[str, Field]] = {
    "command": Field(COMMAND, "command"),
    "name": Field(TEXT, "name"),
    "workdir": Field(TEXT, "workdir"),
    "env": Field(TEXTS, "env"),
    "secrets": Field(TEXTS, "secrets"),
    "nodes": Field(WHOLE, "nodes"),
    "gpus": Field(WHOLE, "gpus"),
    "fraction": Field(NUMBER, "fraction"),
    "gpu_share": Field(WHOLE, "gpu_share"),
    "priority": Field(WHOLE, "priority"),
    "time_limit": Field(DURATION, "time_limit_s"),
    "time_limit_s": Field(WHOLE, "time_limit_s"),
    "start": Field(DURATION, "start_s"),
    "start_s": Field(WHOLE, "start_s"),
    "grace": Field(DURATION, "grace_s"),
    "grace_s": Field(WHOLE, "grace_s"),
    "retries": Field(WHOLE, "retries"),
    "requeue": Field(TRUTH, "requeue"),
    "stdin": Field(TRUTH, "stdin"),
    "labels": Field(TEXTS, "labels"),
    "output_limit_bytes": Field(WHOLE, "output_limit_bytes"),
    "reject_if_impossible": Field(TRUTH, "reject_if_impossible"),
    "on_control_loss": Field(TEXT, "on_control_loss"),
    "user": Field(TEXT, "user"),
}

SHELL: Final = ("/bin/sh", "-c")
