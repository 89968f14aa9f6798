"""Directories and archives that jobs bring along: sent once per tenant, named by their SHA-256.

Tests: tests/integration/test_client_cluster.py.
"""

import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from libs.client import archive, calls, timing
from libs.client.asynchronous.connection import AsyncConnection
from libs.client.asynchronous.pauses import in_thread
from libs.client.errors import NotFound

SHA256: Final = re.compile(r"[0-9a-f]{64}")


async def sent(connection: AsyncConnection, source: str | Path) -> str:
    """Send a directory unless the cluster has it, and return the SHA-256 of its archive.

    The SHA-256 of an archive that was sent before is returned as it is. Raises InvalidRequest.
    """
    if isinstance(source, str) and SHA256.fullmatch(source):
        return source
    return await sent_with(connection, {}, source)


async def sent_with(
    connection: AsyncConnection, files: Mapping[str, bytes], directory: str | Path | None
) -> str:
    """Send an archive of a directory and of further files, and return its SHA-256.

    A name that ends in / is a folder. Raises InvalidRequest.
    """
    descriptor, name = tempfile.mkstemp(prefix="muster-upload-")
    try:
        with os.fdopen(descriptor, "w+b") as file:
            sha256 = await in_thread(archive.write, file, directory, files)
        path = calls.path_of("uploads", sha256)
        try:
            await connection.send(calls.reading(path))
        except NotFound:
            call = calls.Call("PUT", path, repeatable=True, timeout_s=timing.SEND_S)
            await connection.send(call, lambda: open(name, "rb"))  # noqa: SIM115  the connection closes it
    finally:
        os.unlink(name)
    return sha256
