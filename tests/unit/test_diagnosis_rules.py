"""The verdict on planted evidence: which rank the others wait for, and why."""

import pytest
from msgspec.structs import replace

from libs.common.diagnosis import evidence as e
from libs.common.diagnosis.evidence import (
    Collective,
    DeviceSeen,
    Ending,
    PortSeen,
    ProcessSeen,
    RasCommunicator,
    RasRank,
    Verdict,
)
from libs.common.diagnosis.ranks import RANKS_MAX, expected, gathered, numbers
from libs.common.diagnosis.rules import automatic, diagnose
from tests.unit.diagnosis_world import (
    LOADS,
    LOCKED,
    SAVES,
    Stack,
    code,
    node,
    process,
    two_nodes,
    waits,
)

ITEM = code("item")


def first(verdict: Verdict) -> tuple[str, str, int, str]:
    """Return the kind, the cause, and the first suspect."""
    suspect = verdict.suspects[0]
    return verdict.kind, verdict.cause, suspect.rank, suspect.node_id


def all_but(*others: ProcessSeen, silent_s: int = -1) -> list[e.NodeSeen]:
    return [replace(one, silent_s=silent_s) for one in two_nodes(*others)]


@pytest.mark.parametrize(
    ("stack", "cause"),
    [(LOADS, "input"), (LOCKED, "lock"), (SAVES, "storage")],
)
def test_a_rank_outside_the_collective_is_the_one_that_the_others_wait_for(
    stack: Stack, cause: str
) -> None:
    verdict = diagnose(two_nodes(process(6, stack)))
    assert first(verdict) == (e.APART, cause, 6, "node-2")
    assert verdict.is_certain
    assert verdict.sentence.startswith("7 of 8 ranks wait for rank 6 on node-2, which ")
    assert [group.ranks for group in verdict.groups] == ["0-5,7", "6"]


def test_what_the_kernel_sees_counts_more_than_the_name_of_a_function() -> None:
    loads = code("load_batch")
    for fields, cause in (
        ({}, "input"),
        ({"waits_in": "futex_wait_queue"}, "lock"),
        ({"cpu_ms": 900}, "compute"),
    ):
        assert first(diagnose(two_nodes(process(6, loads, **fields))))[1] == cause  # type: ignore[arg-type]


def test_a_rank_that_the_kernel_holds_somewhere_unknown_is_said_to_wait_there() -> None:
    verdict = diagnose(two_nodes(process(6, code(), waits_in="wait_for_partner")))
    assert "which waits (wait_for_partner) in compute (model.py:7)" in verdict.sentence


def test_a_rank_whose_stack_tells_nothing_is_no_certain_cause() -> None:
    verdict = diagnose(two_nodes(process(6, code())))
    assert first(verdict) == (e.APART, "unknown", 6, "node-2") and not verdict.is_certain
    assert not diagnose(two_nodes(process(6, code(), waits_in="hrtimer_nanosleep"))).is_certain


def test_a_rank_whose_device_is_busy_is_no_certain_cause() -> None:
    one, two = two_nodes(process(6, LOCKED, gpu="GPU-6"))
    others = DeviceSeen("GPU-7", busy_percent=100)
    busy = replace(two, devices=(DeviceSeen("GPU-6", busy_percent=80), others))
    assert not diagnose([one, busy]).is_certain
    idle = replace(two, devices=(DeviceSeen("GPU-6", busy_percent=0), others))
    assert diagnose([one, idle]).is_certain


def test_a_rank_in_uninterruptible_sleep_waits_for_storage() -> None:
    assert first(diagnose(two_nodes(process(6, code(), state="D"))))[1] == "storage"


def test_a_rank_that_computes_is_slow_and_no_certain_cause() -> None:
    verdict = diagnose(two_nodes(process(6, code(), cpu_ms=900)))
    assert first(verdict) == (e.SLOW, "compute", 6, "node-2")
    assert not verdict.is_certain


def test_a_rank_that_moves_from_place_to_place_is_slow() -> None:
    looks = (code(line=1), code(line=2), code(line=3))
    assert diagnose(two_nodes(process(6, *looks))).kind == e.SLOW


def test_a_rank_that_moves_bytes_is_no_certain_cause() -> None:
    assert not diagnose(two_nodes(process(6, SAVES, moved_bytes=9))).is_certain


def test_the_rank_with_the_smallest_wait_comes_first() -> None:
    sometimes = process(1, waits(), code(), code())
    verdict = diagnose(two_nodes(sometimes, process(6, code(), code(line=9), code())))
    assert [suspect.rank for suspect in verdict.suspects] == [6, 1]
    assert "rank 6 on node-2 and 1 more" in verdict.sentence


