"""The model flags of `muster deploy` and `muster redeploy`.

They become the JSON body of /v1/deployments. The command sends only flags that were given: the
gateway's defaults, or on a redeployment the current values, apply to the rest.
"""

import os
import re
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

import click

from libs.cli.flags import container_flags, placement_flags
from libs.cli.flags.durations import DURATION
from libs.cli.flags.jobflags import pairs, secrets, was_given
from libs.cli.flags.numbers import Milliseconds, Number, parse_replicas
from libs.common.adapters import APIS
from libs.common.model import SPREADS

F = TypeVar("F", bound=Callable[..., Any])
# Flags that become fields of `batching`.
BATCHING: Final = {"batch_max": "items_max", "batch_wait_ms": "wait_ms"}
# Flags that become fields of `adapters`.
ADAPTERS: Final = {"adapters_root": "root", "adapter_api": "api", "adapters_max": "resident_max"}
# Flags that become fields of `scaling`.
SCALING: Final = ("first_token_ms", "per_token_ms", "concurrency", "idle_s")
_DEFAULT: Final = re.compile(r" \(default(: [^)]*)?\)")

_FLAGS = (
    click.option(
        "-r",
        "--replicas",
        metavar="N|MIN..MAX",
        help=(
            "Number of replicas (default: 1), or bounds such as 0..8 within which the scheduler "
            "chooses the number by the load. With the lower bound 0, an idle model has no replica, "
            "and the next request waits until one has started."
        ),
    ),
    click.option(
        "--target-ttft",
        "first_token_ms",
        type=Milliseconds(),
        help=(
            "With --replicas MIN..MAX: time within which 90 % of requests should get their first "
            "token, for example 500ms."
        ),
    ),
    click.option(
        "--target-tpot",
        "per_token_ms",
        type=Milliseconds(),
        help="With --replicas MIN..MAX: target time per output token, for example 40ms.",
    ),
    click.option(
        "--target-concurrency",
        "concurrency",
        type=click.IntRange(1),
        metavar="N",
        help="With --replicas MIN..MAX: target number of concurrent requests at one replica.",
    ),
    click.option(
        "--idle",
        "idle_s",
        type=DURATION,
        help=(
            "With --replicas 0..MAX: stop the last replica after this time without requests "
            "(default: 5m)."
        ),
    ),
    click.option(
        "--served-name",
        metavar="NAME",
        help=(
            "Name by which the server knows the model, for example Qwen/Qwen2.5-7B; requests may "
            "use it too (default: the name of the deployment)."
        ),
    ),
    click.option(
        "--batch-max",
        type=click.IntRange(1),
        metavar="N",
        help=(
            "Combine waiting requests for embeddings and completions (not streams) into one "
            "request of at most N inputs. For servers that process one request at a time."
        ),
    ),
    click.option(
        "--batch-wait",
        "batch_wait_ms",
        type=Milliseconds(),
        help="With --batch-max: time that a request waits for other requests (default: 5ms).",
    ),
    click.option(
        "--continue-streams/--no-continue-streams",
        "continues_streams",
        default=None,
        help=(
            "If a replica dies, continue its streams of text at another replica. The server must "
            "be able to continue an unfinished message of the assistant, as vLLM, SGLang and "
            "llama.cpp can."
        ),
    ),
    click.option(
        "--adapters-root",
        metavar="DIR",
        help=(
            "Allow LoRA adapters (muster adapter add) from folders below DIR. DIR is a path in "
            "the file system that the replica's server sees."
        ),
    ),
    click.option(
        "--adapter-api",
        type=click.Choice(APIS),
        help=(
            "How Muster loads adapters: by the interface of vLLM (default) or SGLang, or not at "
            "all (none), because the server has loaded them itself."
        ),
    ),
    click.option(
        "--adapters-max",
        type=click.IntRange(1),
        metavar="N",
        help="Maximum number of adapters that a replica loads at one time (default: 8).",
    ),
    click.option(
        "-g",
        "--gpus",
        type=int,
        metavar="N",
        help="GPUs of each replica on each of its nodes (default: 1).",
    ),
    click.option(
        "-N",
        "--nodes",
        type=click.IntRange(1),
        metavar="N",
        help=(
            "Nodes of each replica (default: 1). The command runs on all of them, with RANK and "
            "MASTER_ADDR. The process with rank 0 must answer on {port}."
        ),
    ),
    click.option(
        "--fraction",
        type=Number(),
        metavar="F",
        help="Fraction of each GPU, 0.01 to 1.0 (default: 1.0).",
    ),
    click.option(
        "--health-path",
        metavar="PATH",
        help="HTTP path that answers GET with 2xx when the replica can serve (default: /health).",
    ),
    click.option(
        "--health-interval",
        "health_interval_s",
        type=DURATION,
        help="Time between two health probes of a ready replica (default: 5s).",
    ),
    click.option(
        "--health-timeout",
        "health_timeout_s",
        type=DURATION,
        help="Time to answer a health probe (default: MUSTER_PROBE_MS, 2s).",
    ),
    click.option(
        "--health-failures",
        type=int,
        metavar="N",
        help="Failed probes in a row that make a replica unready (default: 3).",
    ),
    click.option(
        "--startup-timeout",
        "startup_timeout_s",
        type=DURATION,
        help="Time within which a new replica must be ready (default: 10m).",
    ),
    click.option(
        "-e",
        "--env",
        multiple=True,
        metavar="K=V",
        help=(
            "Set an environment variable. K alone copies the value from your environment "
            "(repeatable)."
        ),
    ),
    click.option(
        "-l",
        "--label",
        "labels",
        multiple=True,
        metavar="K=V",
        help="Add a label (repeatable).",
    ),
    click.option(
        "--secret",
        "secrets",
        multiple=True,
        metavar="NAME[=ENV]",
        help=(
            "Set the environment variable ENV to a secret of your tenant. ENV defaults to NAME in "
            "upper case (repeatable)."
        ),
    ),
    container_flags.IMAGE,
    container_flags.ENTRYPOINT,
    *container_flags.OPTIONS,
    click.option(
        "--start",
        "start_s",
        type=DURATION,
        help=(
            "Time within which the process of a placed replica must run. This includes the pull "
            "of its image (default: 30s)."
        ),
    ),
    click.option(
        "-C",
        "--workdir",
        metavar="DIR",
        help="Working directory on the node (default: the home directory).",
    ),
    click.option(
        "--upload",
        metavar="DIR",
        help=(
            "Upload this directory and run the replicas in it. Files that .musterignore (or "
            ".gitignore) names are not uploaded."
        ),
    ),
    click.option(
        "-p",
        "--priority",
        type=int,
        metavar="N",
        help="Priority, 0 to 100; a higher one starts first (default: 50).",
    ),
    click.option(
        "--grace",
        "grace_s",
        type=DURATION,
        help=(
            "Time to finish open answers before SIGTERM, and again between SIGTERM and SIGKILL "
            "(default: 10s)."
        ),
    ),
    click.option(
        "--spread",
        type=click.Choice(SPREADS),
        help=(
            "Prefer to place replicas on different nodes (default) or in different racks, or "
            "place them anywhere (none)."
        ),
    ),
    click.option(
        "--wait",
        is_flag=True,
        help="Return when all replicas are ready, or with exit code 1 if they crash.",
    ),
    *placement_flags.NODE_FLAGS,
)


