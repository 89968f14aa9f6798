"""The jobs that the flags of sbatch and srun make; every flag of Slurm is known or refused."""

from pathlib import Path
from typing import Any

import pytest

from libs.cli.formats.sbatch import command_of
from libs.cli.formats.sbatch_flags import HONOURED, NOT_HONOURED
from libs.cli.slurm import salloc, sbatch, srun
from libs.cli.slurm.__main__ import own_words
from libs.cli.slurm.job_requests import requested, with_flags
from libs.cli.slurm.options import Table, parse
from libs.cli.slurm.shims import MARK, PROGRAMS, shim, write
from libs.common.errors import Refused

SCRIPT = "#!/bin/bash\n#SBATCH --time=10 -p night -J one\n#SBATCH --qos=high\ntrue\n"


def made(*words: str, text: str = SCRIPT) -> tuple[dict[str, Any], tuple[str, ...]]:
    given = parse(sbatch.TABLE, words)
    script = with_flags(sbatch.read_flags(text, "x.sh"), given)
    written = requested(script, command_of(text, "x.sh"), "x.sh", {"HOME": "/h"})
    return written.job, written.warnings


def test_a_partition_is_a_queue_and_a_flag_goes_before_the_script() -> None:
    job, warnings = made("-t", "2:00:00", "--gpus=2")
    assert (job["queue"], job["time_limit_s"], job["gpus"], job["name"]) == (
        "night",
        7_200,
        2,
        "one",
    )
    assert warnings == (
        "x.sh:3: --qos: not honoured: your key determines the tenant, the user and the limits",
    )


def test_a_flag_of_the_command_line_is_named_without_a_line() -> None:
    assert made("--account=x")[1][0].startswith("--account: not honoured: ")
    with pytest.raises(Refused, match=r"^--time=soon: expected MINUTES"):
        made("--time=soon")


def test_several_partitions_are_refused() -> None:
    with pytest.raises(Refused, match="--partition=a,b: give one queue"):
        made("-p", "a,b")


def test_dependencies_and_arrays_are_the_jobs() -> None:
    job, _ = made("--dependency=afterok:jabc:train", "--array=0-9%2")
    assert job["after"] == ["afterok:jabc:train"] and job["array"] == "0-9%2"


@pytest.mark.parametrize("table", [sbatch.TABLE, srun.TABLE, salloc.TABLE])
def test_every_flag_of_slurm_is_honoured_or_refused_with_advice(table: Table) -> None:
    own = {option.name for option in table.options}
    container = {name for name in HONOURED if "container" in name}
    for name in {*HONOURED, *NOT_HONOURED} - container - {"export", "requeue", "no-requeue"}:
        assert name in own or table.refused.get(name), (table.program, name)
    assert own & table.refused.keys() == set()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["-n", "4", "x"], "--ntasks=4 on 1 node: Muster starts one task on each node: give -N 4"),
        (["-N", "2", "-n", "4", "x"], "--ntasks=4 on 2 nodes: "),
        (["-N", "2", "--ntasks-per-node=2", "x"], "--ntasks-per-node=2 on 2 nodes: "),
    ],
)
def test_srun_starts_one_task_on_each_node(words: list[str], text: str) -> None:
    with pytest.raises(Refused) as caught:
        srun.check_tasks(parse(srun.TABLE, words))
    assert text in str(caught.value)
    srun.check_tasks(parse(srun.TABLE, ["-N", "4", "-n", "4", "x"]))
    srun.check_tasks(parse(srun.TABLE, ["-n", "2", "x"]), nodes=2)


@pytest.mark.parametrize(
    ("words", "nodes", "kept"),
    [
        (["-N", "2", "-n", "1", "x"], 1, "1"),
        (["-N", "2-4", "-n", "2", "x"], 2, "2-4"),
        (["-N", "3", "x"], 3, "3"),
        (["-n", "1", "x"], 1, ""),
        (["x"], 0, ""),
    ],
)
def test_srun_uses_no_more_nodes_than_tasks(words: list[str], nodes: int, kept: str) -> None:
    given = parse(srun.TABLE, words)
    assert srun.nodes_wanted(given) == nodes
    assert srun.with_nodes_of_tasks(given).last("nodes") == kept


@pytest.mark.parametrize(
    "words", [["-N", "two"], ["-N", "0"], ["-n", "x"], ["-n", "0"], ["-N", "4-2"]]
)
def test_a_bad_number_of_srun_is_refused(words: list[str]) -> None:
    with pytest.raises(Refused, match="expected"):
        srun.check_tasks(parse(srun.TABLE, [*words, "true"]))


@pytest.mark.parametrize("flag", sbatch.NEVER_DROPPED)
def test_a_flag_that_must_not_be_dropped_is_refused_in_a_script_as_well(flag: str) -> None:
    with pytest.raises(Refused, match=f"x.sh:2: --{flag}=1: not supported: "):
        made(text=f"#!/bin/sh\n#SBATCH --{flag}=1\ntrue\n")


@pytest.mark.parametrize(
    ("program", "words", "own"),
    [
        ("srun", ["-u", "python", "--version"], ["-u"]),
        ("srun", ["--", "--help"], []),
        ("sbatch", ["--help"], ["--help"]),
        ("squeue", ["-u", "ada", "--help"], ["-u", "ada", "--help"]),
    ],
)
def test_help_and_version_of_the_command_are_the_commands(
    program: str, words: list[str], own: list[str]
) -> None:
    assert own_words(program, words) == own


def test_the_programs_are_written_and_replaced_but_never_a_file_of_another(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "bin"
    paths = write(folder)
    assert [path.name for path in paths] == list(PROGRAMS)
    assert all(path.stat().st_mode & 0o777 == 0o755 and MARK in path.read_text() for path in paths)
    assert write(folder) == paths
    (folder / "squeue").write_text("#!/bin/sh\nreal\n")
    with pytest.raises(Refused, match=r"squeue exists, and muster slurm-shims did not write it"):
        write(folder)
    assert "real" in (folder / "squeue").read_text()
    assert write(folder, force=True) == paths and MARK in (folder / "squeue").read_text()


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Refused, match="cannot write to "):
        write(tmp_path / "file" / "bin")


def test_a_program_names_its_interpreter_and_where_it_finds_muster() -> None:
    text = shim("squeue", "/opt/my python/bin/python", "/src")
    assert "exec '/opt/my python/bin/python' -P -m libs.cli.slurm squeue \"$@\"" in text
    assert "export PYTHONPATH=/src\n" in text and "PYTHONPATH" not in shim("squeue", "/p", "")
