"""What is read from the flight recorder and from NCCL's RAS, also from damaged ones."""

from typing import Any

import pytest

from libs.common.diagnosis.collectives import from_ras, from_recorder
from libs.common.diagnosis.evidence import Collective, RasCommunicator, RasRank


def entry(seq: int, op: str = "nccl:all_reduce", state: str = "scheduled", **more: Any) -> Any:
    return {
        "collective_seq_id": seq,
        "profiling_name": op,
        "state": state,
        "process_group": ("0", "default_pg"),
        **more,
    }


def test_the_last_collective_of_each_group_counts() -> None:
    dump = {
        "pg_config": {"0": {"ranks": "[0, 1]"}},
        "entries": [
            entry(1, state="completed"),
            entry(2, op="nccl:broadcast"),
            entry(1),
            entry(5, process_group=None, pg_id=7),
        ],
    }
    assert from_recorder(dump) == (
        Collective("0", 2, "broadcast", ranks=(0, 1)),
        Collective("7", 5, "all_reduce"),
    )


def test_a_collective_that_completed_is_over() -> None:
    found = from_recorder({"entries": [entry(3), entry(3, state="completed")]})
    assert found == (Collective("0", 3, "all_reduce", ended=True),)


def test_sends_between_two_ranks_are_left_out() -> None:
    assert from_recorder({"entries": [entry(3, is_p2p=True)]}) == ()


@pytest.mark.parametrize(
    "dump",
    [None, [], {}, {"entries": 1}, {"entries": [None, {}, {"collective_seq_id": "x"}]}],
)
def test_a_dump_of_another_form_holds_nothing(dump: object) -> None:
    assert from_recorder(dump) == ()


def test_ras_gives_the_counts_of_each_rank_and_those_it_cannot_reach() -> None:
    status = {
        "communicators": [
            {
                "hash": "0xab",
                "size": 3,
                "ranks": [
                    {"rank": 0, "collective_counts": {"AllReduce": 4, "Broadcast": "x"}},
                    {"rank": 1, "collective_counts": None},
                    {"rank": "x"},
                ],
                "missing_ranks": [{"rank": 2}, {}],
            }
        ]
    }
    ranks = (RasRank(0, {"AllReduce": 4}), RasRank(1), RasRank(2, missing=True))
    assert from_ras(status) == (RasCommunicator("0xab", 3, ranks),)


def test_a_status_of_another_form_holds_nothing() -> None:
    assert from_ras({"communicators": None}) == from_ras("x") == ()
    assert from_ras({"communicators": [{}]}) == (RasCommunicator("unknown", 0),)


def test_only_texts_and_numbers_become_texts() -> None:
    nested: list[object] = ["x"]
    for _ in range(60):
        nested = [nested, nested]
    (found,) = from_recorder({"entries": [entry(1, process_group=(nested, "pg"))]})
    assert found.group == "unknown"
    (found,) = from_recorder({"entries": [entry(1, op="\ud800", process_group=("\ud800", 0))]})
    assert (found.group, found.op) == ("?", "?")
    status = {"communicators": [{"hash": nested, "size": 1}, {"hash": 7, "size": 1}]}
    assert [each.name for each in from_ras(status)] == ["unknown", "7"]


def test_numbers_that_cannot_be_encoded_are_left_out() -> None:
    huge = 1 << 64
    assert from_recorder({"entries": [entry(huge), entry(True)]}) == ()
    config = {"0": {"ranks": f"[0, {huge}, 1]"}}
    (found,) = from_recorder({"pg_config": config, "entries": [entry(1)]})
    assert found.ranks == (0, 1)
    ranks = [{"rank": huge}, {"rank": 0, "collective_counts": {"AllReduce": huge}}]
    status = {"communicators": [{"hash": "a", "size": huge, "ranks": ranks}]}
    assert from_ras(status) == (RasCommunicator("a", 1, (RasRank(0),)),)
