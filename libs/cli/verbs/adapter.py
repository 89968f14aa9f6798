"""`muster adapter`: LoRA adapters of models."""

from typing import Any, Final

import click

from libs.cli.flags.durations import age
from libs.cli.gateway import ask, model_path
from libs.cli.jobs import utc_now
from libs.cli.terminal.output import listed, print_table, print_value
from libs.cli.terminal.table import Column
from libs.client.profile import read_profile

COLUMNS: Final = (
    Column("MODEL"),
    Column("ADAPTER"),
    Column("PATH", flexible=True),
    Column("ADDED", right=True),
    Column("USER"),
    Column("LOADED AT", flexible=True),
)


@click.group(short_help="Add, remove and list LoRA adapters of models.")
def command() -> None:
    """Add, remove and list LoRA adapters of models.

    The model must have been deployed with --adapters-root, or with --adapter-api none.
    """


@command.command()
@click.argument("model")
@click.argument("name")
@click.argument("path", required=False)
def add(model: str, name: str, path: str | None) -> None:
    """Add a LoRA adapter to a model, or change its path.

    Requests name it as NAME, or as MODEL:NAME. PATH is its folder as the server of each replica
    sees it, below the --adapters-root of the deployment. With --adapter-api none leave it out.

    \b
    muster deploy chat --adapters-root /models/lora -- \\
        vllm serve Qwen/Qwen2.5-7B-Instruct --host {host} --port {port} --enable-lora
    muster adapter add chat sql /models/lora/sql
    """
    body = {"path": path} if path is not None else {}
    _send("PUT", model, name, body)


@command.command()
@click.argument("model")
@click.argument("name")
def remove(model: str, name: str) -> None:
    """Remove a LoRA adapter from a model. The replicas unload it.

    \b
    muster adapter remove chat sql
    """
    _send("DELETE", model, name, {})


@command.command("list")
@click.argument("model", required=False)
@listed
def list_adapters(model: str | None, form: str, no_headers: bool) -> None:
    """List LoRA adapters, of all models or of one.

    LOADED AT names the replicas that have loaded the adapter, as far as the gateway that answers
    knows.

    \b
    muster adapter list
    muster adapter list chat -o json
    """
    found = [
        each
        for each in ask(read_profile(), "GET", "/v1/adapters")["adapters"]
        if model is None or each["model"] == model
    ]
    if not print_value(found, form):
        print_table(COLUMNS, [_row(each) for each in found], not no_headers, form == "wide")


def _row(adapter: dict[str, Any]) -> list[str]:
    return [
        str(adapter["model"]),
        str(adapter["name"]),
        str(adapter["path"] or "-"),
        age(adapter["added_at"], utc_now()),
        str(adapter["user"] or "-"),
        ", ".join(adapter["loaded"]) or "-",
    ]


def _send(method: str, model: str, name: str, body: dict[str, str]) -> None:
    profile = read_profile()
    path = model_path(model, "adapters", name)
    ask(profile, method, path, body={**body, "user": profile.user})
