"""Tracing a damaged archive: what is named when it is in too many pieces, and when a record fits no
free place.
"""

import pytest

from services.audit.chain import alignment
from tests.property.test_audit_edits import archive, changed, look, named


def test_an_archive_in_too_many_pieces_is_said_to_be_that_and_not_traced_further(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(alignment, "SEGMENTS_MAX", 3)
    shuffled = archive(12)[::-1]
    found = look(shuffled)
    assert [finding.detail for finding in found if "pieces" in finding.detail] == [
        "the archive is in more than 3 pieces; nothing from here on was traced"
    ]
    assert len(shuffled) > 3


def test_a_record_whose_numbers_fit_no_free_place_is_given_the_one_that_is_left() -> None:
    records = archive(8)
    records[3] = changed(records[3], data=b"forged", index=900, seq=901)
    assert named(records) == [(3, "changed")]


def test_a_changed_record_of_which_no_copy_was_kept_is_named_by_its_hash_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(alignment, "KEPT_MAX", 0)
    records = archive(8)
    records[3] = changed(records[3], data=b"forged")
    assert named(records) == [(3, "changed")]
