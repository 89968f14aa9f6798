"""`muster exec`."""

import os
from typing import Final

import click

from libs.client.profile import read_profile
from libs.common.errors import Refused

# The default command: the shell that the job's environment names.
SHELL: Final = ("/bin/sh", "-c", 'exec "${SHELL:-/bin/sh}"')


@click.command(
    short_help="Run a command or a shell inside a running job.",
    context_settings={"allow_interspersed_args": False},
)
@click.option("-i", "--stdin", is_flag=True, help="Forward standard input.")
@click.option(
    "-t", "--tty", is_flag=True, help="Allocate a terminal. Standard input must be one. Implies -i."
)
@click.option(
    "--node",
    default="",
    metavar="NODE",
    help="Run on this node of a multi-node job (default: the first).",
)
@click.argument("ref", metavar="JOB")
@click.argument("words", nargs=-1, metavar="[--] [COMMAND [ARGS]...]")
def command(ref: str, words: tuple[str, ...], stdin: bool, tty: bool, node: str) -> int:
    """Run a command or a shell inside a running job.

    The command has the job's environment, GPUs, directory and limits. It ends when the job ends or
    when you leave. Without COMMAND, muster exec starts a shell.

    \b
    muster exec -it train
    muster exec train -- nvidia-smi
    muster exec -i train -- sh < look.sh
    muster exec --node n2 train -- ps aux

    Exit code: the command's own, 128 + N if signal N ended it, or 126 or 127 if it could not be
    executed.
    """
    from libs.cli.following.execution import execute
    from libs.common.messages.channel_messages import Exec

    words = words[1:] if words[:1] == ("--",) else words
    if tty and not os.isatty(0):
        raise Refused("-t: standard input is not a terminal: remove -t, or use -i alone")
    if not words and not (stdin or tty):
        raise Refused("no command: give one after the job, or use -it for a shell")
    request = Exec(
        words or SHELL, stdin=stdin or tty, tty=tty, term=os.environ.get("TERM", "") if tty else ""
    )
    return execute(read_profile(), ref, request, node)
