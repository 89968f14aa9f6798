"""Requests about jobs: submission, what-if, cancellation, and declaring a node dead.

Pure. Refusals are `errors.Refused`; the text names the field and the remedy. This file owns the
bounds of a job's fields. The scheduler decides whether the job fits the cluster, and quota decides
whether its tenant may run it. Tests: tests/unit/test_gateway_intents.py.
"""

import re
import signal
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from libs.common import model, placeholders
from libs.common.errors import Refused
from libs.common.facts import CancelRequested, JobSubmitted, NodeDeclaredDead, check_fact_size
from libs.common.messages import NewNodes
from libs.common.model import JobId, JobSpec, TenantId
from libs.common.state.cluster import Cancel, Job, Node
from services.api_gateway.intents import (
    container_fields,
    order_intents,
    placement_fields,
    policy_fields,
    pool_fields,
    preemption_fields,
    pulled_fields,
    short_arrays,
)
from services.api_gateway.intents.fields import check_known, check_range, convert, names_of
from services.api_gateway.secrets import plain_secrets
from services.api_gateway.times import duration_s

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
USER: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9@._-]{0,127}")
LABEL: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,127}")
ENV_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,255}")
LABELS_MAX: Final = 64
ENV_MAX: Final = 512
# The longest path that Linux accepts.
WORKDIR_BYTES_MAX: Final = 4_095
YEAR_S: Final = 366 * 86_400
DAY_S: Final = 86_400
RETRIES_MAX: Final = 1_000
OUTPUT_BYTES_MIN: Final = 4 << 10
OUTPUT_BYTES_MAX: Final = 1 << 40
CONTROL_LOSS: Final = (model.STOP, model.CONTINUE)
SIGNAL_MAX: Final = 64
COMMAND_EXAMPLE: Final = 'give a list of words, for example ["python", "train.py"]'

# Users cannot submit `serve` (set by the scheduler on replicas) or `allocation` (see
# `allocation_intents.py`).
SUBMIT_FIELDS: Final = (
    *(name for name in names_of(JobSpec) if name not in ("serve", "allocation")),
    "user",
    "user_id",
    "fraction",
    "time_limit",
    "max_execution_time",
    "hang_timeout",
    *placement_fields.ALIASES,
    *order_intents.ALIASES,
    *preemption_fields.DURATIONS,
)
WHAT_IF_FIELDS: Final = (*SUBMIT_FIELDS, "add_nodes")
NEW_NODES_MAX: Final = 100
DEAD_FIELDS: Final = ("user",)
CANCEL_FIELDS: Final = ("signal", "grace_s", "user")
_DURATIONS: Final = ("time_limit_s", "start_s", "grace_s", "hang_timeout_s")
RANGES: Final = (
    ("nodes", 1, model.NODES_MAX),
    ("nodes_max", 0, model.NODES_MAX),
    ("gpus", 0, model.GPUS_PER_NODE_MAX),
    ("gpu_share", 1, model.WHOLE_GPU),
    ("priority", 0, model.PRIORITY_MAX),
    ("time_limit_s", 0, YEAR_S),
    ("hang_timeout_s", 0, YEAR_S),
    ("start_s", 1, DAY_S),
    ("grace_s", 0, DAY_S),
    ("retries", 0, RETRIES_MAX),
    ("output_limit_bytes", OUTPUT_BYTES_MIN, OUTPUT_BYTES_MAX),
    *placement_fields.RANGES,
    *order_intents.RANGES,
    *preemption_fields.RANGES,
)


class _AddNodes(msgspec.Struct, forbid_unknown_fields=True):
    """The body's `add_nodes`, wrapped so that a validation error names the field."""

    add_nodes: NewNodes


def submission(body: object, job_id: JobId) -> JobSubmitted:
    """Return the fact for `POST /v1/jobs`. Raises Refused."""
    values = body_fields(body, SUBMIT_FIELDS)
    user = take_user(values)
    for name in _DURATIONS:
        if name in values:
            values[name] = duration_s(values[name], name)
    take_alias(values, "time_limit", "time_limit_s", duration_s)
    take_alias(values, "max_execution_time", "time_limit_s", duration_s)
    take_alias(values, "hang_timeout", "hang_timeout_s", duration_s)
    take_alias(values, "fraction", "gpu_share", share_hundredths)
    pool_fields.refuse_zero(values)
    placement_fields.take_aliases(values)
    order_intents.take_aliases(values)
    preemption_fields.take_aliases(values, _signal_number)
    policy_fields.take_policy(values)
    container_fields.take(values)
    if container_fields.may_be_empty(values):
        values.setdefault("command", ())
    if isinstance(values.get("command"), str):
        raise Refused(f"command: expected a list, got a text: {COMMAND_EXAMPLE}")
    spec = convert(values, JobSpec) if "command" in values else _no_command()
    check_spec(spec)
    fact = JobSubmitted(job_id=job_id, spec=spec, user=user)
    check_fact_size(fact)
    return fact


