"""The order to a supervisor: the one message from the agent to the zygote, checked before any fork.

A frame is a four-byte big-endian length and that many bytes of JSON. An order contains the job's
whole environment with its secrets, so it is never written to disk. Tests:
tests/integration/test_supervision_child.py.
"""

import json
import os
import re
from typing import Any, TypedDict, cast

from services.node_agent.machine.cgroups import Limits

MAX_FRAME_BYTES = 4 * 1024 * 1024
MAX_ARGUMENTS = 32_768
# The room in guard.c.
MAX_IDS = 1_026
FRAME_PREFIX_BYTES = 4
JOB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")


class Order(TypedDict):
    """The order to run one attempt. Paths are absolute.

    `env` is the full environment. `output_limit_bytes` bounds stdout and stderr on disk, each.
    `account` is the user, its group and its further groups; empty for the agent's own user.
    `elements` is empty, or says which elements of a short array the attempt runs: their `numbers`,
    the place of the `first` to run, the variables with these `names` for a number, and each
    element's `limit_s` and `grace_s`.
    """

    job_id: str
    attempt: int
    rank: int
    argv: list[str]
    env: dict[str, str]
    workdir: str
    job_dir: str
    lease_path: str
    agent_socket: str
    stdin: bool
    output_limit_bytes: int
    ignore_lease: bool
    limits: Limits
    account: list[int]
    elements: dict[str, Any]


KINDS: dict[str, type] = {
    "job_id": str,
    "attempt": int,
    "rank": int,
    "argv": list,
    "env": dict,
    "workdir": str,
    "job_dir": str,
    "lease_path": str,
    "agent_socket": str,
    "stdin": bool,
    "output_limit_bytes": int,
    "ignore_lease": bool,
    "limits": dict,
    "account": list,
    "elements": dict,
}


KINDS_IN_ORDER = [*KINDS.values()]
ELEMENT_KINDS: dict[str, type] = {
    "numbers": list,
    "first": int,
    "names": list,
    "limit_s": int,
    "grace_s": int,
}


def parse(frame: bytes) -> Order:
    """Return the order of a frame. Raises ValueError, which names the field that cannot be run."""
    try:
        raw = json.loads(frame)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the order is not JSON: {error}") from None
    return checked(raw)


def checked(raw: object) -> Order:
    """Return the order of decoded data; see `parse`."""
    if not isinstance(raw, dict):
        raise ValueError("the order is not a JSON object")
    raw.setdefault("elements", {})
    _check_kinds(raw)
    check_job_id(raw["job_id"])
    _check_texts("argv", raw["argv"])
    if not raw["argv"] or len(raw["argv"]) > MAX_ARGUMENTS or not raw["argv"][0]:
        raise ValueError(f"argv must name a command and hold at most {MAX_ARGUMENTS} arguments")
    _check_environment(raw["env"])
    _check_texts("workdir", [raw["workdir"]])
    _check_account(raw["account"])
    _check_elements(raw["elements"])
    return cast(Order, raw)


def frame_of(message: object) -> bytes:
    """Return the frame of a message. Raises ValueError if it is larger than the zygote accepts."""
    body = json.dumps(message).encode()
    if len(body) > MAX_FRAME_BYTES:
        raise ValueError(
            f"the order has {len(body)} bytes, more than {MAX_FRAME_BYTES}: pass large data by file"
        )
    return framed(body)


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(FRAME_PREFIX_BYTES, "big") + body


def check_job_id(job_id: str) -> None:
    """Check a job id. It is part of a path, so it must not contain what a path could misread."""
    if JOB_ID.fullmatch(job_id) is None:
        raise ValueError(f"job_id {job_id!r} does not match {JOB_ID.pattern}")


def _check_kinds(raw: dict[str, Any]) -> None:
    if [*map(type, map(raw.get, KINDS))] == KINDS_IN_ORDER:
        return
    for name, kind in KINDS.items():
        if name not in raw:
            raise ValueError(f"the order lacks {name}")
        if type(raw[name]) is not kind:
            raise ValueError(f"{name} must be {kind.__name__}, not {type(raw[name]).__name__}")


def _check_account(ids: list[Any]) -> None:
    if ids and (
        len(ids) not in range(2, MAX_IDS + 1)
        or any(type(each) is not int or each < 0 for each in ids)
    ):
        raise ValueError(
            f"account must be a user, its group and at most {MAX_IDS - 2} more groups, by number"
        )


def _check_elements(given: dict[str, Any]) -> None:
    if not given:
        return
    kinds = {name: type(given.get(name)) for name in ELEMENT_KINDS}
    if kinds != ELEMENT_KINDS or not 0 <= given["first"] < len(given["numbers"]):
        raise ValueError(f"elements must have {', '.join(ELEMENT_KINDS)}, and one to run")
    if any(type(number) is not int for number in given["numbers"]):
        raise ValueError("elements must have whole numbers")
    _check_texts("elements", given["names"])


def _check_texts(name: str, values: list[Any]) -> None:
    try:
        text = "".join(values)
    except TypeError:
        text = "\0"
    if "\0" in text:
        raise ValueError(f"{name} must hold text without NUL bytes")
    os.fsencode(text)  # raises ValueError for text that no argument or variable can carry


def _check_environment(env: dict[str, Any]) -> None:
    _check_texts("env", [*env, *env.values()])
    if "" not in env and "=" not in "".join(env):
        return
    for name in env:
        if not name or "=" in name:
            raise ValueError(f"env has a variable named {name!r}")
