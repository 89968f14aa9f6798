"""Models as the verbs show them, and the wait until one is ready."""

import time
from datetime import datetime
from typing import Any, Final

from libs.cli.flags.durations import age
from libs.cli.flags.limit_flags import in_words
from libs.cli.gateway import ask, model_path
from libs.cli.terminal.output import complain
from libs.cli.terminal.table import Column, state_colour
from libs.client.profile import Profile

Model = dict[str, Any]

POLL_EVERY_S: Final = 0.3
COLUMNS: Final = (
    Column("MODEL"),
    Column("STATE", colour_of=state_colour),
    Column("READY", right=True),
    Column("GPUS", right=True),
    Column("GEN", right=True),
    Column("TENANT"),
    Column("USER", flexible=True),
    Column("DEPLOYED", right=True),
    Column("CRASHES", right=True),
    Column("LAST CRASH", flexible=True),
)
REPLICA_COLUMNS: Final = (
    Column("REPLICA"),
    Column("STATE", colour_of=state_colour),
    Column("GEN", right=True),
    Column("NODE"),
    Column("ADDRESS"),
    Column("STARTED", right=True),
    Column("READY", right=True),
    Column("DETAIL", flexible=True),
)


SHARE_COLUMNS: Final = (
    Column("TENANT"),
    Column("PRIORITY"),
    Column("WEIGHT", right=True),
    Column("WAITING", right=True),
    Column("TOKENS WAITING", right=True),
    Column("TOKENS/MIN", right=True),
    Column("SHARE", right=True),
)


def row(model: Model, now: datetime) -> list[str]:
    """Return the cells of COLUMNS."""
    share = int(model.get("gpu_share") or 100)
    return [
        str(model["name"]),
        str(model["state"]),
        f"{model['ready']}/{model['wanted']}",
        f"{int(model['gpus']) * share / 100:g}",
        str(model["generation"]),
        str(model["tenant"]),
        str(model.get("user") or "-"),
        age(model.get("deployed_at"), now),
        str(model["crashes"]),
        str(model.get("last_crash") or ""),
    ]


def replica_row(replica: dict[str, Any], now: datetime) -> list[str]:
    """Return the cells of REPLICA_COLUMNS; the name is the one that `muster logs` accepts."""
    name, _, number = str(replica["id"]).rpartition("-")
    return [
        f"{name}/{number}",
        str(replica["state"]),
        str(replica["generation"]),
        _nodes(replica),
        f"{replica['address']}:{replica['port']}" if replica["address"] else "-",
        age(replica.get("started_at"), now),
        age(replica.get("ready_at"), now),
        str(replica.get("detail") or ""),
    ]


def _nodes(replica: dict[str, Any]) -> str:
    """Return the node that answers, and how many more the replica has."""
    more = len(replica.get("nodes") or ()) - 1
    return f"{replica['node_id']} +{more}" if more > 0 else str(replica["node_id"] or "-")


def names_line(model: Model) -> str:
    """Return the names that requests may use besides the model's own; empty if there are none."""
    return ", ".join(name for name in (*model.get("aliases", ()), model.get("served_name")) if name)


def adapters_line(model: Model) -> str:
    """Return the model's LoRA adapters and the rules for them; empty if it takes none."""
    rules = model.get("adapters")
    names = ", ".join(model.get("adapter_names", ()))
    if rules is None:
        return names
    where = f"below {rules['root']}, " if rules["root"] else ""
    bounds = f"{where}at most {rules['resident_max']} at each replica, api {rules['api']}"
    return f"{names or 'none yet'} ({bounds})"


def guests_line(model: Model) -> str:
    """Return the tenants that the model is shared with, in words."""
    guests = model.get("shared_with", [])
    return "with all tenants" if "*" in guests else f"with {', '.join(guests)}"


def limits_line(model: Model) -> str:
    """Return the limits of tenants at the model in words; empty if there are none."""
    limits = model.get("limits") or {}
    return "; ".join(
        f"{'each other guest' if tenant == '*' else tenant} {in_words(found)}"
        for tenant, found in limits.items()
    )


def queue_line(queue: dict[str, Any]) -> str:
    """Return a line about the requests that wait in the gateway."""
    count = int(queue["waiting_requests"])
    requests = "1 request waits" if count == 1 else f"{count} requests wait"
    return f"{requests} with {queue['waiting_tokens']} input tokens (in this gateway)"


def batching_line(bounds: dict[str, Any]) -> str:
    """Return the bounds of a model's batches."""
    return f"at most {bounds['items_max']} inputs, gathered for {bounds['wait_ms']} ms"


def scaling_line(targets: dict[str, Any]) -> str:
    """Return the bounds and targets of a model that scales."""
    wanted = [
        f"first token in {targets['first_token_ms']} ms" if targets["first_token_ms"] else "",
        f"{targets['per_token_ms']} ms a token" if targets["per_token_ms"] else "",
        f"{targets['concurrency']} requests a replica" if targets["concurrency"] else "",
    ]
    bounds = f"{targets['replicas_min']} to {targets['replicas_max']} replicas"
    return f"{bounds}; {', '.join(filter(None, wanted))}"


def share_row(share: dict[str, Any]) -> list[str]:
    """Return the cells of SHARE_COLUMNS."""
    return [
        str(share["tenant"]),
        str(share["priority"]),
        str(share["weight"]),
        str(share["waiting_requests"]),
        str(share["waiting_tokens"]),
        str(share["tokens"]),
        f"{share['percent']} %",
    ]


def wait_until_ready(profile: Profile, name: str) -> int:
    """Wait for all replicas of a model. Return 0 if they are ready, 1 if they crash or stop."""
    while True:
        model = ask(profile, "GET", model_path(name))
        state = str(model["state"])
        if state == "ready":
            return 0
        if state in ("crash_looping", "stopping", "undeployed"):
            complain(f"model {name} is {state}: {model.get('last_crash') or 'it was undeployed'}")
            return 1
        time.sleep(POLL_EVERY_S)
