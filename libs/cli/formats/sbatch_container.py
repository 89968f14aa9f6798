"""The container of a script: the flags of pyxis (`--container-image` and so on) in `#SBATCH` lines,
and those of `muster submit` in `#MUSTER` lines.

As with pyxis, the image's entry point is not run unless `--container-entrypoint` asks for it. Pure.
Part of `sbatch.py`; tests: tests/unit/test_cli_sbatch_containers.py.
"""

import re
import shlex
from typing import Any, Final

from libs.cli.formats.container_fields import read_mount
from libs.cli.formats.sbatch_script import Script
from libs.common.quantities import bytes_of

PYXIS_IMAGE: Final = "container-image"
MOUNTS: Final = "container-mounts"
# Flags of `#MUSTER` lines.
OWN: Final = ("image", "entrypoint", "user", "mount", "cache", "shm-size")
# Several of them add up, as in the flags of `muster submit`.
REPEATABLE: Final = ("mount", "cache")
# Flags that do nothing without an image.
NEED_IMAGE: Final = (MOUNTS, "container-workdir", "container-entrypoint", *OWN[1:])
_URL: Final = re.compile(r"(?:docker|dockerd)://")


def container(script: Script) -> dict[str, Any]:
    """Return the image of the script, and what it asks of its container. Raises Refused."""
    flags = script.flags
    if PYXIS_IMAGE in flags and "image" in flags:
        raise script.fault("image", f"--{PYXIS_IMAGE} names an image too: give one of them")
    image = script.value("image", str, "") or script.value(PYXIS_IMAGE, image_of, "")
    if not image:
        for flag in sorted(flags.keys() & set(NEED_IMAGE)):
            script.note(flag, f"not honoured without an image: give --{PYXIS_IMAGE}")
        return {}
    inner: dict[str, Any] = {}
    if "entrypoint" in flags:
        words: list[str] = []
        inner["entrypoint"] = script.value("entrypoint", lambda text: shlex.split(text), words)
    elif "container-entrypoint" not in flags:
        inner["entrypoint"] = []
    none: list[dict[str, Any]] = []
    for field, found in (
        ("user", script.value("user", str, "")),
        ("workdir", script.value("container-workdir", str, "")),
        (
            "mounts",
            script.value(MOUNTS, mounts_of, none) + script.value("mount", own_mounts_of, none),
        ),
        ("caches", script.words("cache")),
        ("shm_bytes", script.value("shm-size", bytes_of, 0)),
    ):
        if found:
            inner[field] = found
    return {"image": image, "container": inner} if inner else {"image": image}


def image_of(text: str) -> str:
    """Return the image that pyxis names as [docker://][REGISTRY#]IMAGE[:TAG]. Raises ValueError."""
    name = _URL.sub("", text)
    if name.startswith(("/", ".")) or name.endswith(".sqsh"):
        raise ValueError(
            "an image in a file is not supported: push it to a registry, and give its name"
        )
    if "@" in name.partition("#")[0] and "#" in name:
        raise ValueError(
            "a user of a registry is not given here: use muster secret set --registry HOST"
        )
    return name.replace("#", "/", 1)


def own_mounts_of(text: str) -> list[dict[str, Any]]:
    """Return the mounts SRC:DST[:ro], separated by commas. Raises ValueError."""
    return [read_mount(each) for each in text.split(",")]


def mounts_of(text: str) -> list[dict[str, Any]]:
    """Return the mounts that pyxis names as SRC[:DST[:FLAGS]], separated by commas.

    Raises ValueError for a flag that a mount cannot have.
    """
    found = []
    for word in filter(None, text.split(",")):
        source, _, rest = word.partition(":")
        target, _, mode = rest.partition(":")
        found.append(read_mount(f"{source}:{target or source}" + (f":{mode}" if mode else "")))
    return found
