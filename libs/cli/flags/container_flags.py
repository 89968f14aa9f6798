"""The flags about the container of a job, allocation or model, and their part of the request.

They become `container` of the body (`formats/container_fields.py`).
"""

import shlex
from typing import Any, Final

import click

from libs.cli.flags.sizes import parse_size
from libs.cli.formats.container_fields import nested, read_mount

IMAGE: Final = click.option(
    "--image",
    metavar="NAME",
    help=(
        "Run in a container of this image (Docker or Podman on the node). The command is passed "
        "to the image's entry point. Without a command, the image's own command runs."
    ),
)
ENTRYPOINT: Final = click.option(
    "--entrypoint",
    metavar="COMMAND",
    help="Replace the image's entry point. With '' the command runs without an entry point.",
)
# Flags of allocations too.
OPTIONS: Final = (
    click.option(
        "--user",
        "container_user",
        metavar="UID[:GID]",
        help="User in the container, if the node allows it (default: the job's or the image's).",
    ),
    click.option(
        "--mount",
        "mounts",
        multiple=True,
        metavar="SRC:DST[:ro]",
        help="Mount a file or directory of the node that its administrator allows (repeatable).",
    ),
    click.option(
        "--cache",
        "caches",
        multiple=True,
        metavar="NAME",
        help=(
            "Mount a directory at /cache/NAME that your tenant keeps on each node between jobs, "
            "for example huggingface (repeatable)."
        ),
    ),
    click.option(
        "--shm-size",
        metavar="SIZE",
        help="Size of /dev/shm in the container, for example 16GiB (default: half of --memory).",
    ),
)
_NAMES: Final = ("entrypoint", "container_user", "mounts", "caches", "shm_size")


def with_container(body: dict[str, Any]) -> dict[str, Any]:
    """Return the body with the flags of containers as `container`. Raises UsageError."""
    given = {name: body[name] for name in _NAMES if name in body}
    if not given:
        return body
    fields: dict[str, Any] = {}
    try:
        if "entrypoint" in given:
            fields["container.entrypoint"] = shlex.split(given["entrypoint"])
        if "container_user" in given:
            fields["container.user"] = given["container_user"]
        if "mounts" in given:
            fields["container.mounts"] = [read_mount(text) for text in given["mounts"]]
        if "caches" in given:
            fields["container.caches"] = list(given["caches"])
        if "shm_size" in given:
            fields["container.shm_bytes"] = parse_size(given["shm_size"])
    except ValueError as error:
        raise click.UsageError(f"container: {error}") from None
    rest = {name: value for name, value in body.items() if name not in _NAMES}
    return nested(rest | fields)
