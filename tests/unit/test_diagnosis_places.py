"""Where a rank is, by its stack."""

import pytest

from libs.common.diagnosis import places
from libs.common.diagnosis.evidence import Frame
from libs.common.diagnosis.places import Place, place_of
from tests.unit.diagnosis_world import LOADS, LOCKED, SAVES, TRAIN, Stack, code, waits


def test_a_rank_in_a_collective_is_at_the_line_that_called_it() -> None:
    assert place_of(waits()) == Place(places.COLLECTIVE, "all_reduce", "step (train.py:40)")
    assert place_of(waits()).text == "all_reduce at step (train.py:40)"


def test_ranks_in_different_parts_of_the_same_collective_are_at_the_same_place() -> None:
    inner = (Frame("_recv", "/src/ann/ring.py", 3), Frame("all_reduce", "/src/ann/ring.py", 30))
    other = (Frame("_send", "/src/ann/ring.py", 9), Frame("all_reduce", "/src/ann/ring.py", 31))
    assert place_of((*inner, TRAIN)) == place_of((*other, TRAIN))


def test_a_rank_that_waits_for_its_device_is_in_no_collective() -> None:
    stack = (Frame("synchronize", "/v/site-packages/torch/cuda/__init__.py", 1_100), TRAIN)
    assert place_of(stack) == Place(places.DEVICE, "synchronize", "train (train.py:90)")
    assert place_of((Frame("synchronize", "/v/horovod/mpi_ops.py", 9), TRAIN)).kind == "collective"


def test_a_collective_inside_another_one_counts_as_the_outer_one() -> None:
    stack = (Frame("broadcast", "/src/ann/ring.py", 3), Frame("barrier", "/src/ann/ring.py", 4))
    assert place_of((*stack, TRAIN)).name == "barrier"


def test_a_caller_far_above_that_is_named_like_a_collective_does_not_count() -> None:
    stack = (Frame("all_reduce", "/src/ann/ring.py", 3), TRAIN, Frame("reduce", "/src/a.py", 1))
    assert place_of(stack).name == "all_reduce"


def test_a_collective_without_a_caller_is_its_own_site() -> None:
    stack = (Frame("barrier", "/src/ann/ring.py", 4),)
    assert place_of(stack).text == "barrier (ring.py:4)"


@pytest.mark.parametrize(
    ("stack", "waits_in", "kind"),
    [
        (LOADS, "", places.INPUT),
        (code("next_batch"), "", places.INPUT),
        (LOCKED, "", places.LOCK),
        (SAVES, "", places.STORAGE),
        (code(), "hrtimer_nanosleep", places.SLEEP),
        (code(), "futex_wait_queue", places.LOCK),
        (code(), "nfs_wait_bit_killable", places.STORAGE),
        (code(), "", places.CODE),
        ((), "futex_wait_queue", places.UNKNOWN),
    ],
)
def test_a_rank_outside_collectives_has_the_kind_of_its_stack(
    stack: Stack, waits_in: str, kind: str
) -> None:
    assert place_of(stack, waits_in).kind == kind


def test_the_site_is_the_innermost_frame_of_the_users_code() -> None:
    assert place_of(LOADS).text == "train (train.py:90)"
    assert place_of((Frame("run", "<frozen runpy>", 1),)).text == "run (<frozen runpy>:1)"


def test_a_place_without_a_stack_is_the_kernel_function_or_unknown() -> None:
    assert place_of((), "tcp_recvmsg").text == "tcp_recvmsg"
    assert place_of(()).text == "an unknown place"
    assert place_of((Frame("main", "", 0),)).text == "main"
