"""`muster describe` shows how a member ended."""

import pytest

from libs.cli.verbs.describe import _how


@pytest.mark.parametrize(
    ("reason", "detail", "words"),
    [
        ("exited", "the main process exited with 1", ""),
        (
            "exited",
            "the container engine was lost: refused",
            "the container engine was lost: refused",
        ),
        ("no_image", "image x cannot be pulled", "no_image: image x cannot be pulled"),
        ("", "", ""),
    ],
)
def test_a_plain_exit_needs_no_words_and_a_lost_engine_does(
    reason: str, detail: str, words: str
) -> None:
    assert _how({"reason": reason, "detail": detail}) == words
