"""`muster whatif`: ask if a job would start, now or with additional nodes."""

import click

from libs.cli.flags.jobflags import FlagValues, job_body, job_flags
from libs.cli.gateway import ask
from libs.cli.terminal.output import formatted, print_value
from libs.cli.terminal.table import clean
from libs.cli.verbs.why import print_proof
from libs.client.profile import read_profile

WOULD_WAIT = 1


@click.command(short_help="Check whether a job would start now, or with additional nodes.")
@click.argument("words", nargs=-1, metavar="[-- COMMAND...]")
@click.option(
    "--add-nodes",
    type=click.IntRange(1),
    metavar="N",
    help="Assume N additional nodes. Jobs that wait already are placed on them first.",
)
@click.option(
    "--add-gpus",
    type=click.IntRange(1),
    metavar="N",
    help="GPUs on each additional node (default: 8).",
)
@click.option(
    "--add-model",
    metavar="NAME",
    help="GPU model of the additional nodes, one that the cluster has (default: any).",
)
@job_flags
@formatted
def command(
    words: tuple[str, ...],
    add_nodes: int | None,
    add_gpus: int | None,
    add_model: str | None,
    form: str,
    **values: object,
) -> int:
    """Check whether a job would start now, or with additional nodes.

    The command submits nothing and holds nothing.

    \b
    muster whatif --nodes 2 --gpus 8
    muster whatif --nodes 2 --gpus 8 --add-nodes 2 --add-gpus 8 --add-model H100

    Exit code: 0 if the job would start, 1 if it would wait.
    """
    if add_nodes is None and (add_gpus or add_model):
        raise click.UsageError("--add-gpus and --add-model need --add-nodes N")
    return _ask(words, _added(add_nodes, add_gpus, add_model), form, values)


def _added(nodes: int | None, gpus: int | None, model: str | None) -> dict[str, object]:
    given = {"nodes": nodes, "gpus": gpus, "model": model}
    return (
        {"add_nodes": {name: value for name, value in given.items() if value is not None}}
        if nodes
        else {}
    )


def _ask(words: tuple[str, ...], added: dict[str, object], form: str, values: FlagValues) -> int:
    profile = read_profile()
    wanted = job_body(words or ("true",), profile.user, values)
    wanted.pop("upload", None)
    answer = ask(profile, "POST", "/v1/whatif", body=wanted | added)
    if not print_value(answer, form):
        print(clean(str(answer["answer"])))
        print_proof(answer)
    return 0 if answer["would_start"] else WOULD_WAIT
