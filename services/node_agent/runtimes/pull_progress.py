"""Compute the progress of an image's pull, from the events that the engine sends while it pulls.

Pure. An event is a line of JSON about one layer, or an error. Tests:
tests/unit/test_pull_progress.py.
"""

from typing import Final

import msgspec

# Layers that are counted; an image has at most 127.
LAYERS_MAX: Final = 1_000
DOWNLOADING: Final = "Downloading"
# Events after which no byte of a layer is left to download.
DOWNLOADED: Final = ("Download complete", "Pull complete", "Already exists", "Extracting")
MIB: Final = 1 << 20


class _Bytes(msgspec.Struct, frozen=True):
    current: int = 0
    total: int = 0


class _Event(msgspec.Struct, frozen=True):
    status: str = ""
    id: str = ""
    bytes: _Bytes = msgspec.field(name="progressDetail", default=_Bytes())


class _Failure(msgspec.Struct, frozen=True):
    """The fields of a failure, of any type: a failed pull must not count as done."""

    error: object = None
    detail: object = msgspec.field(name="errorDetail", default=None)


class Progress:
    """The layers of one pull: bytes that have come, and bytes in all, as far as they are known.

    `wrong` is the engine's error.
    """

    def __init__(self) -> None:
        self.layers: dict[str, tuple[int, int]] = {}
        self.wrong = ""

    def note(self, line: bytes) -> None:
        """Take one event. Lines that cannot be decoded, as of newer engines, are ignored."""
        self.wrong = self.wrong or _failure(line)
        try:
            event = msgspec.json.decode(line, type=_Event)
        except msgspec.DecodeError:
            return
        known = self.layers.get(event.id)
        if event.status == DOWNLOADING and (known is not None or len(self.layers) < LAYERS_MAX):
            self.layers[event.id] = (event.bytes.current, event.bytes.total)
        elif event.status in DOWNLOADED and known is not None:
            self.layers[event.id] = (known[1], known[1])

    @property
    def words(self) -> str:
        """Return the progress for people; empty before the first byte."""
        done = sum(current for current, _ in self.layers.values())
        total = sum(max(each) for each in self.layers.values())
        whole = sum(current >= total > 0 for current, total in self.layers.values())
        return (
            f"{done // MIB} of {total // MIB} MiB, {whole} of {len(self.layers)} layers"
            if self.layers
            else ""
        )


def _failure(line: bytes) -> str:
    """Return the engine's words about a failure; empty for another event."""
    try:
        found = msgspec.json.decode(line, type=_Failure)
    except msgspec.DecodeError:
        return ""
    message = found.detail.get("message") if isinstance(found.detail, dict) else None
    return str(found.error or message or found.detail or "")
