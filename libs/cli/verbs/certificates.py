"""`muster certificates`: show and renew the certificates of the cluster of this machine."""

from pathlib import Path

import click

from libs.cli.embedded_verbs import state_of

STATE = click.option(
    "--state",
    type=click.Path(path_type=Path),
    help="State directory (default: ./.muster, else the last cluster started here).",
)


@click.group(short_help="Show or renew the certificates of the cluster of this machine.")
def command() -> None:
    """Show or renew the certificates of the cluster of this machine.

    A cluster has certificates if it listens for other machines (muster up --listen).
    """


@command.command()
@STATE
def show(state: Path | None) -> None:
    """Show each certificate, its end, and the days that are left."""
    from libs.embedded import renewal

    for each in renewal.listed(state_of(state)):
        click.echo(f"{each.file:<12}  {each.days:>5} days left  until {each.ends}  {each.name}")


@command.command()
@click.option(
    "--authority", is_flag=True, help="Replace the certificate authority too, in two steps."
)
@click.option(
    "--force",
    is_flag=True,
    help="Switch even if some machines do not trust the new authority yet: they are cut off.",
)
@STATE
def renew(authority: bool, force: bool, state: Path | None) -> None:
    """Renew the certificate of the servers, while the cluster runs.

    Connections stay. With --authority every joined machine first trusts the new authority beside
    the old one; then the servers show a certificate of the new one. If a machine does not answer,
    nothing changes for the servers: repeat the command when its agent runs.

    \b
    muster certificates renew
    muster certificates renew --authority
    """
    from libs.embedded import renewal

    if force and not authority:
        raise click.UsageError("--force belongs to --authority: give both")
    if authority:
        renewal.renew_authority(state_of(state), force, click.echo)
    else:
        renewal.renew(state_of(state), click.echo)
