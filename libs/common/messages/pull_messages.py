"""The answer of a node about the images that it pulls now: agent -> gateway. Pure."""

import msgspec


class PullReport(msgspec.Struct, frozen=True):
    """How far the pull of each attempt's image is, in words, by `model.attempt_key`."""

    progress: dict[str, str] = {}
