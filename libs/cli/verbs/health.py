"""`muster health`: list GPUs that are unhealthy, draining or offline, or show one."""

from urllib.parse import quote

import click

from libs.cli.controls import worded
from libs.cli.gateway import Json, ask, ask_all
from libs.cli.terminal.gpus import print_gpus
from libs.cli.terminal.output import formatted, print_table, print_value
from libs.cli.terminal.table import Column
from libs.client.profile import read_profile
from libs.common.quantities import counted

ERRORS = (Column("ERROR"), Column("VERDICT"), Column("JOBS", flexible=True))


@click.command(short_help="List GPUs that are unhealthy, draining or offline, or show one.")
@click.option("--gpu-id", "uuid", metavar="UUID", help="Show this GPU, with its last errors.")
@formatted
def command(uuid: str | None, form: str) -> None:
    """List GPUs that are unhealthy, draining or offline, or show one.

    \b
    muster health
    muster health --gpu-id GPU-node-1-0
    """
    profile = read_profile()
    if uuid is not None:
        gpu = ask(profile, "GET", f"/v1/gpus/{quote(uuid, safe='')}")
        if not print_value(gpu, form):
            _show(gpu, form == "wide")
        return
    gpus = ask_all(profile, "/v1/gpus", "gpus")
    unwell = [gpu for gpu in gpus if (gpu["health"], gpu["service"]) != ("healthy", "online")]
    if print_value(unwell, form):
        return
    if unwell:
        print_gpus(unwell, form == "wide", no_headers=False)
    else:
        print(f"all of {counted(len(gpus), 'GPU')} are healthy and online")


def _show(gpu: Json, wide: bool) -> None:
    print_gpus([gpu], wide, no_headers=False)
    print(
        f"\nhealth {gpu['health']}, service {gpu['service']}"
        + (f", recovers by: {gpu['verdict']}" if gpu["verdict"] else "")
    )
    if gpu["detail"]:
        print(gpu["detail"])
    for name, control in gpu["controls"].items():
        print(worded(name, control))
    if gpu["suspicion"]:
        print(gpu["suspicion"])
    if gpu["errors"]:
        print()
        print_table(ERRORS, [_error(error) for error in gpu["errors"]], wide=wide)


def _error(error: Json) -> list[str]:
    return [
        str(error["error"]),
        str(error["verdict"]),
        ", ".join(str(job["job_id"]) for job in error["jobs"]) or "-",
    ]
