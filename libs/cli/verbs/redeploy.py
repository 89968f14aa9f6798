"""`muster redeploy`."""

import click

from libs.cli.flags.modelflags import model_body, redeployment_flags
from libs.cli.formats.uploading import with_upload
from libs.cli.gateway import ask, model_path
from libs.cli.models import wait_until_ready
from libs.client.profile import read_profile


@click.command(short_help="Replace a model's replicas one by one, with a new or the same command.")
@click.argument("name")
@click.argument("words", nargs=-1, metavar="[-- COMMAND [ARGS]...]")
@redeployment_flags
def command(name: str, words: tuple[str, ...], wait: bool, **values: object) -> int:
    """Replace a model's replicas one by one, with a new or the same command.

    Muster starts one additional replica, and stops an old one only when enough others are ready.
    Options that you do not give keep their current values.

    \b
    muster redeploy chat
    muster redeploy chat --wait -- vllm serve Qwen/Qwen3-8B --host 0.0.0.0 --port {port}
    """
    profile = read_profile()
    ask(
        profile,
        "POST",
        model_path(name, "redeploy"),
        body=with_upload(profile, model_body(words, profile.user, values)),
    )
    return wait_until_ready(profile, name) if wait else 0
