"""`muster whatif`: a job that is not submitted, on nodes that may not be bought."""

import click

from libs.cli.flags.jobflags import Asked, asked_job, job_flags
from libs.cli.gateway import ask
from libs.cli.profile import read_profile
from libs.cli.terminal.output import formatted, print_value
from libs.cli.terminal.table import clean
from libs.cli.verbs.why import print_proof

WOULD_WAIT = 1


@click.command(
    short_help="Say whether a job would start now, or with nodes that are not bought yet."
)
@click.argument("words", nargs=-1, metavar="[-- COMMAND...]")
@click.option(
    "--add-nodes",
    type=click.IntRange(1),
    metavar="N",
    help="As if N more nodes had joined, and what waits had been placed first.",
)
@click.option(
    "--add-gpus", type=click.IntRange(1), metavar="N", help="GPUs of each new node (default 8)."
)
@click.option(
    "--add-model",
    metavar="NAME",
    help="Their model, one that the cluster has: H100 (default: any).",
)
@job_flags
@formatted
def command(
    words: tuple[str, ...],
    add_nodes: int | None,
    add_gpus: int | None,
    add_model: str | None,
    form: str,
    **asked: object,
) -> int:
    """Say whether a job would start now, or with nodes that are not bought yet.

    Nothing is submitted and nothing is held.

    \b
    muster whatif --nodes 2 --gpus 8
    muster whatif --nodes 2 --gpus 8 --add-nodes 2 --add-gpus 8 --add-model H100

    Exit code: 0 when it would start, 1 when it would wait.
    """
    if add_nodes is None and (add_gpus or add_model):
        raise click.UsageError("--add-gpus and --add-model say what --add-nodes adds: give it too")
    return _ask(words, _added(add_nodes, add_gpus, add_model), form, asked)


def _added(nodes: int | None, gpus: int | None, model: str | None) -> dict[str, object]:
    given = {"nodes": nodes, "gpus": gpus, "model": model}
    return (
        {"add_nodes": {name: value for name, value in given.items() if value is not None}}
        if nodes
        else {}
    )


def _ask(words: tuple[str, ...], added: dict[str, object], form: str, asked: Asked) -> int:
    profile = read_profile()
    wanted = asked_job(words or ("true",), profile.user, asked)
    wanted.pop("upload", None)
    answer = ask(profile, "POST", "/v1/whatif", body=wanted | added)
    if not print_value(answer, form):
        print(clean(str(answer["answer"])))
        print_proof(answer)
    return 0 if answer["would_start"] else WOULD_WAIT
