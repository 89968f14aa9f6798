"""The answer of a node about the images that it pulls now: agent -> gateway. Pure."""

import msgspec


class PullReport(msgspec.Struct, frozen=True):
    """The progress of the pull of each attempt's image, in words, by `model.attempt_key`."""

    progress: dict[str, str] = {}
