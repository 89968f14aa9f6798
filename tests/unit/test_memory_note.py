"""A note of the agent has its last content, whatever fails meanwhile."""

import asyncio
from pathlib import Path

import pytest

from services.node_agent.memory.note import Note


async def test_last_content_of_many_counts(tmp_path: Path) -> None:
    note = Note(tmp_path / "note.json")
    await asyncio.gather(*(note.write(b"x" * size) for size in range(1, 50)))
    assert note.path.read_bytes() == b"x" * 49
    note._write(1, b"late")
    assert note.path.read_bytes() == b"x" * 49
    await note.write(b"")
    assert not note.path.exists()


async def test_content_before_stays_if_the_next_cannot_be_written(tmp_path: Path) -> None:
    note = Note(tmp_path / "note.json")
    await note.write(b"before")
    (tmp_path / "note.new").mkdir()
    with pytest.raises(OSError, match="directory"):
        await note.write(b"after")
    assert note.path.read_bytes() == b"before"
    (tmp_path / "note.new").rmdir()
    await note.write(b"after")
    assert note.path.read_bytes() == b"after"
