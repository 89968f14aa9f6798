"""Slurm's commands, as `muster slurm-shims` writes them, against a real cluster."""

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest
import pytest_asyncio

from tests.chaos.cluster import Chaos, running

pytestmark = pytest.mark.asyncio(loop_scope="module")

PATIENCE_S: Final = 90.0
ID: Final = "j[a-z2-7]{10}"
SLEEP: Final = "sleep 600"


class Slurm:
    """The programs in a folder of their own, with the profile of the cluster's administrator."""

    def __init__(self, folder: Path, chaos: Chaos) -> None:
        self.folder, self.chaos = folder, chaos
        self.environ = {
            "PATH": f"{folder / 'bin'}:/usr/bin:/bin",
            "PYTHONPATH": str(Path.cwd()),
            "USER": "ada",
            "TZ": "UTC",
            "MUSTER_PROFILE": str(folder / "profile.json"),
        }

    async def run(self, *words: str, stdin: str = "", **more: str) -> tuple[int, str, str]:
        """The exit code, stdout and stderr of a program."""
        child = await asyncio.create_subprocess_exec(
            *words,
            cwd=self.folder,
            env={**self.environ, **more},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        out, err = await asyncio.wait_for(child.communicate(stdin.encode()), PATIENCE_S)
        return child.returncode or 0, out.decode(), err.decode()

    async def needs(self, *words: str, stdin: str = "", **more: str) -> str:
        code, out, err = await self.run(*words, stdin=stdin, **more)
        assert code == 0, f"{' '.join(words)} ended with {code}: {out}{err}"
        return out

    async def submit(self, *words: str, **more: str) -> str:
        return (await self.needs("sbatch", "--parsable", *words, **more)).strip()

    async def until(self, job: str, state: str) -> None:
        """Wait until squeue shows this state, or sacct does."""
        found = ""
        for _ in range(int(PATIENCE_S * 5)):
            found = await self.needs("sacct", "-n", "-X", "-P", "-o", "State", "-j", job)
            if found.split()[:1] == [state]:
                return
            await asyncio.sleep(0.2)
        raise TimeoutError(f"job {job} is {found!r}, not {state}")

    def script(self, name: str, text: str) -> str:
        (self.folder / name).write_text(text)
        return name


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def slurm(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Slurm]:
    folder = tmp_path_factory.mktemp("slurm")
    async with running(folder, nodes=2, gpus=4) as chaos:
        made = Slurm(folder, chaos)
        muster = "from libs.cli.main import main; main()"
        await made.needs(sys.executable, "-c", muster, "slurm-shims", str(folder / "bin"))
        yield made


async def cancelled(slurm: Slurm, *jobs: str) -> None:
    await slurm.needs("scancel", *jobs)
    for job in jobs:
        await slurm.until(job, "CANCELLED")


async def test_a_script_is_submitted_and_its_output_is_in_the_file_that_it_names(
    slurm: Slurm,
) -> None:
    name = slurm.script(
        "one.sh",
        "#!/bin/bash\n#SBATCH -J one --gpus=1 -t 5 -o out-%x-%j.txt\necho $1 $SLURM_JOB_NAME\n",
    )
    out = await slurm.needs("sbatch", "--wait", name, "hello")
    found = re.fullmatch(rf"Submitted batch job ({ID})\n", out)
    assert found is not None, out
    assert (slurm.folder / f"out-one-{found[1]}.txt").read_text() == "hello one\n"


async def test_a_job_that_depends_on_another_starts_after_it(slurm: Slurm) -> None:
    first = await slurm.submit("--wrap", "sleep 2; exit 3")
    second = await slurm.submit(f"--dependency=afterany:{first}", "--wrap", "true")
    third = await slurm.submit(f"--dependency=afterok:{second}", "--wait", "--wrap", "true")
    assert third
    states = await slurm.needs("sacct", "-nXP", "-o", "JobID,State,ExitCode", "-j", first)
    assert states == f"{first}|FAILED|3:0\n"
    await slurm.until(second, "COMPLETED")


async def test_programs_that_read_only_digits_get_numbers(slurm: Slurm) -> None:
    digits = {"MUSTER_SLURM_NUMERIC_IDS": "1"}
    first = await slurm.submit("--wrap", SLEEP, **digits)
    assert first.isdigit()
    second = await slurm.submit(f"--dependency=afterany:{first}", "--wrap", "true", **digits)
    shown = await slurm.needs("squeue", "-h", "-o", "%i %t %r", "-j", f"{first},{second}", **digits)
    assert f"{second} PD Dependency" in shown
    await slurm.needs("scancel", first, second)
    await slurm.until(first, "CANCELLED")


async def test_sbatch_ends_with_the_exit_code_of_the_job_that_it_waits_for(slurm: Slurm) -> None:
    assert (await slurm.run("sbatch", "--wait", "--wrap", "exit 5"))[0] == 5


async def test_squeue_shows_what_runs_and_why_the_rest_waits(slurm: Slurm) -> None:
    gang = await slurm.submit("-N2", "--gpus-per-node=4", "-J", "gang", "--wrap", SLEEP)
    await slurm.until(gang, "RUNNING")
    next_one = await slurm.submit("--gpus=1", "-J", "next", "--wrap", SLEEP)
    behind = await slurm.submit("--gpus=4", "-J", "behind", "--wrap", SLEEP)
    held = await slurm.submit("--hold", "-J", "held", "--wrap", SLEEP)
    large = await slurm.submit("-N9", "--gpus-per-node=1", "-J", "large", "--wrap", SLEEP)
    shown = await slurm.needs("squeue", "--me", "-h", "-o", "%i %j %t %D %R")
    assert shown.splitlines()[0] == f"{gang} gang R 2 node-[1-2]"
    assert set(shown.splitlines()[1:]) == {
        f"{next_one} next PD 1 (Resources)",
        f"{behind} behind PD 1 (Priority)",
        f"{held} held PD 1 (JobHeldUser)",
        f"{large} large PD 9 (BadConstraints)",
    }
    heading = (await slurm.needs("squeue", "-t", "R")).splitlines()
    assert heading[0] == (
        "             JOBID PARTITION     NAME     USER ST       TIME  NODES NODELIST(REASON)"
    )
    assert len(heading) == 2 and heading[1].split()[:3] == [gang, "default", "gang"]
    assert "Reason=JobHeldUser" in await slurm.needs("scontrol", "show", "job", held)
    await slurm.needs("scontrol", "release", held)
    long = (await slurm.needs("squeue", "-l", "-t", "R")).splitlines()
    assert long[1].split()[4:7] == ["STATE", "TIME", "TIME_LIMI"] and "UNLIMITED" in long[2]
    names = await slurm.needs("squeue", "-h", "-O", "Name:8,StateCompact:3", "-u", "nobody,ada")
    assert "next    PD" in names.splitlines()
    await cancelled(slurm, gang, next_one, behind, held, large)


async def test_an_array_is_one_row_until_its_elements_run(slurm: Slurm) -> None:
    array = await slurm.submit("--array=1-3%2", "--wrap", SLEEP)
    await slurm.until(f"{array}_1", "RUNNING")
    await slurm.until(f"{array}_2", "RUNNING")
    shown = (await slurm.needs("squeue", "-h", "-o", "%i %t %r", "-j", array)).splitlines()
    assert set(shown) == {
        f"{array}_1 R None",
        f"{array}_2 R None",
        f"{array}_[3%2] PD JobArrayTaskLimit",
    }
    each = await slurm.needs("squeue", "-r", "-h", "-o", "%i %t", "-j", array)
    assert f"{array}_3 PD" in each.splitlines() and len(each.splitlines()) == 3
    await slurm.needs("scancel", "-t", "PENDING", array)
    await slurm.needs("scancel", f"{array}_1")
    await slurm.until(f"{array}_1", "CANCELLED")
    await slurm.until(f"{array}_3", "CANCELLED")
    assert await slurm.needs("squeue", "-h", "-o", "%i %t", "-j", array) == f"{array}_2 R\n"
    await slurm.needs("scancel", array)
    await slurm.until(f"{array}_2", "CANCELLED")


async def test_scancel_selects_jobs_and_names_those_that_it_cannot_find(slurm: Slurm) -> None:
    one = await slurm.submit("-J", "mine", "--wrap", SLEEP)
    two = await slurm.submit("-J", "other", "--wrap", SLEEP)
    await slurm.until(one, "RUNNING")
    await slurm.needs("scancel", "-n", "mine", "--me")
    await slurm.until(one, "CANCELLED")
    await slurm.until(two, "RUNNING")
    await cancelled(slurm, two)
    code, _, err = await slurm.run("scancel", "jnosuchjob")
    assert code == 1 and err.startswith("scancel: error: Kill job error on job id jnosuchjob: ")
    assert (await slurm.run("scancel"))[0] == 1


async def test_a_time_limit_is_shown_as_slurms_state(slurm: Slurm) -> None:
    job = await slurm.submit("-t", "0:01", "--wrap", SLEEP)
    await slurm.until(job, "TIMEOUT")
    shown = await slurm.needs("squeue", "-h", "-t", "TO", "-o", "%i %T", "-j", job)
    assert shown == f"{job} TIMEOUT\n"


async def test_srun_runs_a_command_on_each_node_with_its_output_and_code(slurm: Slurm) -> None:
    code, out, err = await slurm.run(
        "srun", "-N2", "--gpus-per-node=1", "sh", "-c", "echo rank $SLURM_PROCID; exit 4"
    )
    assert code == 4 and set(out.splitlines()) == {"rank 0", "rank 1"}, err
    assert await slurm.needs("srun", "cat", stdin="typed\n") == "typed\n"
    code, _, err = await slurm.run("srun", "-n", "4", "true")
    assert code == 1 and "give -N 4" in err


async def test_srun_in_a_script_is_a_step_of_its_job(slurm: Slurm) -> None:
    name = slurm.script(
        "steps.sh",
        "#!/bin/bash\n#SBATCH -N2 --export=PATH,PYTHONPATH,MUSTER_PROFILE -o step-%n\n"
        "srun echo all $SLURM_NODEID\nsrun -N1 -n1 echo first $SLURM_NODEID\n",
    )
    await slurm.needs("sbatch", "--wait", name)
    assert (slurm.folder / "step-0").read_text() == "all 0\nfirst 0\n"
    assert (slurm.folder / "step-1").read_text() == "all 1\n"


async def test_salloc_holds_gpus_while_a_command_runs(slurm: Slurm) -> None:
    line = "squeue -h -j $SLURM_JOB_ID -o '%t %b'; srun sh -c 'echo on $MUSTER_NODE_ID'"
    code, out, err = await slurm.run("salloc", "-G2", "-t", "10", "sh", "-c", line)
    assert code == 0, err
    state, node = out.splitlines()
    assert state == "R gres/gpu:2" and re.fullmatch(r"on node-[12]", node)
    found = re.search(rf"Granted job allocation ({ID})", err)
    assert found is not None and f"Relinquishing job allocation {found[1]}" in err
    await slurm.until(found[1], "COMPLETED")


async def test_sinfo_lists_nodes_by_state(slurm: Slurm) -> None:
    job = await slurm.submit("-w", "node-2", "--gpus=1", "--wrap", SLEEP)
    await slurm.until(job, "RUNNING")
    shown = (await slurm.needs("sinfo")).splitlines()
    assert shown[0] == "PARTITION AVAIL  TIMELIMIT  NODES  STATE NODELIST"
    assert {line.split()[4] + " " + line.split()[5] for line in shown[1:]} == {
        "idle node-1",
        "mix node-2",
    }
    by_node = await slurm.needs("sinfo", "-N", "-h", "-p", "default", "-o", "%N %T %G")
    assert re.fullmatch(r"node-1 idle gpu:\S+:4\nnode-2 mixed gpu:\S+:4\n", by_node), by_node
    assert "State=MIXED" in await slurm.needs("scontrol", "show", "node", "node-2")
    await cancelled(slurm, job)


async def test_sacct_lists_ended_jobs_with_columns_of_choice(slurm: Slurm) -> None:
    job = await slurm.submit("-J", "counted", "--gpus=2", "-c", "2", "--wait", "--wrap", "true")
    shown = (await slurm.needs("sacct", "-j", job)).splitlines()
    assert shown[0].split() == (
        ["JobID", "JobName", "Partition", "Account", "AllocCPUS", "State", "ExitCode"]
    )
    assert shown[2].split() == [job, "counted", "default", "default", "2", "COMPLETED", "0:0"]
    row = await slurm.needs(
        "sacct", "-nXP", "--delimiter=;", "-S", "now-1hour", "--name=counted",
        "--format=JobID,AllocTRES,NodeList",
    )  # fmt: skip
    assert re.fullmatch(rf"{job};cpu=2,node=1,gres/gpu=2;node-[12]\n", row), row
    assert await slurm.needs("sacct", "-nXP", "-E", "now-1day", "-S", "now-2days") == ""


async def test_a_wrong_call_is_one_line_and_exit_code_one(slurm: Slurm) -> None:
    for words, said in (
        (("squeue", "--iterate=5"), "squeue: error: --iterate is not supported: use watch"),
        (("squeue", "-o", "%X"), "squeue: error: %X in the format '%X' is not supported: use %i"),
        (
            ("sbatch", "--exclusive", "--wrap", "true"),
            "sbatch: error: --exclusive is not supported: ",
        ),
        (("sbatch", "missing.sh"), "sbatch: error: Unable to open file missing.sh: No such file"),
        (("sbatch", "-p", "gpu", "--wrap", "true"), "sbatch: error: queue 'gpu' is"),
        (("sacct", "-S", "soon"), "sacct: error: the time 'soon' is not valid: use "),
        (("sinfo", "-t", "tired"), "sinfo: error: --states=tired: use "),
        (("scontrol", "update", "x"), "scontrol: error: update x is not supported: use muster"),
        (("srun",), "srun: error: no command given to execute"),
    ):
        code, out, err = await slurm.run(*words)
        assert code == 1 and out == "" and err.count("\n") == 1, (words, out, err)
        assert err.startswith(said), err
    code, _, err = await slurm.run("sbatch", stdin="echo no script\n")
    assert code == 1 and "This does not look like a batch script" in err
    code, _, err = await slurm.run("squeue", MUSTER_URL="http://127.0.0.1:9")
    assert code == 1 and err.startswith("squeue: error: no gateway answers at ")


async def test_the_programs_explain_themselves(slurm: Slurm) -> None:
    assert os.access(slurm.folder / "bin" / "sbatch", os.X_OK)
    assert "submit a script" in await slurm.needs("sbatch", "--help")
    assert (await slurm.needs("sinfo", "--version")).startswith("sinfo: ")


async def test_a_terminal_that_is_closed_gives_its_allocation_back(slurm: Slurm) -> None:
    lead, follow = os.openpty()
    child = await asyncio.create_subprocess_exec(
        *("srun", "-G1", "-J", "shell", "--pty", "sleep", "600"),
        cwd=slurm.folder,
        env=slurm.environ,
        stdin=follow,
        stdout=follow,
        stderr=subprocess.PIPE,
    )
    try:
        assert child.stderr is not None
        found = b""
        while b"Granted" not in found:
            found = await asyncio.wait_for(child.stderr.readline(), PATIENCE_S)
        granted = re.search(rf"allocation ({ID}) until 20", found.decode())
        assert granted is not None, found
        child.terminate()
        assert await asyncio.wait_for(child.wait(), PATIENCE_S) == 128 + 15
        await slurm.until(granted[1], "COMPLETED")
    finally:
        os.close(lead)
        os.close(follow)


async def test_a_signal_that_a_job_outlives_does_not_cancel_it(slurm: Slurm) -> None:
    job = await slurm.submit("--wrap", SLEEP)
    code, _, err = await slurm.run("scancel", "-s", "USR1", job)
    assert code == 1 and "muster exec JOB -- kill" in err
    await slurm.needs("scancel", "-t", "PENDING", "-n", "another", job)
    await slurm.until(job, "RUNNING")
    await cancelled(slurm, job)
