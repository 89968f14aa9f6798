"""`muster redeploy`."""

import click

from libs.cli.flags.modelflags import asked_model, model_flags
from libs.cli.formats.uploading import brought
from libs.cli.gateway import ask, model_path
from libs.cli.models import wait_until_ready
from libs.cli.profile import read_profile


@click.command(short_help="Exchange a model's replicas one by one, with a new command or the same.")
@click.argument("name")
@click.argument("words", nargs=-1, metavar="[-- COMMAND [ARGS]...]")
@model_flags
def command(name: str, words: tuple[str, ...], wait: bool, **asked: object) -> int:
    """Exchange a model's replicas one by one, with a new command or the same.

    One more than asked for is begun, and an old one ends only when as many as asked for are ready
    without it. What is not given stays as it is.

    \b
    muster redeploy chat
    muster redeploy chat --wait -- vllm serve Qwen/Qwen3-8B --host 0.0.0.0 --port {port}
    """
    profile = read_profile()
    ask(
        profile,
        "POST",
        model_path(name, "redeploy"),
        body=brought(profile, asked_model(words, profile.user, asked)),
    )
    return wait_until_ready(profile, name) if wait else 0
