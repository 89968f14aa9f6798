"""Two tenants on one real agent: no job can trace, read, signal or open the other's processes.

The same holds for the agent's processes and files. Needs root.
"""

import os
import shutil
import stat
from pathlib import Path

import pytest

from libs.common import facts as f
from libs.common.devices.means import takes_only
from libs.common.model import GpuHold, GpuId
from tests.integration.test_agent_process import Cluster, cluster

__all__ = ["cluster"]
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a job another user")
UID = 71_235
# Exits with the number of doors that were open. $1 is a process of the victim's, $2 a file of the
# victim's, $3 the agent.
DOORS = """
open=0
try() { "$@" > /dev/null 2>&1 && open=$((open + 1)) && echo "open: $*"; }
for pid in $1 $3; do
  try cat /proc/$pid/environ
  try ls /proc/$pid/fd/
  try ls /proc/$pid/cwd/
  try dd if=/proc/$pid/mem bs=1 count=1 skip=4194304
  try kill -0 $pid
done
try cat $2
try sh -c "echo x >> $2"
try ls $(dirname $2)
exit $open
"""
SECOND = GpuHold(GpuId("GPU-n-1"))


def opened_up(folder: Path) -> None:
    """Return a folder that other users can enter; a test's own folder is closed to them."""
    for each in (folder, *folder.parents[:-2]):
        each.chmod(each.stat().st_mode | 0o011)


async def attacked(
    cluster: Cluster, victim: str, attacker: str, tmp_path: Path
) -> tuple[int, int, int]:
    """Return how many doors an attacker's job found open, and the users of both jobs."""
    agent = cluster.agents[-1]
    await cluster.start(
        "v", 'echo secret > "$HOME/file"; export TOKEN=secret; exec sleep 60', 1, tenant=victim
    )
    pid = (await cluster.until(f.JobStarted)).pid  # type: ignore[union-attr]
    home = tmp_path / "a" / "jobs" / "v.1" / "own"
    script = (
        DOORS.replace("$1", str(pid)).replace("$2", f"{home}/file").replace("$3", str(agent.pid))
    )
    await cluster.start("w", f"id -u > $HOME/id; {script}", 1, SECOND, attacker)
    ended = await cluster.until(f.JobFinished)
    assert isinstance(ended, f.JobFinished) and ended.exit_code is not None, ended
    own = tmp_path / "a" / "jobs" / "w.1" / "own" / "id"
    return ended.exit_code, os.stat(f"/proc/{pid}").st_uid, int(own.read_text())


async def test_a_tenant_reads_traces_and_signals_no_job_of_another_tenant_nor_the_agent(
    cluster: Cluster, tmp_path: Path
) -> None:
    opened_up(tmp_path)
    cluster.agent(job_users="", tenant_uid_table=str(tmp_path / "table.json"))
    registered = await cluster.until(f.NodeRegistered)
    assert isinstance(registered, f.NodeRegistered) and registered.isolation["users"] == "enforced"
    doors, victim, attacker = await attacked(cluster, "team", "rival", tmp_path)
    assert doors == 0
    assert len({0, 65_534, victim, attacker}) == 4


async def test_jobs_of_one_tenant_are_one_user(cluster: Cluster, tmp_path: Path) -> None:
    """The same user finds the doors open that the test above finds closed, so that test tries real
    doors.
    """
    opened_up(tmp_path)
    cluster.agent(job_users="", tenant_uid_table=str(tmp_path / "table.json"))
    await cluster.until(f.NodeRegistered)
    doors, victim, attacker = await attacked(cluster, "team", "team", tmp_path)
    assert doors >= 6 and victim == attacker


# An agent of another user than root, that can read this checkout wherever it lies; its jobs can
# too. Neither can trace.
AS_USER = (
    "setpriv",
    f"--reuid={UID}",
    f"--regid={UID}",
    "--clear-groups",
    "--inh-caps=+dac_read_search",
    "--ambient-caps=+dac_read_search",
)


@pytest.mark.skipif(
    shutil.which("setpriv") is None, reason="setpriv (util-linux) starts the agent as another user"
)
async def test_an_agent_that_is_not_root_says_so_and_refuses_other_tenants(
    cluster: Cluster, tmp_path: Path
) -> None:
    opened_up(tmp_path)
    (tmp_path / "a").mkdir()
    os.chown(tmp_path / "a", UID, UID)
    agent = cluster.agent(job_users="", prefix=AS_USER)
    registered = await cluster.until(f.NodeRegistered)
    assert isinstance(registered, f.NodeRegistered)
    assert registered.isolation["users"].startswith(
        f"lost: the agent is not root: every job runs as its user {UID}"
    )
    assert takes_only(registered.isolation) == {"default"}
    await cluster.start("w", "true", 1, tenant="team")
    refused = await cluster.until(f.JobRefused)
    assert isinstance(refused, f.JobRefused) and "takes no jobs of tenant team" in refused.reason
    # The agent, its zygote, and the supervisor of this job, which are all of the job's own user.
    pids = f"{agent.pid} $(cat /proc/{agent.pid}/task/{agent.pid}/children) $PPID"
    script = (
        f"n=0; for pid in {pids}; do cat /proc/$pid/environ && n=$((n + 1)); ls -l "
        "/proc/$pid/fd/ && n=$((n + 16)); done; exit $n"
    )
    await cluster.start("v", script, 1)
    ended = await cluster.until(f.JobFinished)
    assert isinstance(ended, f.JobFinished) and ended.exit_code == 0, ended


async def test_state_and_seeds_of_a_root_agent_are_closed_to_jobs(
    cluster: Cluster, tmp_path: Path
) -> None:
    opened_up(tmp_path)
    cluster.agent(job_users="", tenant_uid_table=str(tmp_path / "table.json"))
    await cluster.until(f.NodeRegistered)
    await cluster.start(
        "w",
        f"find {tmp_path}/a -readable -type f; find {tmp_path}/a -writable ! -path '*/w.1/*'",
        1,
        tenant="team",
    )
    await cluster.until(f.JobFinished)
    output = tmp_path / "a" / "jobs" / "w.1" / "stdout.log"
    assert (
        not output.exists()
        or [line for line in output.read_text().splitlines() if "/w.1/" not in line] == []
    )
    open_to_others = [
        path
        for path in (tmp_path / "a").rglob("*")
        if stat.S_IMODE(path.lstat().st_mode) & 0o006 and path.is_file()
    ]
    assert open_to_others == []
