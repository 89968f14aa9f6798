"""Scripts with #SBATCH lines: the resulting jobs, and a warning for each ignored flag."""

import pytest

from libs.cli.formats.job_fields import Written
from libs.cli.formats.sbatch import is_script, read_script
from libs.cli.formats.sbatch_flags import ALONE, HONOURED, MAY_TAKE, NOT_HONOURED, SHORT
from libs.common.errors import Refused
from libs.common.model import JobId
from services.api_gateway.intents.job_intents import submission

GIB = 1 << 30

TRAINING = """\
#!/bin/bash -l
#SBATCH --job-name=llama-ft
#SBATCH -N 2 --ntasks-per-node=4   # four ranks on each
#SBATCH --gres=gpu:h100:4
#SBATCH -c 8
#SBATCH --mem=200G
#SBATCH -t 1-12:00:00
#SBATCH --nodelist=node[01-02]
#SBATCH --switches=1
#SBATCH --no-requeue

module load cuda
torchrun --nproc-per-node 4 train.py
"""

BORROWED = """\
#!/usr/bin/env python3
#SBATCH -p gpu -A proj42
#SBATCH --mail-type=END,FAIL
#SBATCH -o logs/%x-%j.out
#SBATCH --array=0-99%4
#SBATCH --export=ALL,SEED=7,HF_HOME,NOPE
#SBATCH --tiem=10
#SBATCH --gpus=1 --exclusive --nice
##SBATCH --time=1
import os
#SBATCH --time=9
os.system("srun hostname")
"""


def read(*lines: str, begin: str = "#!/bin/bash") -> Written:
    return read_script(
        "\n".join((begin, *(f"#SBATCH {line}" for line in lines), "true")),
        "x.sbatch",
        {"HF_HOME": "/hf"},
    )


def fault(*lines: str) -> str:
    with pytest.raises(Refused) as caught:
        read(*lines)
    return str(caught.value)


def of(*lines: str, field: str) -> object:
    return read(*lines).job.get(field)


def test_a_training_script_becomes_a_job_with_all_its_requests() -> None:
    written = read_script(TRAINING, "scripts/train.sbatch", {})
    assert written.job == {
        "command": ["/bin/bash", "-l", "-c", TRAINING, "train.sbatch"],
        "name": "llama-ft",
        "nodes": 2,
        "gpus": 4,
        "model": ["h100"],
        "cpus": 32,
        "memory_bytes": 200 * GIB,
        "time_limit_s": 36 * 3600,
        "node_list": ["node01", "node02"],
        "rack": "required",
        "requeue": False,
    }
    assert written.warnings == (
        (
            "scripts/train.sbatch:3: --nodes: the script runs on each of the 2 nodes; in Slurm it "
            "runs on the first one only"
        ),
        "scripts/train.sbatch:3: --ntasks-per-node: the script runs once on each node, with "
        "the CPUs of 4 tasks: start the tasks in it (torchrun, mpirun)",
    )


def test_each_ignored_or_unknown_flag_is_a_warning_with_its_line() -> None:
    written = read_script(BORROWED, "b.py", {"HF_HOME": "/hf"})
    assert written.job == {
        "command": ["/usr/bin/env", "python3", "-c", BORROWED],
        "name": "b.py",
        "env": {"SEED": "7", "HF_HOME": "/hf"},
        "array": "0-99%4",
        "nodes": 1,
        "gpus": 1,
    }
    named = [tuple(warning.split(": ")[:2]) for warning in written.warnings]
    assert named == [
        ("b.py:2", "--account"),
        ("b.py:2", "--partition"),
        ("b.py:3", "--mail-type"),
        ("b.py:4", "--output"),
        ("b.py:6", "--export"),
        ("b.py:6", "--export"),
        ("b.py:7", "--tiem"),
        ("b.py:8", "--exclusive"),
        ("b.py:8", "--nice"),
        ("b.py:11", "#SBATCH after the first command"),
    ]
    assert "unknown flag (did you mean --time?)" in written.warnings[6]


@pytest.mark.parametrize("text", [TRAINING, BORROWED, "#!/bin/sh\ntrue\n"])
def test_the_gateway_accepts_the_job_of_a_script(text: str) -> None:
    spec = submission(read_script(text, "x.sbatch", {}).job, JobId("j1")).spec
    assert text in spec.command and (spec.gpus or spec.cpus_milli)


def test_a_script_without_directives_gets_no_warning() -> None:
    assert read("--gpus=1").warnings == ()


def test_slurm_commands_in_a_script_give_warnings() -> None:
    written = read_script(
        "#!/bin/sh\nset -e\nsrun -n 4 ./a\nMASTER=$(scontrol show hostnames)\necho srunning\n",
        "x",
        {},
    )
    assert [warning.split(": ")[:2] for warning in written.warnings] == [
        ["x:3", "srun"],
        ["x:4", "scontrol"],
    ]


def test_a_script_without_gpus_requests_one_cpu_and_no_gpu() -> None:
    assert read("-J plain").job | {"command": []} == {
        "command": [],
        "name": "plain",
        "nodes": 1,
        "gpus": 0,
        "cpus": 1,
    }


