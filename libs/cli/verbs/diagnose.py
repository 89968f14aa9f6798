"""`muster diagnose`: find the rank that a stuck or slow job waits for."""

from typing import Final

import click

from libs.cli.flags.durations import age
from libs.cli.gateway import Json, ask, job_path
from libs.cli.jobs import utc_now
from libs.cli.terminal.output import formatted, print_table, print_value, tinted
from libs.cli.terminal.table import BOLD, Column, clean
from libs.client.profile import read_profile

# A diagnosis takes about 3 s; a node without an answer is waited for up to 8 s.
ANSWER_S: Final = 60.0
SUSPECTS: Final = (
    Column("RANK", right=True),
    Column("NODE"),
    Column("PID", right=True),
    Column("WHY", flexible=True),
)
PLACES: Final = (
    Column("COUNT", right=True),
    Column("RANKS"),
    Column("DOING"),
    Column("PLACE", flexible=True),
)
RECORDED: Final = (
    Column("AGE"),
    Column("ATTEMPT", right=True),
    Column("VERDICT"),
    Column("RANK", right=True),
    Column("NODE"),
    Column("FINDING", flexible=True),
)


@click.command(short_help="Find the rank that a stuck or slow job waits for, and why.")
@click.argument("ref", metavar="JOB")
@click.option("--last", is_flag=True, help="List the recorded diagnoses; examine nothing.")
@click.option(
    "--evidence", is_flag=True, help="Print what the nodes saw in the last diagnosis, as JSON."
)
@formatted
def command(ref: str, last: bool, evidence: bool, form: str) -> None:
    """Find the rank that a stuck or slow job waits for, and why.

    \b
    muster diagnose train
    muster diagnose train -o json
    muster diagnose train --last
    muster diagnose train --evidence
    """
    if last and evidence:
        raise click.UsageError("--last and --evidence exclude each other: give one of them")
    profile, path = read_profile(), job_path(ref, "diagnoses")
    if evidence:
        found = ask(profile, "GET", job_path(ref, "diagnoses", "evidence"))
        print_value(found, "yaml" if form == "yaml" else "json")
    elif last:
        answer = ask(profile, "GET", path)
        if not print_value(answer, form):
            _show_recorded(answer)
    else:
        answer = ask(profile, "POST", path, answer_s=ANSWER_S)
        if not print_value(answer, form):
            _show(answer, form == "wide")


def _show(answer: Json, wide: bool) -> None:
    print(clean(str(answer["sentence"])))
    if answer["suspects"]:
        print()
        print_table(SUSPECTS, [_suspect(each) for each in answer["suspects"]], wide=wide)
    if answer["groups"]:
        print()
        print_table(
            PLACES,
            [
                [str(each["count"]), each["ranks"], each["kind"], each["place"]]
                for each in answer["groups"]
            ],
            wide=wide,
        )
    for note in answer["notes"]:
        print(f"\n{tinted('Note:', BOLD)} {clean(str(note))}")


def _suspect(each: Json) -> list[str]:
    rank, pid = each["rank"], each["pid"]
    return ["" if rank < 0 else str(rank), each["node_id"], str(pid or ""), each["why"]]


def _show_recorded(answer: Json) -> None:
    rows = answer["diagnoses"]
    if not rows:
        print("no diagnosis of this job is recorded")
        return
    now = utc_now()
    print_table(
        RECORDED,
        [
            [
                age(each["at"], now),
                str(each["attempt"]),
                each["verdict"],
                "" if each["rank"] is None else str(each["rank"]),
                each["node_id"],
                each["sentence"],
            ]
            for each in rows
        ],
    )
