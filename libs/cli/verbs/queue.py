"""`muster queue list|set`."""

from typing import Final
from urllib.parse import quote

import click

from libs.cli.flags.durations import DURATION
from libs.cli.gateway import Json, ask, ask_all
from libs.cli.terminal.output import formatted, listed, print_table, print_value
from libs.cli.terminal.table import Column
from libs.client.profile import read_profile
from libs.common.state.ordering import DEFAULT_POLICY, POLICIES

COLUMNS: Final = (
    Column("QUEUE"),
    Column("POLICY"),
    Column("WEIGHT", right=True),
    Column("AGEING", right=True),
    Column("BACKFILL"),
    Column("TIME SLICE", right=True),
    Column("WAITING", right=True),
    Column("ON NODES", right=True),
    Column("NOTE", flexible=True),
)


@click.group(short_help="List queues and set their policies.")
def command() -> None:
    """List queues and set their policies.

    \b
    muster queue set research --policy fair_share --weight 300
    muster submit --queue research -- python train.py
    """


@command.command("list")
@listed
def list_queues(form: str, no_headers: bool) -> None:
    """List queues, with their policy and their numbers of jobs."""
    queues = ask_all(read_profile(), "/v1/queues", "queues")
    if not print_value(queues, form):
        print_table(COLUMNS, [_row(queue) for queue in queues], not no_headers, form == "wide")


@command.command("set")
@click.argument("name")
@click.option(
    "--policy",
    required=True,
    metavar="NAME",
    help=f"Order of the queue: {', '.join(POLICIES)}, or the name of a plug-in.",
)
@click.option(
    "--weight",
    type=click.IntRange(1),
    metavar="N",
    help="Share of the queue when queues compete (default: 100).",
)
@click.option(
    "--ageing",
    type=DURATION,
    help="Waiting time that raises a job's priority by 1 (policy priority; default: none).",
)
@click.option(
    "--backfill/--no-backfill",
    default=None,
    help=(
        "Let jobs start before the first job if that does not delay it (default: yes, except "
        "with fifo)."
    ),
)
@click.option(
    "--time-slice",
    type=DURATION,
    help="Let preemptible jobs of equal priority take turns of this length (default: no turns).",
)
@formatted
def set_queue(name: str, form: str, **given: object) -> None:
    """Create a queue, or replace its settings."""
    body = {limit: value for limit, value in given.items() if value is not None}
    queue = ask(read_profile(), "PUT", f"/v1/queues/{quote(name, safe='')}", body=body)
    if not print_value(queue, form):
        print_table(COLUMNS, [_row(queue)], True, form == "wide")


def _row(queue: Json) -> list[str]:
    return [
        queue["name"],
        queue["policy"] or DEFAULT_POLICY,
        str(queue["weight"]),
        f"{queue['ageing_s']}s" if queue["ageing_s"] else "-",
        "yes" if queue["backfill"] else "no",
        f"{queue['time_slice_s']}s" if queue["time_slice_s"] else "-",
        str(queue["jobs_waiting"]),
        str(queue["jobs_on_nodes"]),
        queue.get("note") or "-",
    ]
