"""Bugs planted in the memory broker's books: see `planted.py`."""

import pytest

from services.node_agent.memory import grants as g


def broker_forgets_what_it_granted(patch: pytest.MonkeyPatch) -> None:
    """Each request may be as large as the whole pool, whatever the attempt has already."""
    patch.setattr(g, "_check_room", lambda books, attempt, device, rounded: None)


def dead_holders_keep_their_memory(patch: pytest.MonkeyPatch) -> None:
    """The end of a process returns nothing."""
    patch.setattr(g, "died", lambda books, holder: ())


def release_ends_the_attempt_and_frees_nothing(patch: pytest.MonkeyPatch) -> None:
    """A released attempt may not ask for more, and what it has stays."""

    def forgetful(books: g.Books, key: str) -> tuple[g.Grant, ...]:
        books.attempts.pop(key, None)
        return ()

    patch.setattr(g, "released", forgetful)
