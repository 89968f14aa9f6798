"""The entry point of the command `muster`: parse arguments, run a verb, report errors.

An error is one line on stderr. Exit codes: 0 success; the job's own code for `run` and `wait`; 1
refused or unreachable; 2 wrong usage; 130 interrupted; 141 the reader of stdout is gone. This file
imports only what every verb needs.
"""

import atexit
import gc
import os
import sys
from collections.abc import Sequence
from typing import Final, NoReturn

import click

from libs.cli.terminal.output import complain
from libs.cli.verb_group import VerbGroup
from libs.common.errors import MusterError

# New objects between two collections of young ones.
YOUNG_OBJECTS_MAX: Final = 20_000
INTERRUPTED = 130
PIPE_CLOSED = 141
# Words of click's messages, and plainer ones.
PLAIN: Final = {
    "is not a valid integer range": "is not a whole number",
    "is not a valid integer": "is not a whole number",
    "is not a valid float range": "is not a number",
    "is not a valid float": "is not a number",
}

HELP = """Muster: a GPU cluster manager.

\b
  muster up                                # start a cluster on this machine
  muster run --gpus 2 -- python train.py   # run a command on two GPUs
  muster submit job.yaml                   # submit jobs, print their ids
  muster ps                                # list your active jobs
  muster why JOB                           # explain why a job waits

JOB is an id, a unique prefix of an id, or a name. For examples, run muster VERB --help.
"""


def _print_version(ctx: click.Context, _option: click.Parameter, wanted: bool) -> None:
    if wanted:
        from libs.cli.verbs.version import version_line

        print(version_line())
        ctx.exit()


muster = VerbGroup(
    "muster",
    help=HELP,
    no_args_is_help=True,
    subcommand_metavar="VERB [ARGS]...",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    params=[
        click.Option(
            ["--version"],
            is_flag=True,
            expose_value=False,
            callback=_print_version,
            is_eager=True,
            help="Print the version.",
        )
    ],
)


def main() -> None:
    """Run as the console script."""
    # A command makes little garbage, and imports make many objects that stay.
    gc.set_threshold(YOUNG_OBJECTS_MAX)
    code = call(sys.argv[1:])
    try:
        sys.stdout.flush()
    except OSError:
        code = _silenced()
    _end(code)


def _end(code: int) -> NoReturn:
    """End the process, without the interpreter's shutdown if nothing needs it.

    The shutdown takes a sixth of the time of a short command. A thread, or a function to call at
    the end, needs it.
    """
    threads = sys.modules.get("threading")
    if atexit._ncallbacks() or (threads is not None and threads.active_count() > 1):
        sys.exit(code)
    try:
        sys.stderr.flush()
    finally:
        os._exit(code)


def call(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code. Only bugs raise."""
    try:
        with muster.make_context("muster", list(arguments), obj=list(arguments)) as context:
            result = muster.invoke(context)
    except click.exceptions.Exit as ending:
        return ending.exit_code
    except click.ClickException as error:
        return _usage_error(error)
    except BrokenPipeError:
        return _silenced()
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except MusterError as error:
        complain(str(error))
        return error.exit_code
    except OSError as error:
        complain(str(error))
        return 1
    return result if isinstance(result, int) else 0


def _usage_error(error: click.ClickException) -> int:
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        print(error.format_message())
        return error.exit_code
    context = getattr(error, "ctx", None)
    path = context.command_path if context else "muster"
    complain(f"{_error_text(error)}; see {path} --help")
    return error.exit_code


def _error_text(error: click.ClickException) -> str:
    """Return click's message as part of a line, with at most one suggestion."""
    if isinstance(error, click.NoSuchOption):
        near = _near_option(error.option_name, error.possibilities or ())
        return f"no such option '{error.option_name}'" + (
            f" (did you mean '{near}'?)" if near else ""
        )
    text = error.format_message().rstrip(".")
    for words, plain in PLAIN.items():
        text = text.replace(words, plain)
    return text if text[:2].isupper() else text[:1].lower() + text[1:]


def _near_option(name: str, known: Sequence[str]) -> str:
    """Return the option that was probably meant; empty if none is near.

    Two swapped letters come first. The dashes do not count, because all options have them.
    """
    from difflib import get_close_matches

    plain = {option.lstrip("-"): option for option in known}
    typed = name.lstrip("-")
    swapped = [
        typed[:place] + typed[place + 1] + typed[place] + typed[place + 2 :]
        for place in range(len(typed) - 1)
    ]
    near = [word for word in swapped if word in plain] or get_close_matches(typed, plain, 1, 0.6)
    return plain[near[0]] if near else ""


def _silenced() -> int:
    """Redirect stdout after its reader has gone (`muster ps | head`).

    Otherwise the interpreter would report the broken pipe at exit.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return PIPE_CLOSED
