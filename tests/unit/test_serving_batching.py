"""Batches: who goes with whom, and when; a twin keeps every rule in the plainest way."""

from hypothesis import given, settings
from hypothesis import strategies as st

from services.api_gateway.serving.batching import Batch, Batches, BatchKey, parts

WAIT_NS = 5_000_000
A, B = BatchKey("a", "same"), BatchKey("b", "same")


def members(due: list[Batch[int]]) -> list[list[int]]:
    return [list(batch.members) for batch in due]


def joined(batches: Batches[int], key: BatchKey, *numbers: int, now_ns: int = 0) -> None:
    for number in numbers:
        batches.join(key, number, 1, now_ns)


def test_a_batch_goes_when_its_first_request_has_waited() -> None:
    batches = Batches[int](4, WAIT_NS)
    assert batches.is_idle and batches.next_ns(0) is None
    joined(batches, A, 1, 2)
    assert (batches.due(1, WAIT_NS - 1), batches.next_ns(1)) == ([], WAIT_NS)
    due = batches.due(1, WAIT_NS)
    assert members(due) == [[1, 2]] and not batches.is_idle
    batches.ended(due[0])
    assert batches.is_idle


def test_a_full_batch_goes_at_once_and_the_next_one_begins() -> None:
    batches = Batches[int](2, WAIT_NS)
    joined(batches, A, 1, 2, 3)
    assert members(batches.due(1, 0)) == [[1, 2]]
    assert not batches.is_idle


def test_a_request_that_does_not_fit_begins_a_new_batch() -> None:
    batches = Batches[int](4, WAIT_NS)
    batches.join(A, 1, 3, 0)
    batches.join(A, 2, 2, 0)
    assert members(batches.due(1, 0)) == [[1]]
    assert members(batches.due(2, WAIT_NS)) == [[2]]


def test_tenants_and_different_requests_never_share_a_batch() -> None:
    batches = Batches[int](8, WAIT_NS)
    joined(batches, A, 1)
    joined(batches, B, 2)
    joined(batches, BatchKey("a", "other"), 3)
    assert members(batches.due(3, WAIT_NS)) == [[1], [2], [3]]


def test_while_a_tenant_keeps_all_replicas_busy_its_next_batch_grows() -> None:
    batches = Batches[int](8, WAIT_NS)
    joined(batches, A, 1)
    [first] = batches.due(1, WAIT_NS)
    joined(batches, A, 2, 3)
    joined(batches, B, 4)
    assert members(batches.due(1, 9 * WAIT_NS)) == [[4]], "another tenant does not wait for it"
    assert batches.next_ns(9 * WAIT_NS) is None, "the end of a batch is what it waits for"
    batches.ended(first)
    assert members(batches.due(1, 9 * WAIT_NS)) == [[2, 3]]


def test_the_end_of_one_batch_leaves_the_other_ones_of_its_tenant_under_way() -> None:
    batches = Batches[int](2, WAIT_NS)
    joined(batches, A, 1, 2, 3, 4)
    first, second = batches.due(1, 0)
    batches.ended(first)
    assert not batches.is_idle and batches.under_way == {"a": 1}
    batches.ended(second)
    assert batches.is_idle


def test_without_a_ready_replica_a_batch_asks_for_one() -> None:
    batches = Batches[int](8, WAIT_NS)
    joined(batches, A, 1)
    assert members(batches.due(0, WAIT_NS)) == [[1]]


def test_a_request_whose_client_left_leaves_its_batch() -> None:
    batches = Batches[int](2, WAIT_NS)
    joined(batches, A, 1)
    batches.leave(A, 9)
    batches.leave(A, 1)
    assert batches.is_idle
    joined(batches, A, 1, 2)
    batches.leave(A, 1)
    batches.leave(A, 2)
    assert batches.is_idle and batches.due(1, WAIT_NS) == []
    joined(batches, A, 1, 2, 3)
    batches.leave(A, 1)
    assert members(batches.due(9, WAIT_NS)) == [[2], [3]]


def test_parts_add_up_to_the_total() -> None:
    assert parts(10, [1, 1, 1]) == [3, 3, 4]
    assert parts(0, [5, 5]) == [0, 0]


@given(st.integers(0, 1 << 40), st.lists(st.integers(1, 1 << 20), min_size=1, max_size=50))
def test_parts_are_the_exact_shares_within_one(total: int, sizes: list[int]) -> None:
    found = parts(total, sizes)
    assert sum(found) == total
    assert all(
        abs(part * sum(sizes) - total * size) <= sum(sizes)
        for part, size in zip(found, sizes, strict=True)
    )


class Twin:
    """The rules without care for speed: a list of open batches in the order of their beginning."""

    def __init__(self, items_max: int) -> None:
        self.items_max = items_max
        self.open: list[tuple[BatchKey, int, list[tuple[int, int]]]] = []
        self.full: list[tuple[BatchKey, list[tuple[int, int]]]] = []
        self.busy: list[str] = []

    def join(self, key: BatchKey, number: int, items: int, now_ns: int) -> None:
        own = next((each for each in self.open if each[0] == key), None)
        if own is not None and sum(size for _, size in own[2]) + items > self.items_max:
            self.open.remove(own)
            self.full.append((key, own[2]))
            own = None
        if own is None:
            own = (key, now_ns, [])
            self.open.append(own)
        own[2].append((number, items))
        if sum(size for _, size in own[2]) == self.items_max:
            self.open.remove(own)
            self.full.append((key, own[2]))

    def due(self, replicas: int, now_ns: int) -> list[list[int]]:
        going = self.full
        self.full = []
        self.busy += [key.tenant for key, _ in going]
        for own in list(self.open):
            key, began_ns, requests = own
            waits = now_ns - began_ns < WAIT_NS
            if not waits and self.busy.count(key.tenant) < max(1, replicas):
                self.open.remove(own)
                self.busy.append(key.tenant)
                going.append((key, requests))
        return [[number for number, _ in requests] for _, requests in going]


STEPS = st.lists(
    st.tuples(st.sampled_from("jjjjde"), st.sampled_from((A, B)), st.integers(1, 4)), max_size=120
)


@settings(deadline=None)
@given(STEPS, st.integers(4, 6), st.integers(0, 3))
def test_the_batches_are_those_of_a_twin(
    steps: list[tuple[str, BatchKey, int]], items_max: int, replicas: int
) -> None:
    batches, twin = Batches[int](items_max, WAIT_NS), Twin(items_max)
    running: list[Batch[int]] = []
    for number, (step, key, size) in enumerate(steps):
        now_ns = number * WAIT_NS // 3
        if step == "j":
            batches.join(key, number, size, now_ns)
            twin.join(key, number, size, now_ns)
        elif step == "d":
            due = batches.due(replicas, now_ns)
            assert members(due) == twin.due(replicas, now_ns)
            assert all(sum(batch.members.values()) <= items_max for batch in due)
            running += due
        elif running:
            ended = running.pop(size % len(running))
            batches.ended(ended)
            twin.busy.remove(ended.key.tenant)
