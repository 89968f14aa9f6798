"""`muster node add|remove|dead`: manage the machines of the cluster."""

from urllib.parse import quote

import click

from libs.cli.gateway import ask
from libs.client.profile import read_profile


@click.group(short_help="Add a machine to the cluster, remove one, or declare it dead.")
def command() -> None:
    """Add a machine to the cluster, remove one, or declare it dead."""


@command.command()
@click.argument("name", required=False, default="")
@click.option(
    "--expires",
    "expires_in",
    default="1h",
    show_default=True,
    metavar="DURATION",
    help="Lifetime of the token.",
)
def add(name: str, expires_in: str) -> None:
    """Print the command that makes another machine the node NAME.

    The token works once and is shown once. Names are not reused: add a removed machine again under
    another name.

    \b
    muster up --listen 10.0.0.1       # the cluster must listen to other machines
    muster node add gpu-07
    """
    profile = read_profile()
    fields = {"node_id": name, "expires_in": expires_in, "user": profile.user}
    answer = ask(
        profile, "POST", "/v1/nodes", body={key: value for key, value in fields.items() if value}
    )
    click.echo(f"muster join {answer['url']} --token {answer['token']}")


@command.command()
@click.argument("node_id", metavar="NODE")
@click.option("--drain", is_flag=True, help="Wait until the jobs on the node have ended.")
def remove(node_id: str, drain: bool) -> None:
    """Remove a node from the cluster.

    The node gets no new jobs. Its jobs are stopped and queued again; with --drain they run to their
    end, and replicas of models move when another node has room. When the last job has ended, the
    node's key is revoked and its agent exits. If the node has not joined yet, its token is revoked.

    \b
    muster node remove gpu-07 --drain
    """
    profile = read_profile()
    ask(
        profile,
        "DELETE",
        f"/v1/nodes/{quote(node_id, safe='')}",
        query={"wait": str(drain).lower(), "user": profile.user},
    )


@command.command()
@click.argument("node_id", metavar="NODE")
def dead(node_id: str) -> None:
    """Confirm that a node that does not answer is dead.

    Jobs with --on-control-loss continue may still run on an unreachable node, so the scheduler does
    not restart them elsewhere. While fewer than half of all nodes answer, the scheduler declares no
    more nodes lost. Run this command when you know that the machine is off. The jobs are then
    queued again. If the machine is only cut off, they run twice.

    If `muster nodes` still says after some seconds that NODE is silent or unguarded, run the
    command again: another scheduler has taken over meanwhile.

    \b
    muster nodes                 # NODE is unreachable or silent
    muster node dead NODE
    """
    profile = read_profile()
    ask(profile, "POST", f"/v1/nodes/{quote(node_id, safe='')}/dead", body={"user": profile.user})
