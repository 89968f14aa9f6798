"""`muster model`: pulled copies, resident data, aliases and guests of models."""

import os
from typing import Any, Final

import click

from libs.cli.flags.limit_flags import given, limit_flags
from libs.cli.flags.sizes import parse_size, show_size
from libs.cli.gateway import ask, model_path
from libs.cli.pulled_models import pull, pulled, unpull
from libs.cli.terminal.output import listed, print_table, print_value
from libs.cli.terminal.table import Column, state_colour
from libs.client.profile import read_profile
from libs.common.errors import Refused
from libs.common.life.kept_life import TIERS

COLUMNS: Final = (
    Column("MODEL"),
    Column("TIER"),
    Column("NODE"),
    Column("STATE", colour_of=state_colour),
    Column("SIZE", right=True),
    Column("SAVES", right=True),
    Column("DETAIL", flexible=True),
)


@click.group(short_help="Pull models to nodes and keep their data there; name and share models.")
def command() -> None:
    """Pull models to nodes and keep their data there; name and share models."""


for each_verb in (pull, pulled, unpull):
    command.add_command(each_verb)


@command.command()
@click.argument("name")
@click.option(
    "--tier",
    type=click.Choice(TIERS),
    required=True,
    help=(
        "What to keep: compile products on disk (artefact), weight files in memory (host), loaded "
        "weights on the devices (gpu), or a second engine beside each replica (standby)."
    ),
)
@click.option("--node", "node_list", multiple=True, metavar="NODE", help="Keep it on this node.")
@click.option(
    "--nodes",
    type=click.IntRange(0),
    metavar="N",
    help="Keep it on N nodes that the scheduler chooses. Default: the nodes of the replicas.",
)
@click.option(
    "--weights",
    metavar="PATH",
    help="Folder with the model's weight files on each node, for example /models/llama.",
)
@click.option(
    "--sha256sums",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="Output of sha256sum in that folder: only this checkpoint is accepted.",
)
@click.option(
    "--size",
    metavar="SIZE",
    help=(
        "Memory of each device that the weights (gpu) or a standby may use, for example 20G. "
        "Default for a standby: 3G."
    ),
)
def keep(
    name: str,
    tier: str,
    node_list: tuple[str, ...],
    nodes: int | None,
    weights: str | None,
    sha256sums: str | None,
    size: str | None,
) -> None:
    """Keep data of a model on nodes, so that its next replica starts faster.

    \b
    muster model keep chat --tier artefact
    muster model keep chat --tier host --weights /models/llama --nodes 2
    muster model keep chat --tier gpu --weights /models/llama --size 20G
    muster model keep chat --tier standby
    """
    profile = read_profile()
    body: dict[str, Any] = {
        "nodes": nodes,
        "node_list": list(node_list) or None,
        "weights": weights,
        "files": _read_sums(sha256sums) if sha256sums else None,
        "size_bytes": _read_size(size) if size else None,
        "user": profile.user,
    }
    given = {field: value for field, value in body.items() if value is not None}
    ask(profile, "PUT", model_path(name, "kept", tier), body=given)


def _read_size(text: str) -> int:
    try:
        return parse_size(text)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--size") from error


def _read_sums(path: str) -> dict[str, str]:
    """Return the hashes of a file that sha256sum printed, by path."""
    files: dict[str, str] = {}
    with open(path, encoding="utf-8") as stream:
        for number, line in enumerate(stream, 1):
            digest, _, name = line.rstrip("\n").partition("  ")
            if not name:
                raise Refused(
                    f"{path}, line {number}: {line[:64]!r} is not a line of sha256sum: give "
                    "'HASH  PATH' lines"
                )
            files[os.path.normpath(name)] = digest
    return files


@command.command()
@click.argument("name", required=False)
@listed
def kept(name: str | None, form: str, no_headers: bool) -> None:
    """List the data that nodes keep, of all models or of one.

    SAVES is how much longer a replica takes to start without this data.

    \b
    muster model kept
    muster model kept chat -o json
    """
    found = [
        each
        for each in ask(read_profile(), "GET", "/v1/kept")["kept"]
        if name is None or each["model"] == name
    ]
    if not print_value(found, form):
        rows = [row for each in found for row in _rows(each)]
        print_table(COLUMNS, rows, not no_headers, form == "wide")


def _rows(kept: dict[str, Any]) -> list[list[str]]:
    entries = kept["entries"] or [
        {"node_id": "-", "state": "requested", "detail": "no replica of the model runs"}
    ]
    return [
        [
            str(kept["model"]),
            str(kept["tier"]),
            str(entry["node_id"]),
            str(entry["state"]),
            show_size(entry.get("size_bytes") or 0),
            f"{entry['restore_ms'] / 1_000:.1f}s" if entry.get("restore_ms") else "-",
            str(entry["detail"]),
        ]
        for entry in entries
    ]


