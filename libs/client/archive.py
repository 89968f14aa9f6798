"""The archive of an upload: a directory, as `--upload` packs it, and further files.

Its bytes depend on the content alone, so the cluster gets the same content once. Tests:
tests/unit/test_client_function.py.
"""

import hashlib
import io
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO, Literal

from libs.client.errors import InvalidRequest
from libs.common.errors import Refused

# Pieces of libs.common and libs.cli are imported where they are used: a light `import muster`.


def write(file: BinaryIO, directory: str | Path | None, files: Mapping[str, bytes]) -> str:
    """Write the archive to an empty file and return its SHA-256. Raises InvalidRequest."""
    if directory is not None:
        _pack(Path(directory), file)
    if files or directory is None:
        _add(file, "w" if directory is None else "a", files)
    file.seek(0)
    return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]


def _add(file: BinaryIO, mode: Literal["w", "a"], files: Mapping[str, bytes]) -> None:
    with tarfile.open(fileobj=file, mode=mode, format=tarfile.PAX_FORMAT, encoding="utf-8") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name.rstrip("/"))
            if name.endswith("/"):
                member.type, member.mode = tarfile.DIRTYPE, 0o755
                tar.addfile(member)
            else:
                member.size, member.mode = len(data), 0o644
                tar.addfile(member, io.BytesIO(data))


def _pack(directory: Path, file: BinaryIO) -> None:
    from libs.cli.formats.packing import pack
    from libs.common.settings import configuration
    from libs.common.transport.uploads import Bounds

    try:
        bounds = configuration.resolve().settings
        pack(directory, file, Bounds(bounds.upload_bytes, bounds.upload_files))  # type: ignore[arg-type]
    except Refused as error:
        raise InvalidRequest(f"upload: {error}", field="upload") from error
    file.seek(0)
