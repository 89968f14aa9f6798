"""Reads device names from the files of the Container Device Interface (CDI).

Such a file has a kind (`nvidia.com/gpu`) and devices with names. A container engine adds what the
file lists (device files, mounts, variables) for a device that it is asked for by its full name
(`nvidia.com/gpu=GPU-4c1e...`). Muster asks by CDI only for devices that a file names by their own
UUID; `nvidia-ctk cdi generate --device-name-strategy=uuid` writes such a file.

Source: the CDI specification, https://github.com/cncf-tags/container-device-interface.
Tests: tests/unit/test_cdi.py.
"""

import logging
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import yaml

# Where engines look by themselves.
FOLDERS: Final = ("/etc/cdi", "/var/run/cdi")
SUFFIXES: Final = (".json", ".yaml", ".yml")
# A file for eight devices has about 20 KB.
FILE_BYTES_MAX: Final = 4 << 20
FILES_MAX: Final = 64
# libyaml reads ten times faster than Python, where it is there.
LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

logger = logging.getLogger(__name__)


def names(folders: Iterable[str]) -> dict[str, str]:
    """Return the full name of each device by its own name, from all files of these folders.

    A device that two files name belongs to the file that comes last, as engines have it. Files that
    cannot be read are skipped with a warning. Blocks.
    """
    found: dict[str, str] = {}
    for path in _files(folders):
        try:
            status = path.stat()
            if status.st_size > FILE_BYTES_MAX:
                raise ValueError(f"it has more than {FILE_BYTES_MAX} bytes")
            found |= _read(path, status.st_mtime_ns, status.st_size)
        except (OSError, ValueError, yaml.YAMLError) as error:
            logger.warning("%s: the CDI file is skipped: %s", path, error)
    return found


def _files(folders: Iterable[str]) -> list[Path]:
    found: list[Path] = []
    for folder in folders:
        try:
            found += sorted(each for each in Path(folder).iterdir() if each.suffix in SUFFIXES)
        except OSError:
            continue
    return found[:FILES_MAX]


@lru_cache(maxsize=FILES_MAX)
def _read(path: Path, changed_ns: int, size_bytes: int) -> dict[str, str]:
    """Return the names in one file. Read again when its time or size has changed."""
    # JSON is YAML too.
    return _named(yaml.load(path.read_bytes(), Loader=LOADER))  # nosec B506


def _named(spec: Any) -> dict[str, str]:  # noqa: ANN401  a file of the operator
    kind = spec.get("kind") if isinstance(spec, dict) else None
    devices = spec.get("devices") if isinstance(spec, dict) else None
    if not isinstance(kind, str) or not isinstance(devices, list):
        raise ValueError("it has no kind or no list of devices")
    own = [each.get("name") for each in devices if isinstance(each, dict)]
    return {name: f"{kind}={name}" for name in own if isinstance(name, str)}