@pytest.mark.parametrize(
    ("lines", "nodes", "gpus"),
    [
        (("-N2", "-G 8"), 2, 4),
        (("--gpus=16", "--gpus-per-node=8"), 2, 8),
        (("-N 3", "--gpus-per-node=a100:2"), 3, 2),
        (("-n 16", "--ntasks-per-node=8", "--gpus-per-task=1"), 2, 8),
        (("-n 4", "--gpus-per-task=1"), 1, 4),
        (("--gres=gpu:2,nvme:1",), 1, 2),
        (("--gres=gpu",), 1, 1),
        (("--gpus=1", "--gpus=3"), 1, 3),
    ],
)
def test_gpus_are_counted_on_each_node(lines: tuple[str, ...], nodes: int, gpus: int) -> None:
    job = read(*lines).job
    assert (job["nodes"], job["gpus"]) == (nodes, gpus)


def test_a_range_of_nodes_needs_requests_per_node() -> None:
    written = read("-N 2-4", "--gpus-per-node=8")
    assert (written.job["nodes"], written.job["nodes_max"], written.job["gpus"]) == (2, 4, 8)
    assert "each of the 2 to 4 nodes" in written.warnings[0]
    for totals in ("--gpus=8", "-n 8"):
        written = read("-N 2-4", totals)
        assert (
            written.job["nodes"] == 2
            and "nodes_max" not in written.job
            and "cannot grow" in written.warnings[0]
        )


def test_memory_per_cpu_or_gpu_is_added_up() -> None:
    job = read("-n 2", "-c 4", "--mem-per-cpu=2G").job
    assert (job["cpus"], job["memory_bytes"]) == (8, 16 * GIB)
    job = read("--gpus=4", "--cpus-per-gpu=6", "--mem-per-gpu=40960").job
    assert (job["cpus"], job["memory_bytes"]) == (24, 160 * GIB)


def test_a_mig_profile_is_distinguished_from_a_model() -> None:
    assert of("--gres=gpu:1g.10gb:2", field="mig_profile") == "1g.10gb"
    assert of("--gpus=h100:2", field="model") == ["h100"]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 5_400),
        ("1:30", 90),
        ("1:30:00", 5_400),
        ("1-12", 129_600),
        ("1-12:30", 131_400),
        ("1-00:00:01", 86_401),
        ("UNLIMITED", None),
    ],
)
def test_times_follow_slurms_grammar(text: str, seconds: int | None) -> None:
    assert of(f"--time={text}", field="time_limit_s") == seconds


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("a,b", ["a", "b"]),
        ("n[08-10,2]x", ["n08x", "n09x", "n10x", "n2x"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
    ],
)
def test_a_node_list_is_expanded(text: str, nodes: list[str]) -> None:
    assert of(f"-w {text}", field="node_list") == nodes


def test_one_switch_requires_a_rack_and_with_a_wait_prefers_it() -> None:
    assert of("--switches=1", field="rack") == "required"
    assert of("--switches=1@10:00", field="rack") == "preferred"
    assert read("--switches=2").warnings == (
        "x.sbatch:2: --switches: only 1 is honoured: use --rack or --spine of muster submit",
    )


def test_dependencies_and_hold_are_honoured() -> None:
    job = read("-J x --dependency=afterok:j1:j2,afterany:j3_7,singleton", "--hold").job
    assert (job["after"], job["singleton"], job["hold"]) == (
        ["afterok:j1:j2", "afterany:j3_7"],
        True,
        True,
    )
    assert submission(job, JobId("j9")).spec.after == (
        ("afterok", "j1"),
        ("afterok", "j2"),
        ("afterany", "j3_7"),
    )
    assert read("-J x").job.keys().isdisjoint({"after", "singleton", "hold"})


