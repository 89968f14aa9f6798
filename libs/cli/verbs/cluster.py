"""`muster cluster`: show the control plane."""

from typing import Final

import click

from libs.cli.cluster_verify import verify
from libs.cli.flags.sizes import show_size
from libs.cli.gateway import Json, ask
from libs.cli.terminal.output import formatted, print_table, print_value
from libs.cli.terminal.table import Column, clean, state_colour
from libs.client.profile import read_profile

MEMBERS: Final = (
    Column("SERVICE"),
    Column("INSTANCE"),
    Column("STATE", colour_of=state_colour),
    Column("TERM", right=True),
    Column("LAG", right=True),
    Column("LAST SEEN", right=True),
    Column("VERSION"),
)
SERVERS: Final = (
    Column("SERVER"),
    Column("STATE", colour_of=state_colour),
    Column("LAG", right=True),
)
CERTIFICATES: Final = (
    Column("CERTIFICATE"),
    Column("DAYS LEFT", right=True),
    Column("ENDS"),
    Column("SUBJECT", flexible=True),
)


@click.group(
    invoke_without_command=True,
    short_help="Show the services, the servers of the log and the certificates.",
)
@formatted
@click.pass_context
def command(context: click.Context, form: str) -> None:
    """Show the services, the servers of the log and the certificates.

    LAG is the number of commits that a process has not read yet. The command exits with 1 if an
    operator must act, because the log is nearly full or a certificate ends soon.

    \b
    muster cluster
    muster cluster verify
    muster cluster -o json | jq -r '.members[] | select(.state == "leader")'
    """
    if context.invoked_subcommand is not None:
        return
    cluster = ask(read_profile(), "GET", "/v1/cluster")
    if not print_value(cluster, form):
        show(cluster)
    if warnings(cluster):
        context.exit(1)


command.add_command(verify)


def show(cluster: Json) -> None:
    """Print the tables, and then what an operator must do."""
    print_table(MEMBERS, [_member(each) for each in cluster.get("members") or ()])
    log = cluster.get("log")
    if log is not None:
        print("\n" + _log(log))
        if log["servers"]:
            servers = [[each["name"], each["state"], str(each["lag"])] for each in log["servers"]]
            print()
            print_table(SERVERS, servers)
    certificates = cluster.get("certificates") or ()
    if certificates:
        print()
        print_table(CERTIFICATES, [_certificate(each) for each in certificates])
    for text in warnings(cluster):
        click.echo(f"\nWARNING: {clean(text)}", err=True)


def warnings(cluster: Json) -> list[str]:
    """Return what an operator must do."""
    log = cluster.get("log") or {}
    found = [str(log["warning"])] if log.get("warning") else []
    return found + [
        f"certificate of {each['name']}: {each['warning']}"
        for each in cluster.get("certificates") or ()
        if each["warning"]
    ]


def _member(member: Json) -> list[str]:
    return [
        member["service"],
        member["instance"],
        member["state"],
        str(member["epoch"] or "-"),
        "-" if member["lag"] is None else str(member["lag"]),
        f"{member['heard_s_ago']:.0f}s ago",
        member["version"] or "-",
    ]


def _log(log: Json) -> str:
    size, limit = show_size(log["size_bytes"]), log["limit_bytes"]
    text = f"log: {log['commits']} commits, {size}"
    if limit:
        text += f" of {show_size(limit)} ({log['filled_pct']} %)"
    growth = log["growth_bytes_per_day"]
    if growth is not None:
        text += f", grows by {show_size(growth)} a day"
    if log["days_left"] is not None:
        text += f", {log['days_left']:.0f} days left"
    return text


def _certificate(certificate: Json) -> list[str]:
    days = str(certificate["days_left"])
    ends = str(certificate["ends_at"])[:10]
    return [certificate["name"], days, ends, certificate["subject"]]
