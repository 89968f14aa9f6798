"""`muster port-forward`."""

import asyncio

import click

from libs.cli.gateway import ask, job_path
from libs.cli.jobs import ENDED
from libs.cli.terminal.output import complain
from libs.client.profile import read_profile


@click.command(short_help="Forward a local port to a port of a running job.")
@click.argument("ref", metavar="JOB")
@click.argument("pairs", nargs=-1, required=True, metavar="PORT[:LOCAL]...")
@click.option(
    "--node",
    default="",
    metavar="NODE",
    help="Forward to this node of a multi-node job (default: the first).",
)
def command(ref: str, pairs: tuple[str, ...], node: str) -> int:
    """Forward a local port to a port of a running job.

    The job must listen on 127.0.0.1 or on all addresses of its node. LOCAL is the port on this
    machine, at 127.0.0.1. The default is PORT; 0 chooses a free port. The command ends with the
    job, or with Ctrl-C.

    \b
    muster port-forward notebook 8888
    muster port-forward train 6006:16006 8265:0
    """
    from libs.cli.following.forwarding import Forwarding, Ports

    ports = [Ports(*_parsed(pair)) for pair in pairs]
    profile = read_profile()
    job = ask(profile, "GET", job_path(ref))
    state = str(job["state"])
    if state not in ENDED:
        state = asyncio.run(Forwarding(profile, str(job["id"]), node).run(ports))
    complain(f"job {job['id']} has ended: {state}")
    return 0 if job["state"] not in ENDED else 1


def _parsed(pair: str) -> tuple[int, int]:
    remote, colon, local = pair.partition(":")
    if not (remote.isascii() and remote.isdigit() and 0 < int(remote) < 1 << 16):
        raise click.BadParameter(f"{pair!r}: the port of the job must be a number from 1 to 65535")
    if colon and not (local.isascii() and local.isdigit() and int(local) < 1 << 16):
        raise click.BadParameter(f"{pair!r}: the local port must be a number from 0 to 65535")
    return int(remote), int(local) if colon else int(remote)
