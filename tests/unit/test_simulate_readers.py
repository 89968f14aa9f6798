"""Trace files and lists of nodes: each form is recognised by its columns and read as jobs of the
product; what cannot be read is said.
"""

from pathlib import Path

import pytest

from libs.common.errors import Refused
from services.scheduler.simulate import readers
from services.scheduler.simulate.nodes import nodes_of
from services.scheduler.simulate.trace import MIB, SECOND, Row, requests, shuffled


def written(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (
            ("job_id,submit_s,gpus,duration_s,vc", "0,10,8,60,red"),
            Row(name="0", submit_s=10, duration_s=60, gpus=8, tenant="red"),
        ),
        (("job_id,submit_s,gpus,duration_s,model", "0,10.0,8,60.5,bert"), Row("0", 10, 60.5, 8)),
        (
            (
                "job_id,submit_s,gpus,duration_s,tenant,share,priority,gpu_model",
                "a,0,1,5,red,50,70,T4|A10",
            ),
            Row(
                name="a",
                submit_s=0,
                duration_s=5,
                gpus=1,
                tenant="red",
                share=50,
                priority=70,
                models=("T4", "A10"),
            ),
        ),
        (
            (
                "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,creation_time,deletion_time,scheduled_time",
                "p,6000,12288,1,460,T4,100,500,200",
            ),
            Row(
                "p",
                100,
                300,
                1,
                share=46,
                cpus_milli=6_000,
                memory_bytes=12_288 * MIB,
                models=("T4",),
            ),
        ),
    ],
    ids=["philly", "muri", "plain", "openb"],
)
def test_each_form_is_read_by_its_own_reader(
    tmp_path: Path, lines: tuple[str, ...], expected: Row
) -> None:
    assert readers.read(written(tmp_path / "jobs.csv", *lines)) == [expected]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (("job_id,gpus", "a,1"), "it lacks duration_s, submit_s"),
        (("job_id,submit_s,gpus,duration_s", "a,0,one,5"), "line 2"),
        (("job_id,submit_s,gpus,duration_s", "a,0,1,5", "b,0,-1,5"), "line 3"),
        (("job_id,submit_s,gpus,duration_s",), "names no job"),
        (("name,cpu_milli,memory_mib,num_gpu,gpu_milli", "p,1,1,1,1000"), "for packing only"),
    ],
    ids=["columns", "number", "negative", "empty", "no-times"],
)
def test_unreadable_row_is_refused_with_its_position(
    tmp_path: Path, lines: tuple[str, ...], said: str
) -> None:
    with pytest.raises(Refused, match=said):
        readers.read(written(tmp_path / "jobs.csv", *lines))


@pytest.mark.parametrize(
    ("gpus", "shape"),
    [(0, (1, 0)), (1, (1, 1)), (8, (1, 8)), (12, (2, 6)), (32, (4, 8)), (13, (2, 7))],
)
def test_a_job_takes_as_few_nodes_as_can_be(gpus: int, shape: tuple[int, int]) -> None:
    [request] = requests([Row("a", 0, 1, gpus)], 8)
    assert (request.spec.nodes, request.spec.gpus) == shape


def test_jobs_come_in_order_and_faster_at_a_higher_speed() -> None:
    found = requests([Row("late", 20, 1, 1), Row("soon", 10, 1, 1)], 8, speed=2.0)
    assert [(request.job_id, request.submit_ns) for request in found] == [
        ("soon", 5 * SECOND),
        ("late", 10 * SECOND),
    ]


def test_a_name_that_comes_twice_is_refused() -> None:
    with pytest.raises(Refused, match="twice"):
        requests([Row("a", 0, 1, 1), Row("a", 1, 1, 1)], 8)


@pytest.mark.parametrize(
    "wrong", [{"gpus": 10_000_000}, {"share": 0}, {"share": 101}, {"priority": 101}]
)
def test_a_job_that_no_cluster_would_take_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(Refused, match="job a asks for more than a job may"):
        requests([Row("a", 0, 1, 1)._replace(**wrong)], 8)  # type: ignore[arg-type]


def test_another_order_keeps_the_times_and_the_jobs() -> None:
    rows = [Row("a", 0, 1, 1), Row("b", 5, 2, 1)]
    assert list(shuffled(rows, (1, 0))) == [Row("b", 0, 2, 1), Row("a", 5, 1, 1)]


def test_a_short_form_and_a_list_name_nodes(tmp_path: Path) -> None:
    listed = written(
        tmp_path / "nodes.csv",
        "sn,cpu_milli,memory_mib,gpu,model",
        "one,64000,1024,2,T4",
        "two,32000,1024,0,",
    )
    assert [(node.node_id, len(node.gpus), node.cpus_milli) for node in nodes_of(str(listed))] == [
        ("one", 2, 64_000),
        ("two", 0, 32_000),
    ]
    assert [(node.node_id, len(node.gpus)) for node in nodes_of("2x8")] == [("n0", 8), ("n1", 8)]


@pytest.mark.parametrize("text", ["0x8", "8x0", "1x65"])
def test_a_cluster_without_gpus_or_with_too_many_is_refused(text: str) -> None:
    with pytest.raises(Refused):
        nodes_of(text)