def model_flags(verb: F) -> F:
    """Add every model flag to a verb that takes `**values`."""
    for flag in reversed(_FLAGS):
        verb = flag(verb)
    return verb


def redeployment_flags(verb: F) -> F:
    """Add every model flag, without defaults in the help: a flag that is not given keeps the
    model's current value.
    """
    verb = model_flags(verb)
    for option in vars(verb)["__click_params__"]:
        if isinstance(option, click.Option):
            option.help = _DEFAULT.sub("", option.help or "")
    return verb


def _replicas(body: dict[str, Any]) -> dict[str, Any]:
    """Take the flags of replicas out of `body`; return them as `replicas` or `scaling`."""
    text = body.pop("replicas", None)
    targets = {name: body.pop(name) for name in SCALING if name in body}
    try:
        number, most = parse_replicas(text) if text is not None else (0, None)
    except ValueError as error:
        raise click.UsageError(f"--replicas: {error}") from None
    if most is not None:
        return {"scaling": {"replicas_min": number, "replicas_max": most, **targets}}
    if targets:
        raise click.UsageError(
            "--target-ttft, --target-tpot, --target-concurrency and --idle need bounds: give for "
            "example --replicas 0..8"
        )
    return {"replicas": number} if text is not None else {}


def _batching(body: dict[str, Any]) -> dict[str, Any]:
    """Take the flags of batches out of `body`; return them as `batching`."""
    given = {field: body.pop(flag) for flag, field in BATCHING.items() if flag in body}
    if given and "items_max" not in given:
        raise click.UsageError("--batch-wait needs --batch-max: give for example --batch-max 32")
    return {"batching": given} if given else {}


def _adapters(body: dict[str, Any]) -> dict[str, Any]:
    """Take the flags of adapters out of `body`; return them as `adapters`."""
    given = {field: body.pop(flag) for flag, field in ADAPTERS.items() if flag in body}
    if given and "root" not in given and given.get("api") != "none":
        raise click.UsageError(
            "--adapter-api and --adapters-max need --adapters-root: give for example "
            "--adapters-root /models/lora"
        )
    return {"adapters": given} if given else {}


def model_body(command: Iterable[str], user: str, values: dict[str, Any]) -> dict[str, Any]:
    """Return the body for /v1/deployments from the values of the flags.

    `upload` is still a directory; `uploading.with_upload` replaces it. Raises UsageError for an
    invalid K=V.
    """
    body = {name: value for name, value in values.items() if was_given(name, value)}
    body |= _replicas(body) | _batching(body) | _adapters(body)
    words = list(command)
    if words:
        body["command"] = words
    if values["env"]:
        body["env"] = pairs(values["env"], "--env", os.environ.get)
    if values["secrets"]:
        body["secrets"] = secrets(values["secrets"])
    for name, flag in {"labels": "--label", **placement_flags.PAIRS}.items():
        if name in body:
            body[name] = pairs(values[name], flag)
    return container_flags.with_container({**body, "user": user})
