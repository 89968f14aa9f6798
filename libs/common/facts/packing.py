"""Compresses the facts of a large commit.

Pure. A packed commit holds a gang of thousands of devices, or thousands of preempted jobs. Only a
commit that does not fit in plain form is packed, and it names the reader version that it needs. A
reader bounds what it unpacks: a node's few bytes must not become gigabytes. Tests:
tests/unit/test_packed_commits.py.
"""

import zlib
from typing import Final

from libs.common.errors import TooNew

# Bytes of one commit's facts before packing. A node's commit has a lower bound, because its key may
# be stolen.
UNPACKED_BYTES_MAX: Final = 8 << 20
NODE_UNPACKED_BYTES_MAX: Final = 1 << 20
# Facts in one commit of a node. An agent puts at most 256 into one.
NODE_FACTS_MAX: Final = 2_048
NODE_WRITERS: Final = "facts.node."
LEVEL: Final = 6


def unpacked_max(writer: str) -> int:
    """Return how many bytes of facts a packed commit of this writer may hold."""
    return NODE_UNPACKED_BYTES_MAX if is_node(writer) else UNPACKED_BYTES_MAX


def is_node(writer: str) -> bool:
    return writer.startswith(NODE_WRITERS)


def pack(data: bytes) -> bytes:
    return zlib.compress(data, LEVEL)


def unpack(data: bytes, bytes_max: int) -> bytes:
    """Return the bytes that were packed.

    Raises ValueError for damaged bytes, and for more than `bytes_max`.
    """
    stream = zlib.decompressobj()
    try:
        found = stream.decompress(data, bytes_max)
    except zlib.error as error:
        raise ValueError(f"the packed facts are damaged: {error}") from error
    if not stream.eof or stream.unused_data:
        raise ValueError(f"the packed facts are damaged, or more than {bytes_max} bytes")
    return found


def too_new(needed: int, reads: int) -> TooNew:
    """Return the error for a commit that needs a later reader than this one."""
    return TooNew(
        f"a commit needs reader version {needed}, this is version {reads}: upgrade this "
        "process and restart it"
    )
