"""Tracing a damaged archive: too many pieces, and records that fit no free place."""

import pytest

from services.audit.chain import segments
from tests.property.test_audit_edits import archive, changed, look, named


def test_tracing_stops_when_the_archive_is_in_too_many_pieces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(segments, "SEGMENTS_MAX", 3)
    shuffled = archive(12)[::-1]
    found = look(shuffled)
    assert [finding.detail for finding in found if "pieces" in finding.detail] == [
        "the archive is in more than 3 pieces; nothing from here on was traced"
    ]
    assert len(shuffled) > 3


def test_record_with_impossible_numbers_takes_the_last_free_place() -> None:
    records = archive(8)
    records[3] = changed(records[3], data=b"forged", index=900, seq=901)
    assert named(records) == [(3, "changed")]


def test_changed_record_is_reported_even_if_its_bytes_were_not_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(segments, "KEPT_MAX", 0)
    records = archive(8)
    records[3] = changed(records[3], data=b"forged")
    assert named(records) == [(3, "changed")]