def test_of_two_ranks_the_one_that_does_not_wait_is_the_cause() -> None:
    pair = [
        node(0, process(0, waits(), world=2, local_world=1)),
        node(1, process(1, LOCKED, world=2, local_world=1)),
    ]
    verdict = diagnose(pair)
    assert first(verdict) == (e.APART, "lock", 1, "node-2")
    assert verdict.sentence.startswith("1 of 2 ranks waits for rank 1")


def test_no_rank_is_blamed_while_many_are_outside_collectives() -> None:
    verdict = diagnose(two_nodes(*(process(rank, code(), cpu_ms=900) for rank in (0, 1, 2, 3))))
    assert (verdict.kind, verdict.suspects) == (e.NONE, ())
    assert verdict.sentence.startswith("No single rank is the cause; 4 of 8 ranks wait in ")


def test_ranks_that_all_wait_in_the_same_collective_are_not_blamed() -> None:
    assert diagnose(two_nodes()).kind == e.NONE


def test_a_job_without_processes_has_no_verdict() -> None:
    assert diagnose([node(0), node(1)]).sentence == "No process of the job was seen"
    alone = [node(0, process(0, code(), world=1, local_world=1))]
    assert diagnose(alone).sentence == "The job has one rank: it is in compute (model.py:7)"


def test_a_rank_in_another_collective_calls_them_in_another_order() -> None:
    verdict = diagnose(two_nodes(process(2, waits("broadcast", 30))))
    assert first(verdict) == (e.MISMATCH, "order", 2, "node-1")
    assert verdict.is_certain


def test_ranks_that_go_from_collective_to_collective_are_not_blamed() -> None:
    moving = process(2, waits(line=1), waits(line=2), waits(line=3))
    assert diagnose(two_nodes(moving)).kind == e.NONE


def test_ranks_in_many_different_collectives_are_not_blamed() -> None:
    others = [process(rank, waits("broadcast", 30)) for rank in (0, 1, 2, 3)]
    assert diagnose(two_nodes(*others)).kind == e.NONE


def test_a_stopped_rank_is_the_cause_whatever_it_did() -> None:
    verdict = diagnose(two_nodes(process(3, state="T")))
    assert first(verdict) == (e.STOPPED, "stopped", 3, "node-1")
    assert "SIGCONT" in verdict.sentence and verdict.is_certain


def test_a_rank_without_a_process_has_ended() -> None:
    verdict = diagnose(two_nodes(without=(5,)))
    assert first(verdict) == (e.DEAD, "exited", 5, "node-2")
    assert verdict.is_certain


def test_of_several_ended_ranks_the_one_that_failed_in_its_own_code_comes_first() -> None:
    one, two = two_nodes(without=(1, 5, 6, 7))
    own, lost = code("load"), waits()
    verdict = diagnose(
        [
            replace(one, endings=(Ending(1, 20, "BrokenPipeError", lost),)),
            replace(two, endings=(Ending(5, 10, "EOFError", lost), Ending(6, 30, "KeyError", own))),
        ]
    )
    assert [suspect.rank for suspect in verdict.suspects] == [6, 7, 5, 1]
    assert "its program ended with KeyError in load (model.py:7)" in verdict.sentence


def test_a_zombie_has_ended() -> None:
    assert first(diagnose(two_nodes(process(5, state="Z"))))[:3] == (e.DEAD, "exited", 5)


def test_a_node_whose_part_of_the_job_ended_has_ended_ranks() -> None:
    running, _ = two_nodes()
    verdict = diagnose([running, node(1, ended="exit code 1")])
    assert first(verdict) == (e.DEAD, "exited", 4, "node-2")
    assert "exit code 1" in verdict.sentence


def test_a_job_that_starts_has_no_ended_ranks() -> None:
    assert diagnose(two_nodes(without=(1, 2, 3, 4, 5))).kind != e.DEAD


def test_no_rank_is_missing_if_the_ranks_are_not_numbered_node_by_node() -> None:
    mixed = [
        node(0, *(process(rank, waits()) for rank in (0, 2, 4, 6))),
        node(1, *(process(rank, waits()) for rank in (1, 3, 5))),
    ]
    assert diagnose(mixed).kind == e.NONE
    uneven = [node(0, process(0, waits(), world=3, local_world=2)), node(1)]
    assert diagnose(uneven).kind == e.NONE


def test_a_node_without_an_answer_is_suspect_if_all_others_wait() -> None:
    one, _ = two_nodes()
    lost = node(1, error="it does not answer")
    verdict = diagnose([one, lost])
    assert first(verdict) == (e.SILENT, "unknown", -1, "node-2")
    assert verdict.notes == ("node-2: it does not answer",) and not verdict.is_certain
    busy = node(0, *(process(rank, code(), cpu_ms=900) for rank in range(4)))
    assert diagnose([busy, lost]).kind == e.NONE


