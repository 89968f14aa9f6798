"""`muster bus`: show the log's servers, restart them one after another, or replace one's disk."""

import time
from collections.abc import Callable
from typing import Final
from urllib.parse import quote

import click

from libs.cli.faults import Cut, Declined, Unreachable
from libs.cli.gateway import Json, ask
from libs.cli.terminal.output import formatted, print_table, print_value
from libs.cli.terminal.table import Column
from libs.client.profile import Profile, read_profile
from libs.common.durations import parse_duration
from libs.common.errors import Refused, Unavailable

SERVERS: Final = (
    Column("SERVER"),
    Column("HEALTH"),
    Column("LEADS"),
    Column("LAST", right=True),
    Column("BEHIND", right=True),
    Column("FREE", right=True),
    Column("REASON", flexible=True),
)
STREAM: Final = "FACTS"
# The number of replicas after `muster bus add`.
GROWN: Final = 5
POLL_S: Final = 1.0
# Looks in a row without a fault before the next server is stopped.
STEADY_LOOKS: Final = 2
GIB: Final = 1 << 30
# From this status on an answer is the gateway's own fault, which may pass.
BROKEN: Final = 500


@click.group(invoke_without_command=True, short_help="Show or restart the servers of the log.")
@formatted
@click.pass_context
def command(context: click.Context, form: str) -> None:
    """Show or restart the servers of the log.

    \b
    muster bus
    muster bus roll
    muster bus replace nats-2
    """
    if context.invoked_subcommand is None:
        shown = ask(read_profile(), "GET", "/v1/bus")
        if not print_value(shown, form):
            show(shown)


_timeout = click.option(
    "--timeout",
    default="10m",
    show_default=True,
    metavar="DURATION",
    help="Maximum time to wait for each server.",
)


@command.command()
@_timeout
def roll(timeout: str) -> None:
    """Restart all servers, one after another, without an outage.

    Before and after each restart, the command waits until all servers are healthy and hold the
    whole log. It restarts the server that leads the log last.

    \b
    muster bus roll
    """
    rollout = Rollout(read_profile(), _seconds(timeout))
    for server in rollout.order():
        rollout.exchange(server, "restart")
    click.echo("all servers were restarted")


@command.command()
@click.argument("server")
@_timeout
def replace(server: str, timeout: str) -> None:
    """Start SERVER with an empty store, and wait until the other servers have filled it.

    Use it for a server that runs but whose files are damaged. The other servers must be healthy.
    The old files stay beside the new store until the server holds the whole log, so its disk needs
    space for both. If the disk of a server was lost, do not use this command: start the server
    again with an empty disk.

    \b
    muster bus replace nats-2
    """
    rollout = Rollout(read_profile(), _seconds(timeout))
    rollout.exchange(server, "replace", others_only=True)
    click.echo(f"{server} holds the whole log again")


@command.command()
@_timeout
def add(timeout: str) -> None:
    """Store the log on five servers, after two servers were added to three.

    Start the two servers first. The command waits until all five are healthy, gives every stream
    five replicas, and waits until the new servers hold the whole log. After that, any two servers
    may fail.

    \b
    docker compose --profile five up -d
    muster bus add
    """
    rollout = Rollout(read_profile(), _seconds(timeout))
    rollout.grow(GROWN)
    click.echo(f"every stream has {GROWN} replicas")


class Rollout:
    """Restarts of servers. Each step waits for at most `within_s`."""

    def __init__(self, profile: Profile, within_s: float) -> None:
        self.profile = profile
        self.within_s = within_s

    def order(self) -> list[str]:
        """Return the servers, the log's leader last. Raises Refused if none answers."""
        servers = ask(self.profile, "GET", "/v1/bus")["servers"]
        if not servers:
            raise Refused("no server of the log answers the gateway: check that they run")
        return [
            str(each["name"])
            for each in sorted(servers, key=lambda each: (_leads(each), each["name"]))
        ]

    def exchange(self, server: str, verb: str, others_only: bool = False) -> None:
        """Order one server to end, and wait until its next process is healthy, as all others are.

        `others_only`: the server need not be healthy before.
        """
        if not others_only:
            self._wait(lambda shown: not shown["faults"], f"before {server} can be stopped")
        path = f"/v1/bus/{quote(server, safe='')}/{verb}"
        process_id = ask(self.profile, "POST", path)["process_id"]
        click.echo(f"{server}: {verb}")
        self._wait(
            lambda shown: (
                not shown["faults"] and _process_id(shown, server) not in ("", process_id)
            ),
            f"after {server} was told to {verb}",
        )
        click.echo(f"{server}: healthy")

    def grow(self, count: int) -> None:
        """Give every stream `count` replicas, and wait until all are filled."""
        self._wait(
            lambda shown: not shown["faults"] and len(shown["servers"]) >= count,
            f"with at least {count} of them",
        )
        ask(self.profile, "POST", f"/v1/bus/replicas/{count}")
        self._wait(
            lambda shown: not shown["faults"] and len(_holders(shown)) >= count,
            f"with {count} replicas",
        )

    def _wait(self, is_fine: Callable[[Json], bool], when: str) -> None:
        """Wait until STEADY_LOOKS looks in a row are fine. Raises Unavailable."""
        deadline, steady = time.monotonic() + self.within_s, 0
        while steady < STEADY_LOOKS:
            shown = self._shown()
            steady = steady + 1 if is_fine(shown) else 0
            if time.monotonic() > deadline:
                faults = "; ".join(shown["faults"]) or "the server did not start again"
                raise Unavailable(
                    f"not all servers were healthy {when} within {self.within_s:g} s "
                    f"({faults}): repair that, then run the command again"
                )
            time.sleep(POLL_S)

    def _shown(self) -> Json:
        """Return the servers; while the gateway cannot be asked, one fault that says so."""
        try:
            return ask(self.profile, "GET", "/v1/bus")
        except (Declined, Unreachable, Cut) as error:
            if isinstance(error, Declined) and error.status < BROKEN:
                raise
            return {"servers": [], "faults": [str(error)]}


def _seconds(text: str) -> int:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise Refused(f"--timeout: {error}") from error


def show(shown: Json) -> None:
    """Print the servers and the faults."""
    print_table(SERVERS, [_row(each) for each in shown["servers"]])
    for fault in shown["faults"]:
        print(f"! {fault}")


def _row(each: Json) -> list[str]:
    facts = [stream for stream in each["streams"] if stream["stream"] == STREAM]
    leads = [str(stream["stream"]) for stream in each["streams"] if stream["leads"]]
    return [
        str(each["name"]),
        str(each["health"]),
        str(len(leads)) + (f" ({STREAM})" if STREAM in leads else ""),
        str(facts[0]["last"]) if facts else "-",
        str(sum(stream["behind"] for stream in each["streams"])),
        f"{each['free_bytes'] / GIB:.1f} GiB",
        "; ".join(each["reasons"]) or "-",
    ]


def _leads(each: Json) -> bool:
    return any(stream["leads"] and stream["stream"] == STREAM for stream in each["streams"])


def _holders(shown: Json) -> list[Json]:
    """Return the servers that store every stream that some server stores."""
    stored = [{stream["stream"] for stream in each["streams"]} for each in shown["servers"]]
    everything = set().union(*stored)
    return [each for each, own in zip(shown["servers"], stored, strict=True) if own == everything]


def _process_id(shown: Json, server: str) -> str:
    found = (str(each["process_id"]) for each in shown["servers"] if each["name"] == server)
    return next(found, "")
