"""A replica's whole answer, and its failure before anything was sent to the client.

Tests: tests/integration/test_openai_failures.py.
"""

from typing import NamedTuple


class Answer(NamedTuple):
    """A whole answer of a replica."""

    status: int
    content_type: str
    body: bytes
    retry_after: str = ""
    replica: str = ""


class ReplicaFailed(Exception):
    """A replica failed before anything was sent to the client.

    `answer` is its own answer, if it gave one. `is_alive`: it may work on the request still, or be
    too busy, so another try adds to the load. `is_spared`: the replica is well. `is_free`: it did
    no work on the request, which costs its tenant no tokens.
    """

    is_spared = False

    def __init__(
        self,
        reason: str,
        answer: Answer | None = None,
        is_alive: bool = False,
        is_free: bool = False,
    ) -> None:
        super().__init__(reason)
        self.answer = answer
        self.is_alive = is_alive or answer is not None
        self.is_free = is_free or answer is not None
