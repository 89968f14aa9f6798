"""`muster exec`."""

import os
from typing import Final

import click

from libs.cli.profile import read_profile
from libs.common.errors import Refused

# Where no command is given: the shell that the job's own environment names.
SHELL: Final = ("/bin/sh", "-c", 'exec "${SHELL:-/bin/sh}"')


@click.command(
    short_help="Run a command, or a shell, beside a running job.",
    context_settings={"allow_interspersed_args": False},
)
@click.option("-i", "--stdin", is_flag=True, help="Forward standard input.")
@click.option(
    "-t", "--tty", is_flag=True, help="With a terminal: this one, which must be one. Implies -i."
)
@click.option("--node", default="", help="Which node of a job on several (default: the first).")
@click.argument("ref", metavar="JOB")
@click.argument("words", nargs=-1, metavar="[--] [COMMAND [ARGS]...]")
def command(ref: str, words: tuple[str, ...], stdin: bool, tty: bool, node: str) -> int:
    """Run a command, or a shell, beside a running job.

    It has the job's environment, devices, directory and limits, and ends with the job or with this
    command. Without a COMMAND it is a shell.

    \b
    muster exec -it train
    muster exec train -- nvidia-smi
    muster exec -i train -- sh < look.sh
    muster exec --node n2 train -- ps aux

    Exit code: the command's; 128 + the signal that ended it; 126 or 127 when it could not be
    executed.
    """
    from libs.cli.following.execution import execute
    from libs.common.messages.channel_messages import Exec

    words = words[1:] if words[:1] == ("--",) else words
    if tty and not os.isatty(0):
        raise Refused("-t: standard input is no terminal; leave -t out, or give -i alone")
    if not words and not (stdin or tty):
        raise Refused("name a command, or give -it for a shell")
    wish = Exec(
        words or SHELL, stdin=stdin or tty, tty=tty, term=os.environ.get("TERM", "") if tty else ""
    )
    return execute(read_profile(), ref, wish, node)
