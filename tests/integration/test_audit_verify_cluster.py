"""`muster audit verify` on a real cluster with TLS whose log was trimmed."""

import re
from pathlib import Path

import pytest

from tests.integration.backup_world import World

COMPARED = re.compile(r"(\d+) compared with the stream from commit (\d+) on: the chain is whole")


@pytest.mark.timeout(240)
def test_a_trimmed_cluster_with_tls_is_compared_with_what_its_log_holds(tmp_path: Path) -> None:
    world = World(
        tmp_path,
        MUSTER_TRIM_KEEP_COMMITS="5",
        MUSTER_TRIM_KEEP_HOURS="0",
        MUSTER_TRIM_EVERY_S="1",
    )
    try:
        for _ in range(12):
            world.submit(1.0)
        world.until(lambda: "is trimmed up to" in audit_log(world), "the log is trimmed")
        found = COMPARED.search(world.cli("audit", "verify"))
        assert found is not None and int(found[1]) > 1 and int(found[2]) > 2

        (world.state / "keys" / "trimmer.pub").unlink()
        code, out, said = world.ran("audit", "verify")
        assert code == 0 and COMPARED.search(out), out + said
        assert "audit verify: the snapshot base is not used" in said
    finally:
        world.close()


def audit_log(world: World) -> str:
    return "".join(path.read_text() for path in (world.state / "logs").glob("audit*"))