def recorded(op: str, seq: int, ended: bool = False) -> tuple[Collective, ...]:
    return (Collective("0", seq, op, ended, tuple(range(8))),)


def recorders(*others: ProcessSeen, stack: Stack = ITEM) -> list[e.NodeSeen]:
    """Return ranks that wait for their devices, as the flight recorder knows them."""
    given = {one.rank: one for one in others}
    ranks = [
        given.get(rank, process(rank, stack, collectives=recorded("all_reduce", 9)))
        for rank in range(8)
    ]
    return [node(member, *(one for one in ranks if one.rank // 4 == member)) for member in (0, 1)]


def test_a_rank_that_did_not_begin_a_collective_is_behind() -> None:
    late = process(5, LOCKED, collectives=recorded("all_reduce", 8, ended=True))
    verdict = diagnose(recorders(late, stack=waits()))
    assert first(verdict) == (e.BEHIND, "lock", 5, "node-2")
    assert "collective 9 of group 0" in verdict.sentence


def test_a_rank_without_a_record_is_behind_the_others_of_its_group() -> None:
    verdict = diagnose(recorders(process(5, LOCKED), stack=waits()))
    assert first(verdict)[:3] == (e.BEHIND, "lock", 5)


def test_a_rank_that_began_another_operation_calls_them_in_another_order() -> None:
    other = process(5, waits(), collectives=recorded("broadcast", 9))
    verdict = diagnose(recorders(other, stack=waits()))
    assert first(verdict) == (e.MISMATCH, "order", 5, "node-2")
    half = [process(rank, waits(), collectives=recorded("broadcast", 9)) for rank in range(4)]
    assert diagnose(recorders(*half, stack=waits())).kind == e.NONE


def test_a_record_blames_no_rank_while_nobody_waits() -> None:
    late = process(5, code(line=1), collectives=recorded("all_reduce", 8, ended=True))
    busy = recorders(late, stack=code(line=1))
    assert diagnose(busy).kind == e.NONE
    done = [process(rank, waits(), collectives=recorded("barrier", 3, True)) for rank in range(8)]
    assert diagnose(recorders(*done)).kind == e.NONE


def test_a_rank_that_nccl_cannot_reach_has_ended() -> None:
    ranks = (*(RasRank(rank, {"AllReduce": 3}) for rank in range(7)), RasRank(7, missing=True))
    nodes = two_nodes()
    nodes[0] = replace(nodes[0], communicators=(RasCommunicator("0xa", 8, ranks),))
    assert first(diagnose(nodes)) == (e.DEAD, "unknown", 7, "node-2")
    _, second = nodes
    blind = [replace(nodes[0], processes=nodes[0].processes), replace(second, processes=())]
    assert diagnose([blind[0], replace(blind[1], error="gone")]).kind == e.SILENT


def test_a_rank_with_fewer_collectives_by_ras_is_behind() -> None:
    ranks = tuple(RasRank(rank, {"AllReduce": 3 - (rank == 2)}) for rank in range(8))
    nodes = two_nodes()
    nodes[0] = replace(nodes[0], communicators=(RasCommunicator("0xa", 8, ranks),))
    assert first(diagnose(nodes)) == (e.BEHIND, "unknown", 2, "node-1")
    whole = tuple(RasRank(rank, {"AllReduce": 3}) for rank in range(8))
    nodes[0] = replace(nodes[0], communicators=(RasCommunicator("0xa", 8, whole),))
    assert diagnose(nodes).kind == e.NONE


def test_a_rank_without_evidence_can_be_named_by_ras() -> None:
    ranks = (*(RasRank(rank) for rank in range(7)), RasRank(7, missing=True))
    busy = [process(rank, code(line=rank), cpu_ms=900, world=8) for rank in range(4)]
    nodes = [
        node(0, *busy, communicators=(RasCommunicator("0xa", 8, ranks),)),
        node(1, error="it does not answer"),
    ]
    assert first(diagnose(nodes)) == (e.DEAD, "unknown", 7, "node-2")


def test_errors_of_one_link_are_the_cause_if_all_ranks_wait() -> None:
    nodes = [
        node(
            member,
            *(
                process(rank, waits(), gpu=f"GPU-{rank}")
                for rank in range(4 * member, 4 * member + 4)
            ),
            devices=tuple(
                DeviceSeen(f"GPU-{rank}", link_errors=500 if rank == 6 else 1)
                for rank in range(4 * member, 4 * member + 4)
            ),
        )
        for member in (0, 1)
    ]
    verdict = diagnose(nodes)
    assert first(verdict) == (e.LINK, "link", 6, "node-2")
    assert "500 errors" in verdict.sentence and verdict.is_certain


def test_a_faulty_device_or_port_is_the_cause_if_all_ranks_wait() -> None:
    one, two = two_nodes()
    faulty = replace(two, devices=(DeviceSeen("GPU-x", fault="xid 79"),))
    assert first(diagnose([one, faulty])) == (e.LINK, "link", -1, "node-2")
    down = replace(two, ports=(PortSeen("mlx5_0/1", False), PortSeen("mlx5_1/1", True, 0)))
    assert "RDMA port mlx5_0/1 is down" in diagnose([one, down]).sentence
    bad = replace(two, ports=(PortSeen("mlx5_0/1", True, 99),))
    assert "had 99 errors" in diagnose([one, bad]).sentence


def test_ranks_that_all_wait_for_input_have_no_single_culprit() -> None:
    verdict = diagnose(two_nodes(*(process(rank, LOADS) for rank in range(8))))
    assert (verdict.kind, verdict.cause, verdict.suspects) == (e.INPUT, "input", ())


def test_without_collectives_in_the_stacks_the_minority_is_named_without_certainty() -> None:
    waiting = [process(rank, code("item")) for rank in range(8) if rank != 4]
    verdict = diagnose(two_nodes(*waiting, process(4, code("decode"))))
    assert first(verdict) == (e.APART, "unknown", 4, "node-2")
    assert not verdict.is_certain


def test_without_stacks_the_rank_in_another_kernel_function_is_named() -> None:
    native = [process(rank, waits_in="tcp_recvmsg") for rank in range(8) if rank != 4]
    verdict = diagnose(two_nodes(*native, process(4, waits_in="futex_wait")))
    assert first(verdict)[2] == 4
    mixed = [process(rank, waits_in=f"place {rank % 4}") for rank in range(8)]
    assert diagnose(two_nodes(*mixed)).kind == e.NONE


def test_what_is_found_twice_without_a_sign_of_progress_is_recorded_by_itself() -> None:
    stuck = all_but(process(6, LOCKED), silent_s=700)
    verdict = automatic(stuck, stuck, 600)
    assert verdict is not None and verdict.suspects[0].rank == 6


def test_a_node_whose_part_ended_needs_no_silence_of_its_own() -> None:
    waiting = node(0, *(process(rank, waits()) for rank in range(4)), silent_s=700)
    ended = node(1, ended="exit code 1")
    verdict = automatic([waiting, ended], [waiting, ended], 600)
    assert verdict is not None and (verdict.kind, verdict.suspects[0].node_id) == (e.DEAD, "node-2")
    going = replace(waiting, silent_s=10)
    assert automatic([going, ended], [going, ended], 600) is None


@pytest.mark.parametrize(
    "second",
    [
        all_but(process(6, LOCKED), silent_s=599),
        all_but(process(6, LOCKED)),
        all_but(process(5, LOCKED), silent_s=700),
        all_but(process(6, SAVES), silent_s=700),
        all_but(process(6, LOCKED, cpu_ms=900), silent_s=700),
        all_but(process(6, state="T"), silent_s=700),
        all_but(silent_s=700),
    ],
)
def test_what_changes_or_moves_is_not_recorded_by_itself(second: list[e.NodeSeen]) -> None:
    assert automatic(all_but(process(6, LOCKED), silent_s=640), second, 600) is None


def test_of_two_processes_of_a_rank_the_first_counts() -> None:
    one, two = two_nodes()
    nodes = [one, two, node(2, process(3, state="T"), process(-1, state="T"))]
    assert diagnose(nodes).kind == e.NONE


def test_ranks_are_written_as_ranges() -> None:
    assert numbers([8, 0, 1, 2, 4]) == "0-2,4,8"
    assert numbers([]) == ""


def test_numbers_of_ranks_beyond_the_bounds_count_as_unknown() -> None:
    hostile = [
        process(2**40, waits()),
        process(0, waits(), world=2**40, local_world=2**40),
        process(1, waits(), world=RANKS_MAX, local_world=RANKS_MAX),
    ]
    seen = gathered([node(0, *hostile)])
    assert (list(seen.ranks), seen.world, seen.local_world) == ([0, 1], RANKS_MAX, -1)
    assert len(expected(seen, seen.nodes[0])) == 0
    assert diagnose(seen.nodes).kind == e.NONE


def test_a_node_has_a_bounded_number_of_processes() -> None:
    many = [process(rank, waits()) for rank in range(e.PROCESSES_MAX + 9)]
    assert len(gathered([node(0, *many)]).ranks) == e.PROCESSES_MAX