def test_a_reservation_is_honoured() -> None:
    written = read("--reservation=course")
    assert (written.job["reservation"], written.warnings) == ("course", ())
    assert submission(written.job, JobId("j9")).spec.reservation == "course"
    assert "reservation" not in read("-J x").job


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("--reservation=a,b", "x.sbatch:2: --reservation=a,b: expected one name"),
        ("--nodes=two", "x.sbatch:2: --nodes=two: expected a whole number"),
        (
            "--nodes=4-2",
            "x.sbatch:2: --nodes=4-2: expected a number of nodes, or a range such as 2-4",
        ),
        ("-N 0", "x.sbatch:2: --nodes=0: expected a number of nodes, or a range such as 2-4"),
        (
            "-N 2 --gpus=3",
            "x.sbatch:2: --gpus=3: the number is not a multiple of 2 nodes: use --gpus-per-node",
        ),
        ("--gpus=a:b:1", "x.sbatch:2: --gpus=a:b:1: expected a number of GPUs, or MODEL:NUMBER"),
        (
            "--gres=gpu:a:b:1",
            "x.sbatch:2: --gres=gpu:a:b:1: expected a number of GPUs, or MODEL:NUMBER",
        ),
        ("--time=soon", "x.sbatch:2: --time=soon: expected MINUTES, MINUTES:SECONDS"),
        ("-a 3-1", "x.sbatch:2: --array=3-1: expected numbers as in 0-99, 0-99:2 or 1,5,7-9"),
        (
            "-d afternotok:j1",
            (
                "x.sbatch:2: --dependency=afternotok:j1: expected afterok:JOB, afterany:JOB or "
                "singleton"
            ),
        ),
        (
            "-d afterok:j1?afterok:j2",
            "x.sbatch:2: --dependency=afterok:j1?afterok:j2: expected afterok:JOB",
        ),
        ("-d afterok", "x.sbatch:2: --dependency=afterok: expected afterok:JOB"),
        ("--mem=much", "x.sbatch:2: --mem=much: expected a size such as 64G, or 4096 in MiB"),
        ("-w n[1-", "x.sbatch:2: --nodelist=n[1-: expected nodes such as a,b or node[01-04]"),
        ("-w n[0-9999]", "x.sbatch:2: --nodelist=n[0-9999]: expected at most 1024 nodes"),
        ("-w n[0-99][0-99]", "x.sbatch:2: --nodelist=n[0-99][0-99]: expected at most 1024 nodes"),
        ("--job-name", "x.sbatch:2: --job-name needs a value"),
        ("--job-name='x", 'x.sbatch:2: "--job-name=\'x" cannot be read: No closing quotation'),
        (
            "--gpus-per-node=a100:1 --gres=gpu:h100:1",
            "x.sbatch: a job can use only one kind of GPU, not a100 and h100",
        ),
    ],
)
def test_an_invalid_value_is_refused_with_its_line(line: str, expected: str) -> None:
    assert fault(line).startswith(expected)


def with_own(*lines: str) -> Written:
    """Return the job of a script with two GPUs and these `#MUSTER` lines."""
    own = "".join(f"#MUSTER {line}\n" for line in lines)
    return read_script(f"#!/bin/sh\n#SBATCH -G 2\n{own}true\n", "x.sbatch", {})


def test_a_muster_line_asks_for_memory_pools() -> None:
    written = with_own("--pool=8GiB  # of each GPU", "--host-pool 512MiB")
    assert written.warnings == ()
    spec = submission(written.job, JobId("j9")).spec
    assert (spec.pool_bytes, spec.host_pool_bytes) == (8 * GIB, GIB // 2)
    assert not {"pool_bytes", "host_pool_bytes"} & {*read("--gpus=1").job}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("--pool=much", "x.sbatch:3: --pool=much: 'much' is not a size: write bytes"),
        ("--host-pool=-1", "x.sbatch:3: --host-pool=-1: '-1' is not a size"),
        ("--pool=0", "x.sbatch:3: --pool=0: a pool has at least 2097152 bytes (2MiB)"),
        ("--pool=1MiB", "x.sbatch:3: --pool=1MiB: a pool has at least 2097152 bytes"),
        ("--pool=9999TiB", "x.sbatch:3: --pool=9999TiB: a pool has at least"),
        ("--pool", "x.sbatch:3: --pool needs a value"),
        ("--gpus=2", "x.sbatch:3: --gpus in a #MUSTER line: only --pool, --host-pool, --image, "),
        ("--pol=2G", "x.sbatch:3: --pol in a #MUSTER line: only --pool, --host-pool, --image, "),
    ],
)
def test_an_invalid_muster_line_is_refused_with_its_line(line: str, expected: str) -> None:
    with pytest.raises(Refused) as caught:
        with_own(line)
    assert str(caught.value).startswith(expected)


def test_a_muster_line_after_the_first_command_is_ignored_with_a_warning() -> None:
    written = read_script("#!/bin/sh\n#MUSTERED\ntrue\n#MUSTER --pool=2G\n", "x", {})
    assert written.warnings == ("x:4: #MUSTER after the first command: ignored, as in Slurm",)
    assert "pool_bytes" not in written.job


def test_a_script_with_an_unsupported_interpreter_is_refused() -> None:
    with pytest.raises(
        Refused, match=r"x\.sbatch:1: '#!/usr/bin/awk -f' does not name a supported interpreter"
    ):
        read(begin="#!/usr/bin/awk -f")


def test_only_a_file_that_begins_with_an_interpreter_is_a_script() -> None:
    assert is_script("#!/bin/sh\n") and not is_script("command: [a]\n")


def test_every_flag_is_either_honoured_or_not() -> None:
    assert not {*HONOURED} & {*NOT_HONOURED}
    assert {*ALONE, *MAY_TAKE, *SHORT.values()} <= {*HONOURED, *NOT_HONOURED}


@pytest.mark.parametrize("flag", NOT_HONOURED)
def test_each_flag_that_is_not_honoured_gives_a_warning(flag: str) -> None:
    line = f"--{flag}" if flag in (*ALONE, *MAY_TAKE) else f"--{flag}=1"
    assert read(line).warnings == (f"x.sbatch:2: --{flag}: not honoured: {NOT_HONOURED[flag]}",)
