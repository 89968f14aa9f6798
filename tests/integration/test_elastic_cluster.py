"""A whole cluster: a training gang takes the node that becomes free, gives one up for a stranger of
higher priority, and loses no work.
"""

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.chaos.cluster import Chaos, running
from tests.integration.test_files_cluster import shell_of
from tests.integration.test_preemption_cluster import TRAIN, until


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Chaos]:
    async with running(tmp_path, nodes=2, gpus=1, MUSTER_GROW_AFTER_S="1") as found:
        yield found


async def test_a_gang_grows_onto_a_free_node_and_shrinks_for_a_stranger(
    cluster: Chaos, tmp_path: Path
) -> None:
    shell = shell_of(cluster, tmp_path)
    await shell.run("submit", "-J", "rock", "--", "sleep", "3")
    await until(cluster, "rock", state="running")
    saves = (
        "--preemptible",
        "--checkpoint-signal",
        "USR1",
        "--checkpoint-grace",
        "10m",
        "-p",
        "10",
    )
    train = (
        sys.executable,
        str(TRAIN),
        "--checkpoint",
        "work.json",
        "--steps",
        "300",
        "--step-s",
        "0.05",
    )
    await shell.run(
        "submit", "-J", "train", "--nodes", "1..2", *saves, "-C", str(tmp_path), "--", *train
    )
    alone = await until(cluster, "train", state="running")
    await until(cluster, "train", state="running", attempt=2, grown=1)
    await shell.run("submit", "-J", "urgent", "-p", "90", "--", "sleep", "60")
    job = await until(cluster, "train", state="completed")
    assert (
        len(alone["node_ids"]),
        job["attempt"],
        job["grown"],
        job["preemptions"],
        job["retries_used"],
    ) == (1, 3, 1, 1, 0)
    facts = await cluster.history(job["id"])
    assert [len(fact["members"]) for fact in facts if fact["kind"] == "job.placed"] == [1, 2, 1]
    assert [fact["reason"] for fact in facts if fact["kind"] == "job.requeued"] == [
        "grown",
        "preempted",
    ]
    said = [
        (await shell.run("logs", "train", "--attempt", f"{attempt}"))[0] for attempt in (1, 2, 3)
    ]
    assert [text.splitlines()[0].rpartition(" as ")[2] for text in said] == [
        "0 of 1",
        "0 of 2",
        "0 of 1",
    ]
    assert "goes on from step 0" in said[0] and all(
        "goes on from step 0 " not in text for text in said[1:]
    )
    assert "done after 300 steps" in said[2]
    shown, _ = await shell.run("describe", "train")
    assert "Grown:      1 time\n" in shown and "1..2x1" in shown
    assert "to run with more nodes" in shown