@command.command()
@click.argument("name")
@click.option("--tier", type=click.Choice(TIERS), help="Drop this tier. Default: all tiers.")
def drop(name: str, tier: str | None) -> None:
    """Remove the kept data of a model from the nodes.

    \b
    muster model drop chat --tier host
    """
    profile = read_profile()
    tiers = [
        each["tier"]
        for each in ask(profile, "GET", "/v1/kept")["kept"]
        if each["model"] == name and tier in (None, each["tier"])
    ]
    if not tiers:
        raise Refused(
            f"model {name} keeps {f'no tier {tier}' if tier else 'nothing'}: `muster model kept` "
            "lists what is kept"
        )
    for each in tiers:
        path = model_path(name, "kept", each)
        ask(profile, "DELETE", path, body={"user": profile.user})


@command.command()
@click.argument("name")
@click.argument("aliases", nargs=-1, required=True, metavar="ALIAS...")
def alias(name: str, aliases: tuple[str, ...]) -> None:
    """Give a model additional names. Requests of your tenant may use them.

    \b
    muster model alias chat gpt-4o-mini Qwen/Qwen2.5-7B
    """
    _change(name, "aliases", {"add": list(aliases)})


@command.command()
@click.argument("name")
@click.argument("aliases", nargs=-1, required=True, metavar="ALIAS...")
def unalias(name: str, aliases: tuple[str, ...]) -> None:
    """Remove additional names of a model.

    \b
    muster model unalias chat gpt-4o-mini
    """
    _change(name, "aliases", {"remove": list(aliases)})


@command.command()
@click.argument("name")
@click.option(
    "--with",
    "tenants",
    multiple=True,
    required=True,
    metavar="TENANT",
    help="Share it with this tenant, or with all tenants (all). Repeatable.",
)
@limit_flags
def share(name: str, tenants: tuple[str, ...], **limits: int | None) -> None:
    """Let other tenants use a model in their requests.

    The model's own tenant pays for the GPUs. Each tenant keeps its own limits and usage, and the
    tenants take turns. The limits that you give here apply to each of these tenants at this model,
    in addition to its own limits.

    \b
    muster model share chat --with biology --with chemistry
    muster model share chat --with all --tokens-per-minute 20000
    """
    if given(**limits):  # before the share, so that a guest is never without them
        _limit(name, tenants, limits)
    _change(name, "guests", {"add": [_guest(each) for each in tenants]})


@command.command()
@click.argument("name")
@click.option(
    "--tenant",
    "tenants",
    multiple=True,
    required=True,
    metavar="TENANT",
    help=(
        "Limit this tenant; all limits each other tenant that has no limits of its own. Repeatable."
    ),
)
@limit_flags
def limit(name: str, tenants: tuple[str, ...], **limits: int | None) -> None:
    """Set how much tenants may use a model, in addition to their own limits.

    The command removes limits that you leave out. The model's own tenant has a limit only if you
    name it.

    \b
    muster model limit chat --tenant biology --requests-per-minute 60
    muster model limit chat --tenant all --tokens-per-minute 20000
    muster model limit chat --tenant biology              # no limits
    """
    _limit(name, tenants, limits)


def _limit(name: str, tenants: tuple[str, ...], limits: dict[str, int | None]) -> None:
    profile = read_profile()
    for tenant in tenants:
        path = model_path(name, "limits", _guest(tenant))
        ask(profile, "PUT", path, body={**given(**limits), "user": profile.user})


@command.command()
@click.argument("name")
@click.option(
    "--with",
    "tenants",
    multiple=True,
    metavar="TENANT",
    help="Stop sharing with this tenant; all undoes --with all (default: every share). Repeatable.",
)
def unshare(name: str, tenants: tuple[str, ...]) -> None:
    """Stop sharing a model with other tenants.

    \b
    muster model unshare chat --with biology
    muster model unshare chat
    """
    guests = [_guest(each) for each in tenants]
    if not guests:
        guests = ask(read_profile(), "GET", model_path(name))["shared_with"]
    if not guests:
        raise Refused(f"model {name} is shared with no tenant: `muster models {name}` shows it")
    _change(name, "guests", {"remove": guests})


def _guest(tenant: str) -> str:
    return "*" if tenant == "all" else tenant


def _change(name: str, what: str, changes: dict[str, list[str]]) -> dict[str, Any]:
    """Change a model's aliases or guests. Return the model."""
    profile = read_profile()
    return ask(profile, "PATCH", model_path(name, what), body={**changes, "user": profile.user})
