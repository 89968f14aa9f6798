"""`muster join`: make this machine a node of a remote cluster."""

from pathlib import Path

import click


@click.command(short_help="Make this machine a node of a remote cluster.")
@click.argument("url", required=False, default="")
@click.option("--token", metavar="T", default="", help="Token that muster node add printed.")
@click.option("--foreground", is_flag=True, help="Run the agent in the foreground (default).")
@click.option("--systemd", is_flag=True, help="Write a systemd unit and print how to start it.")
@click.option("--again", is_flag=True, help="Start the agent of a machine that has joined before.")
@click.option(
    "--simulated-gpus",
    type=click.IntRange(0, 64),
    default=0,
    metavar="N",
    help="Register N simulated GPUs instead of the GPUs of this machine.",
)
@click.option(
    "--state",
    type=click.Path(path_type=Path),
    help=(
        "Directory for the node's key and jobs (default: /var/lib/muster/node for root, else "
        "~/.local/state/muster/node)."
    ),
)
def command(
    url: str,
    token: str,
    foreground: bool,
    systemd: bool,
    again: bool,
    simulated_gpus: int,
    state: Path | None,
) -> None:
    """Make this machine a node of a remote cluster.

    The command creates the node's key on this machine; the key never leaves it. The token works
    once. It contains a secret and the fingerprint of the cluster's certificate authority.

    \b
    muster node add                                     # at the cluster; prints the next line
    muster join https://10.0.0.1:8443 --token msj...    # on this machine
    """
    from libs.common.messages.admission import invitation
    from libs.join import agent

    if foreground and systemd:
        raise click.UsageError("--foreground and --systemd exclude each other: give one")
    if not again and not (url and token):
        raise click.UsageError(
            "URL and --token are missing: run the command that muster node add printed"
        )
    place = state or agent.default_state()
    if not again:
        joined = agent.join(url, invitation(token), place, simulated_gpus)
        click.echo(
            f"this machine is node {joined.node_id} of {joined.cluster_id}; its key and jobs are "
            f"in {place}"
        )
    if not systemd:
        agent.exec_agent(place)
    node_id = agent.kept(place)["MUSTER_NODE_ID"]
    path = agent.write_unit(place, node_id)
    click.echo(
        f"wrote {path}\nstart the agent with\n  systemctl daemon-reload\n  systemctl enable "
        f"--now {path.stem}"
    )