def what_if(body: object, tenant: TenantId) -> tuple[JobSubmitted, NewNodes | None]:
    """Return the tenant's job and the added nodes of `POST /v1/whatif`. Raises Refused."""
    values = body_fields(body, WHAT_IF_FIELDS)
    given = values.pop("add_nodes", None)
    job = replace(submission(values, JobId("whatif")), tenant=tenant)
    if given is None:
        return job, None
    add = convert({"add_nodes": given}, _AddNodes).add_nodes
    check_range("add_nodes.nodes", add.nodes, 1, NEW_NODES_MAX)
    check_range("add_nodes.gpus", add.gpus, 1, model.GPUS_PER_NODE_MAX)
    return job, add


def cancellation(body: object, job: Job) -> CancelRequested | None:
    """Return the fact for `POST .../cancel`; None if it changes nothing. Raises Refused."""
    values = body_fields({} if body is None else body, CANCEL_FIELDS)
    user = take_user(values)
    grace_s = duration_s(values.get("grace_s", job.spec.grace_s), "grace_s")
    check_range("grace_s", grace_s, 0, DAY_S)
    number = _signal_number(values.get("signal", "TERM"))
    if (
        job.cancel is not None
        and job.cancel <= Cancel(grace_s, number, user)
        and not job.drain_until_ns
    ):
        return None
    return CancelRequested(job_id=job.job_id, signal=number, grace_s=grace_s, user=user)


def death_declaration(body: object, node: Node) -> NodeDeclaredDead | None:
    """Return the fact for `POST /v1/nodes/{id}/dead`; None if already recorded. Raises Refused.

    For a node that is not lost yet it is recorded each time (`node_fold.declared_dead`).
    """
    user = take_user(body_fields({} if body is None else body, DEAD_FIELDS))
    if (node.incarnation, node.lost) == node.word and not node.usable:
        return None
    return NodeDeclaredDead(
        node_id=node.node_id, incarnation=node.incarnation, lost=node.lost, user=user
    )


def body_fields(body: object, known: tuple[str, ...]) -> dict[str, Any]:
    """Return the fields of a JSON object. Raises Refused for another value or an unknown field."""
    if not isinstance(body, dict):
        raise Refused("the request body must be a JSON object")
    check_known(body, known, "field")
    return dict(body)


def take_user(values: dict[str, Any]) -> str:
    """Remove `user` from the fields and return it; empty if absent. Raises Refused."""
    user = values.pop("user", "")
    if user != "" and not (isinstance(user, str) and USER.fullmatch(user)):
        raise Refused(f"user: {user!r} is not valid: use letters, digits and @._- (at most 128)")
    return str(user)


def take_alias(values: dict[str, Any], alias: str, name: str, read: Any) -> None:  # noqa: ANN401  (object, str) -> int
    """Replace the field `alias` by `name`, with its value read by `read`. Raises Refused."""
    if alias not in values:
        return
    if name in values:
        raise Refused(f"{alias}: {name} is given too, and both mean the same: give one of them")
    values[name] = read(values.pop(alias), alias)


