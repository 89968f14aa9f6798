"""The engine model: its steps, its cache and its bounds; and a twin that runs every single step."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sim.engine import END, FIRST, UNIT_TOKENS, Asked, Engine, EngineSettings, Event

# Whole numbers that are easy to add up: a step, a token of input, a running request.
PLAIN = EngineSettings(step_ns=1_000, prefill_ns=10, running_ns=100, batched_tokens=2_000)


def asked(
    name: int, tokens: int, output: int, units: tuple[int, ...] = (), at_ns: int = 0
) -> Asked:
    return Asked(name, at_ns, "t", units, tokens, output)


def events(engine: Engine, *arrivals: Asked) -> list[Event]:
    for each in arrivals:
        engine.submit(each, each.at_ns)
    while (next_ns := engine.next_ns()) is not None:
        engine.advance(next_ns)
    return engine.events


def test_a_lone_request_takes_its_input_and_then_a_step_per_token() -> None:
    one = asked(1, 500, 3)
    first_ns = 1_000 + 500 * 10 + 100
    assert events(Engine(PLAIN), one) == [
        Event(first_ns, FIRST, one),
        Event(first_ns + 2 * 1_100, END, one),
    ]


def test_a_long_prompt_is_processed_in_chunks_beside_others_output() -> None:
    short, long = asked(1, 100, 3), asked(2, 4_000, 1)
    found = events(Engine(PLAIN), short, long)
    first_ns = 1_000 + 2_000 * 10 + 200
    second_ns = first_ns + 1_000 + 1_999 * 10 + 200
    third_ns = second_ns + 1_000 + 101 * 10 + 200
    assert found == [
        Event(first_ns, FIRST, short),
        Event(third_ns, END, short),
        Event(third_ns, FIRST, long),
        Event(third_ns, END, long),
    ]


def test_a_prompt_in_the_cache_is_not_processed_again() -> None:
    engine = Engine(PLAIN)
    tokens = 2 * UNIT_TOKENS
    events(engine, asked(1, tokens, 1, (7, 8)))
    began_ns = engine.now_ns
    again = asked(2, tokens, 1, (7, 8), began_ns)
    assert events(engine, again)[-1].at_ns - began_ns == 1_000 + 10 + 100
    assert (engine.hit_tokens, engine.asked_tokens) == (tokens - 1, 2 * tokens)
    other = asked(3, tokens, 1, (7, 9), engine.now_ns)
    events(engine, other)
    assert engine.hit_tokens == tokens - 1 + UNIT_TOKENS, "up to where it differs"


def test_a_full_cache_forgets_the_prompt_that_was_not_used_for_longest() -> None:
    engine = Engine(PLAIN._replace(kv_tokens=4 * UNIT_TOKENS))
    for name, unit in enumerate((1, 2, 3, 1, 4)):
        events(engine, asked(name, UNIT_TOKENS, 1, (unit,), engine.now_ns))
    hit = engine.hit_tokens
    events(engine, asked(9, UNIT_TOKENS, 1, (2,), engine.now_ns))
    assert engine.hit_tokens == hit
    events(engine, asked(10, UNIT_TOKENS, 1, (1,), engine.now_ns))
    assert engine.hit_tokens > hit


def test_requests_wait_for_a_place_and_for_memory() -> None:
    small = Engine(PLAIN._replace(requests_max=1))
    ends = [each.asked.name for each in events(small, asked(1, 10, 5), asked(2, 10, 5))]
    assert ends == [1, 1, 2, 2]
    narrow = Engine(PLAIN._replace(kv_tokens=3 * UNIT_TOKENS))
    narrow.submit(asked(1, 2 * UNIT_TOKENS, 5, (1, 2)), 0)
    narrow.submit(asked(2, UNIT_TOKENS, 5, (3,)), 0)
    assert narrow.next_ns() is not None
    assert list(narrow.started) == [1]
    assert narrow.used_tokens() == 3 * UNIT_TOKENS
    assert [each.asked.name for each in events(narrow)] == [1, 1, 2, 2]


class Naive:
    """The same engine, one step after the other, over plain lists and without a cache."""

    def __init__(self, arrivals: list[Asked], limits: EngineSettings) -> None:
        self.coming = list(arrivals)
        self.limits = limits
        self.waiting: list[Asked] = []
        self.running: list[list[int]] = []
        self.asked: dict[int, Asked] = {each.name: each for each in arrivals}
        self.now_ns = 0
        self.events: list[Event] = []

    def run(self) -> list[Event]:
        while self.coming or self.waiting or self.running:
            if not self.running and not self.waiting:
                self.now_ns = max(self.now_ns, self.coming[0].at_ns)
            while self.coming and self.coming[0].at_ns <= self.now_ns:
                self.waiting.append(self.coming.pop(0))
            while self.waiting and len(self.running) < self.limits.requests_max:
                one = self.waiting.pop(0)
                self.running.append([one.name, one.input_tokens, one.output_tokens])
            self.step()
        return self.events

    def step(self) -> None:
        budget = self.limits.batched_tokens - sum(1 for each in self.running if not each[1])
        decoding = [each for each in self.running if not each[1]]
        chunks = []
        for each in self.running:
            chunk = min(budget, each[1])
            budget -= chunk
            chunks.append(chunk)
        self.now_ns += (
            self.limits.step_ns
            + self.limits.prefill_ns * sum(chunks)
            + self.limits.running_ns * len(self.running)
        )
        for each in sorted(decoding):
            each[2] -= 1
            if not each[2]:
                self.events.append(Event(self.now_ns, END, self.asked[each[0]]))
        for each, chunk in zip(self.running, chunks, strict=True):
            if chunk and each[1] == chunk:
                self.events.append(Event(self.now_ns, FIRST, self.asked[each[0]]))
                each[2] -= 1
                if not each[2]:
                    self.events.append(Event(self.now_ns, END, self.asked[each[0]]))
            each[1] -= chunk
        self.running = [each for each in self.running if each[1] or each[2]]


ARRIVAL = st.tuples(st.integers(0, 40_000), st.integers(1, 5_000), st.integers(1, 40))


@settings(max_examples=200, deadline=None)
@given(st.lists(ARRIVAL, max_size=12), st.integers(1, 4))
def test_steps_that_are_run_at_once_give_what_single_steps_give(
    drawn: list[tuple[int, int, int]], places: int
) -> None:
    limits = PLAIN._replace(requests_max=places, kv_tokens=1 << 30)
    arrivals = [
        asked(name, tokens, output, (), at_ns)
        for name, (at_ns, tokens, output) in enumerate(sorted(drawn))
    ]
    engine = Engine(limits)
    for each in arrivals:
        while (next_ns := engine.next_ns()) is not None and next_ns < each.at_ns:
            engine.advance(next_ns)
        engine.submit(each, each.at_ns)
    assert sorted(events(engine)) == sorted(Naive(arrivals, limits).run())
