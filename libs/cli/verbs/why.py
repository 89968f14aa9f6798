"""`muster why`."""

import click

from libs.cli.gateway import Json, ask, job_path
from libs.cli.output import formatted, print_table, print_value, tinted
from libs.cli.profile import read_profile
from libs.cli.table import BOLD, Column, clean, state_colour

BLOCKERS = (Column("COUNT", right=True), Column("WHAT"), Column("DETAIL", flexible=True))


@click.command(short_help="Say why a job is where it is, now or at any past moment.")
@click.argument("ref", metavar="JOB")
@click.option("--at", type=click.IntRange(1), metavar="SEQ", help="At this number of the log (see: muster log).")
@formatted
def command(ref: str, at: int | None, form: str) -> None:
    """Say why a job is where it is, now or at any past moment.

    \b
    muster why train
    muster why train --at 1042
    """
    answer = ask(read_profile(), "GET", job_path(ref, "why"), {"at": at})
    if not print_value(answer, form):
        state = str(answer.get("state", ""))
        said = clean(str(answer.get("answer", "")))
        print(said if state in said else f"{tinted(state, state_colour(state))}: {said}")
        print_proof(answer)


def print_proof(answer: Json) -> None:
    """What stands in the way, and what would help."""
    blockers = answer.get("blockers") or []
    if blockers:
        print()
        print_table(BLOCKERS, [[str(each.get(name, "")) for name in ("count", "what", "detail")] for each in blockers])
    if answer.get("remedy"):
        print(f"\n{tinted('Remedy:', BOLD)} {clean(str(answer['remedy']))}")
