"""An agent keeps the newest evidence within a bound, and everything else that it saves."""

import os
from pathlib import Path

from services.node_agent.incarnation import EVIDENCE_KEPT, IncarnationFile


async def test_only_the_newest_evidence_is_kept(tmp_path: Path) -> None:
    memory = IncarnationFile(tmp_path)
    for number in range(EVIDENCE_KEPT + 5):
        path = tmp_path / f"evidence-j{number}.1.json"
        path.touch()
        os.utime(path, (number, number))
    await memory.keep("devices.json", b"{}")
    await memory.keep("evidence-last.1.json", b"{}")
    left = set(os.listdir(tmp_path))
    assert (
        len(left) == EVIDENCE_KEPT + 2
        and {"devices.json", "devices.spare", "evidence-last.1.json", "evidence-j6.1.json"} <= left
    )
    assert "evidence-j5.1.json" not in left
