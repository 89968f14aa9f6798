"""`muster models`."""

import click

from libs.cli.gateway import ask, ask_all, model_path
from libs.cli.jobs import command_line, utc_now
from libs.cli.models import (
    COLUMNS,
    REPLICA_COLUMNS,
    SHARE_COLUMNS,
    Model,
    adapters_line,
    batching_line,
    guests_line,
    limits_line,
    names_line,
    queue_line,
    replica_row,
    row,
    scaling_line,
    share_row,
)
from libs.cli.terminal.output import listed, print_table, print_value
from libs.cli.terminal.table import clean
from libs.client.profile import Profile, read_profile


@click.command(short_help="List models, or show one with its replicas.")
@click.argument("name", required=False)
@click.option("-a", "--all", "every", is_flag=True, help="Include undeployed models.")
@listed
def command(name: str | None, every: bool, form: str, no_headers: bool) -> None:
    """List models, or show one with its replicas.

    For one model, the command also prints the scheduler's explanation of its state, the requests
    that wait in the gateway, and the tenants' shares of the last minute (output tokens count
    twice).

    \b
    muster models
    muster models chat
    muster models -o json | jq -r '.[] | select(.ready < .wanted) | .name'
    """
    profile = read_profile()
    if name is not None:
        _show(profile, name, form, no_headers)
        return
    models = ask_all(profile, "/v1/deployments", "deployments", {"all": "true" if every else None})
    if not print_value(models, form):
        print_table(
            COLUMNS, [row(model, utc_now()) for model in models], not no_headers, form == "wide"
        )


def _show(profile: Profile, name: str, form: str, no_headers: bool) -> None:
    model: Model = ask(profile, "GET", model_path(name))
    if print_value(model, form):
        return
    print_table(COLUMNS, [row(model, utc_now())], not no_headers, form == "wide")
    is_guest = not model["command"] and not model.get("image")
    print()
    if is_guest:
        print(f"shared by tenant {model['tenant']}")
    else:
        print(f"command  {clean(command_line(model))}")
    if also := names_line(model):
        print(f"names    {clean(also)}")
    if adapters := adapters_line(model):
        print(f"adapters {clean(adapters)}")
    if model.get("shared_with"):
        print(f"shared   {clean(guests_line(model))}")
    if limits := limits_line(model):
        print(f"limits   {clean(limits)}")
    if not is_guest:
        print(f"why      {clean(str(ask(profile, 'GET', model_path(name, 'why'))['answer']))}")
    if (targets := model.get("scaling")) is not None:
        print(f"scaling  {scaling_line(targets)}")
        if model["law"]:
            print(f"         {clean(model['law'])}")
    if (batches := model.get("batching")) is not None:
        print(f"batches  {batching_line(batches)}")
    if model.get("continues_streams"):
        print("streams  go on at another replica if theirs dies")
    queue = model.get("queue")
    if queue is not None:
        print(f"queue    {queue_line(queue)}")
    print()
    if not is_guest:
        print_table(
            REPLICA_COLUMNS,
            [replica_row(replica, utc_now()) for replica in model["replicas"]],
            not no_headers,
            form == "wide",
        )
    if queue is not None and queue["shares"]:
        print()
        shares = [share_row(share) for share in queue["shares"]]
        print_table(SHARE_COLUMNS, shares, not no_headers, form == "wide")
