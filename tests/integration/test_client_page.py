"""The examples of docs/howto/use-the-python-client.md, as one program against a real cluster."""

import asyncio
import os
import re
import sys
from pathlib import Path

import pytest

from tests.chaos.cluster import running
from tests.tidy import ROOT

PAGE = ROOT / "docs" / "howto" / "use-the-python-client.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
WAIT_S = 150


@pytest.mark.timeout(240)
async def test_the_examples_of_the_page_run(tmp_path: Path) -> None:
    program = tmp_path / "page.py"
    program.write_text("\n\n".join(BLOCK.findall(PAGE.read_text())))
    async with running(tmp_path / "cluster", nodes=3, gpus=2) as cluster:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, str(program)),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={
                **os.environ,
                "MUSTER_PROFILE": str(cluster.folder / "profile.json"),
                "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "libs/job/public"))),
            },
        )
        out, err = await asyncio.wait_for(process.communicate(), WAIT_S)
    assert process.returncode == 0, err.decode()
    said = out.decode()
    assert said.startswith("hello\ncompleted 0 ['node-")
    for expected in (
        "['completed', 'completed'",
        "nodes - nodes: 0 is out of bounds",
        "{'rate': 0.1, 'loss': 0.05} completed",
        "[{'rate': 0.1, 'loss': 0.05}, {'rate': 0.2,",
        "['hub-token']",
        "('node-3', 'healthy')",
    ):
        assert expected in said, said
