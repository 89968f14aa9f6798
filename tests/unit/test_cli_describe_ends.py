"""`muster describe` shows how a member ended."""

import pytest

from libs.cli.verbs.describe import _end_text


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
def test_describe_gives_no_reason_for_a_plain_exit_but_for_a_lost_engine(
    reason: str, detail: str, words: str
) -> None:
    assert _end_text({"reason": reason, "detail": detail}) == words
