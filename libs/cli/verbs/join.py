"""`muster join`: this machine becomes a node of a cluster that runs elsewhere."""

from pathlib import Path

import click


@click.command(short_help="Make this machine a node of a cluster that runs elsewhere.")
@click.argument("url", required=False, default="")
@click.option(
    "--token", metavar="T", default="", help="What `muster node add` printed at the cluster."
)
@click.option("--foreground", is_flag=True, help="Become the agent (the default).")
@click.option(
    "--systemd", is_flag=True, help="Write a systemd unit instead, and say how to start it."
)
@click.option("--again", is_flag=True, help="Start the agent of a machine that has joined before.")
@click.option(
    "--simulated-gpus",
    type=click.IntRange(0, 64),
    default=0,
    metavar="N",
    help="GPUs in name only, instead of this machine's own.",
)
@click.option(
    "--state", type=click.Path(path_type=Path), help="Where the node's key and jobs are kept."
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
    """Make this machine a node of a cluster that runs elsewhere.

    The node's key is made here and stays here. The token names the cluster by the fingerprint of
    its authority, works once, and carries the only secret.

    \b
    muster node add                                     at the cluster: prints the next line
    muster join https://10.0.0.1:8443 --token msj...    here
    """
    from libs.common.messages.admission import invitation
    from libs.join import agent

    if foreground and systemd:
        raise click.UsageError("--foreground and --systemd are two ways: give one")
    if not again and not (url and token):
        raise click.UsageError("give the URL and --token, as `muster node add` printed them")
    place = state or agent.default_state()
    if not again:
        told = agent.join(url, invitation(token), place, simulated_gpus)
        click.echo(
            f"this machine is node {told.node_id} of {told.cluster_id}; its key and jobs are "
            f"in {place}"
        )
    if not systemd:
        agent.exec_agent(place)
    node_id = agent.kept(place)["MUSTER_NODE_ID"]
    path = agent.write_unit(place, node_id)
    click.echo(
        f"written: {path}\nstart it with\n  systemctl daemon-reload\n  systemctl enable "
        f"--now {path.stem}"
    )
