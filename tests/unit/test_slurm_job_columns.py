"""The columns of squeue, sacct and scontrol, from rows of the gateway."""

from datetime import UTC, datetime
from typing import Any

import pytest

from libs.cli.slurm.columns import lines, percent, sacct
from libs.cli.slurm.job_columns import (
    ACCOUNTING,
    ACCOUNTING_BRIEF,
    ACCOUNTING_DEFAULT,
    DEFAULT,
    FIELDS,
    LETTERS,
    START,
    JobRow,
)
from libs.cli.slurm.scontrol import job_lines
from libs.cli.slurm.times import instant
from tests.integration.cli_world import job

NOW = datetime(2025, 1, 1, 1, 0, 1, tzinfo=UTC)
MORE = {"queue": "default", "after": [], "reserved": [], "cpus_milli": 0, "memory_bytes": 0}


def row(reason: str = "None", expected: datetime | None = None, **changes: Any) -> JobRow:
    shown = {**MORE, "ended_at": None, **changes}
    return JobRow(job("jaaaaaaaaaa", **shown), reason, NOW, str, expected)


def shown(of: JobRow, *names: str) -> list[str]:
    return [FIELDS[name].of(of) for name in names]


def test_the_default_of_squeue_is_slurms() -> None:
    waiting = row("Priority", state="queued", started_at=None, node_ids=[])
    gang = row(state="running", node_ids=["node-1", "node-2"], nodes=2)
    assert lines(percent(DEFAULT, LETTERS), FIELDS, [gang, waiting]) == [
        "             JOBID PARTITION     NAME     USER ST       TIME  NODES NODELIST(REASON)",
        "       jaaaaaaaaaa   default    train      ada  R    1:00:00      2 node-[1-2]",
        "       jaaaaaaaaaa   default    train      ada PD       0:00      1 (Priority)",
    ]


def test_an_array_shows_the_numbers_and_an_element_its_own() -> None:
    array = row(state="queued", array={"numbers": "0-9%2", "states": {}})
    element = row(id="jaaaaaaaaaa_3", element_of="jaaaaaaaaaa")
    names = ("jobid", "arrayjobid", "arraytaskid")
    assert shown(array, *names) == ["jaaaaaaaaaa_[0-9%2]", "jaaaaaaaaaa", "0-9%2"]
    assert shown(element, *names) == ["jaaaaaaaaaa_3", "jaaaaaaaaaa", "3"]
    assert shown(row(), "arraytaskid") == ["N/A"]


def test_times_are_of_the_job_or_expected() -> None:
    ends = row(time_limit_s=7_200)
    assert shown(ends, "timelimit", "timeleft", "timeused") == ["2:00:00", "1:00:00", "1:00:00"]
    assert shown(row(), "timelimit", "timeleft", "endtime") == ["UNLIMITED", "UNLIMITED", "N/A"]
    waiting = row(state="queued", started_at=None, expected=NOW, time_limit_s=60)
    assert shown(waiting, "starttime") == [instant(NOW)]
    assert shown(ends, "endtime") == [instant(datetime(2025, 1, 1, 2, 0, 1, tzinfo=UTC))]


def test_resources_are_counted_over_all_nodes() -> None:
    gang = row(node_ids=["a", "b"], gpus=2, gpu_share=50, cpus_milli=1_500, memory_bytes=3 << 30)
    assert shown(gang, "numcpus", "mincpus", "minmemory", "gres", "tres-alloc") == [
        "4",
        "2",
        "3G",
        "gres/gpu:1",
        "cpu=4,mem=3G,node=2,gres/gpu=2",
    ]
    assert shown(row(gpus=0, memory_bytes=512 << 20), "gres", "minmemory") == ["N/A", "512M"]
    assert shown(row(gpus=0), "tres-alloc") == ["node=1"]


@pytest.mark.parametrize(("code", "text"), [(0, "0:0"), (3, "3:0"), (-9, "0:9"), (None, "0:0")])
def test_an_exit_code_has_its_signal(code: int | None, text: str) -> None:
    assert shown(row(exit_code=code), "exit_code") == [text]


def test_an_ended_job_has_the_word_of_its_end() -> None:
    assert shown(row(state="failed", node_ids=[]), "reason", "reasonlist") == [
        "NonZeroExitCode",
        "(NonZeroExitCode)",
    ]


def test_every_letter_and_default_names_a_column() -> None:
    assert set(LETTERS.values()) <= set(FIELDS)
    assert percent(START, LETTERS) and percent(DEFAULT, LETTERS)
    for text in (ACCOUNTING_DEFAULT, ACCOUNTING_BRIEF):
        assert sacct(text, ACCOUNTING)


def test_every_column_has_a_value_for_jobs_of_each_kind() -> None:
    rows = (
        row(state="queued", started_at=None, submitted_at=None, node_ids=[], after=["jb"]),
        row(state="failed", exit_code=1, ended_at="2025-01-01T00:01:01.000Z"),
        row(name="", workdir="", command=[], node_ids=[], nodes=3),
    )
    for each in rows:
        for field in (*FIELDS.values(), *ACCOUNTING.values()):
            assert isinstance(field.of(each), str), field.title
        assert all("=" in line for line in job_lines(each))
