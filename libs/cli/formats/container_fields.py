"""The container of a job in files and flags: fields named `container.NAME` become one object.

Pure. Tests: tests/unit/test_cli_containers.py.
"""

from typing import Any, Final

PREFIX: Final = "container."
LISTS: Final = ("container.entrypoint", "container.caches")
MOUNT: Final = "SOURCE:TARGET or SOURCE:TARGET:ro, for example /data/sets:/data:ro"


def nested(job: dict[str, Any]) -> dict[str, Any]:
    """Return the job with its fields `container.NAME` as fields of `container`.

    A text in the place of a list is a list of one.
    """
    inner = {
        name.removeprefix(PREFIX): [value] if name in LISTS and isinstance(value, str) else value
        for name, value in job.items()
        if name.startswith(PREFIX)
    }
    outer = {name: value for name, value in job.items() if not name.startswith(PREFIX)}
    return outer | ({"container": inner} if inner else {})


def read_mount(text: str) -> dict[str, Any]:
    """Return the mount that SOURCE:TARGET[:ro] stands for. Raises ValueError."""
    source, _, rest = text.partition(":")
    target, colon, mode = rest.partition(":")
    if not source or not target or (colon and mode not in ("ro", "rw")):
        raise ValueError(f"{text!r} is not a mount: write {MOUNT}")
    return {"source": source, "target": target, "read_only": mode == "ro"}
