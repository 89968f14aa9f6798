"""`muster node`: what an operator says about the machines of the cluster."""

from urllib.parse import quote

import click

from libs.cli.gateway import ask
from libs.cli.profile import read_profile


@click.group(short_help="Add a machine to the cluster, remove one, or say that it is dead.")
def command() -> None:
    """Add a machine to the cluster, remove one, or say that it is dead."""


@command.command()
@click.argument("name", required=False, default="")
@click.option(
    "--expires",
    "expires_in",
    default="1h",
    show_default=True,
    metavar="DURATION",
    help="How long the token may be used.",
)
def add(name: str, expires_in: str) -> None:
    """Print the command that makes another machine the node NAME.

    The token works once, and is shown once. A name is used once: what was removed is added again
    under another.

    \b
    muster up --listen 10.0.0.1       the cluster must listen to other machines
    muster node add gpu-07
    """
    profile = read_profile()
    said = {"node_id": name, "expires_in": expires_in, "user": profile.user}
    found = ask(
        profile, "POST", "/v1/nodes", body={key: value for key, value in said.items() if value}
    )
    click.echo(f"muster join {found['url']} --token {found['token']}")


@command.command()
@click.argument("node_id", metavar="NODE")
@click.option("--drain", is_flag=True, help="Let what runs there end by itself first.")
def remove(node_id: str, drain: bool) -> None:
    """Take a node out of the cluster.

    Nothing more is placed there. What runs there is stopped and queued again (with --drain it may
    end by itself). When nothing is left, the node counts no more, its key is void, and its agent
    ends. Of a node that has not joined yet the token is void.

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
    """Declare dead a node that the scheduler holds for lost.

    Jobs with --on-control-loss continue may live on a lost node, so they are started nowhere else.
    Say this when you know that nothing of them is running there any more (the machine is off): they
    are then lost there, and queued again.

    \b
    muster nodes                 NODE is unreachable
    muster node dead NODE
    """
    profile = read_profile()
    ask(profile, "POST", f"/v1/nodes/{quote(node_id, safe='')}/dead", body={"user": profile.user})