def share_hundredths(value: object, field: str) -> int:
    """Return a part of a GPU in whole hundredths: 25 for 0.25. Raises Refused."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0.0 < value <= 1.0:
        share = round(value * model.WHOLE_GPU)
        if share > 0 and abs(share - value * model.WHOLE_GPU) < 1e-6:
            return share
    raise Refused(f"{field}: {value!r} is not a part of a GPU: give 0.01 to 1.0 in steps of 0.01")


def _no_command() -> JobSpec:
    raise Refused(f"command: missing: {COMMAND_EXAMPLE}")


def check_spec(spec: JobSpec) -> None:
    """Check every field of a job. Raises Refused.

    Numbers and total size are checked first, so that patterns are matched against bounded text.
    """
    for name, low, high in RANGES:
        check_range(name, getattr(spec, name), low, high)
    placement_fields.check_capability(spec.compute_capability_min)
    check_fact_size(JobSubmitted(job_id=JobId(""), spec=spec))
    if 0 < spec.nodes_max < spec.nodes:
        raise Refused(
            f"nodes_max: {spec.nodes_max} is less than nodes ({spec.nodes}): give at least "
            f"{spec.nodes}, or leave it out"
        )
    if spec.most_nodes * spec.gpus > model.DEVICES_MAX:
        raise Refused(
            f"nodes: {spec.most_nodes} nodes with {spec.gpus} GPUs each are "
            f"{spec.most_nodes * spec.gpus} GPUs, and one job may have {model.DEVICES_MAX}: ask "
            "for fewer nodes or GPUs, or submit several jobs"
        )
    if spec.preflight and spec.most_nodes < 2:
        raise Refused(
            f"preflight: it measures links between the nodes of a job, and this one has nodes: "
            f"{spec.nodes}: give at least 2 nodes, or leave preflight out"
        )
    placement_fields.check_placement(spec)
    pool_fields.check(spec)
    preemption_fields.check(spec)
    short_arrays.check(spec)
    if spec.command or spec.container is None:
        check_command(spec.command)
    check_environment(spec.env)
    pulled_fields.check(spec.command, spec.env, spec.image)
    check_labels(spec.labels)
    if spec.name and not NAME.fullmatch(spec.name):
        raise Refused(
            f"name: {spec.name!r} is not valid: begin with a letter or digit, then use letters, "
            "digits and ._- (at most 128 characters)"
        )
    check_workdir(spec.workdir)
    container_fields.check(spec)
    if spec.upload and spec.workdir:
        raise Refused(
            "workdir: upload is given too, and the uploaded directory is the job's working "
            "directory: give one of them"
        )
    if spec.on_control_loss not in CONTROL_LOSS:
        raise Refused(
            f"on_control_loss: {spec.on_control_loss!r} is not known: leave it out, or give "
            f"{' or '.join(CONTROL_LOSS)}"
        )


def check_workdir(workdir: str) -> None:
    if workdir and (not workdir.startswith("/") or "\0" in workdir):
        raise Refused(
            f"workdir: {workdir[:64]!r} is not an absolute path: write for example /srv/project"
        )
    if len(workdir.encode(errors="replace")) > WORKDIR_BYTES_MAX:
        raise Refused(
            f"workdir: {workdir[:64]!r}... is too long: give a path of at most "
            f"{WORKDIR_BYTES_MAX} bytes"
        )


def check_command(command: tuple[str, ...]) -> None:
    if not command or not command[0]:
        raise Refused(f"command: empty: {COMMAND_EXAMPLE}")
    if any("\0" in word for word in command):
        raise Refused(
            "command: a word contains a NUL byte, and programs cannot receive one: remove it"
        )
    if what := plain_secrets.in_command(command):
        raise Refused(
            f"command: {what} looks like a secret, and the log keeps commands for ever: store it "
            "with `muster secret set NAME`, submit with --secret NAME=VARIABLE, and use "
            '"$VARIABLE" in a command of sh -c'
        )


def check_environment(env: dict[str, str]) -> None:
    if len(env) > ENV_MAX:
        raise Refused(f"env: {len(env)} variables are too many: give at most {ENV_MAX}")
    for name, value in env.items():
        if not ENV_NAME.fullmatch(name) or "\0" in value:
            raise Refused(
                f"env: {name[:64]!r} is not a valid variable: use letters, digits and _ in the "
                "name, and no NUL byte in the value"
            )
        if value in ("", placeholders.KEY):  # the agent puts the replica's own key there
            continue
        if plain_secrets.SECRET_NAME.search(name) or plain_secrets.in_text(value):
            raise Refused(
                f"env: {name[:64]} looks like a secret, and the log keeps env for ever: store it "
                f"with `muster secret set NAME` and submit with --secret NAME={name[:64]}"
            )


def check_labels(labels: dict[str, str]) -> None:
    if len(labels) > LABELS_MAX:
        raise Refused(f"labels: {len(labels)} are too many: give at most {LABELS_MAX}")
    for name, value in labels.items():
        if not LABEL.fullmatch(name) or (value and not LABEL.fullmatch(value)):
            raise Refused(
                f"labels: {name[:64]!r} is not valid: begin name and value with a letter or "
                "digit, then use letters, digits and ._/- (at most 128 characters)"
            )


def _signal_number(value: object) -> int:
    """Return the number of a signal given as 15, "15", "TERM" or "SIGTERM". Raises Refused."""
    number = isinstance(value, str) and value.isascii() and value.isdigit()
    if isinstance(value, str) and not number:
        name = value.upper().removeprefix("SIG")
        found = signal.Signals.__members__.get(f"SIG{name}")
        if found is not None:
            return int(found)
    elif (
        isinstance(value, int | str)
        and not isinstance(value, bool)
        and len(str(value)) <= 2
        and 1 <= int(value) <= SIGNAL_MAX
    ):
        return int(value)
    raise Refused(
        f"signal: {value!r} is not known: give a number from 1 to {SIGNAL_MAX} or a name "
        "such as TERM"
    )
