"""A model of one inference engine in virtual time: continuous batching, chunked prefill, and KV
blocks with a prefix cache.

One step processes up to `batched_tokens` of input, and one output token for each request that has
its whole input. It takes `step_ns + prefill_ns x input tokens + running_ns x requests`. Requests
start in the order of their arrival when a place and KV memory are free; memory for the whole answer
is reserved then, so no request is preempted. The defaults are those of Dynamo's mocker (16,384
blocks of 64 tokens, 256 requests, chunks of 8,192 tokens). Prompts are given as hashes of units of
512 tokens, as in Mooncake's traces; a unit's hash stands for everything before it too.
"""

import heapq
from collections import Counter, OrderedDict, deque
from typing import Final, NamedTuple

UNIT_TOKENS: Final = 512
FIRST: Final = "first"
END: Final = "end"


class EngineSettings(NamedTuple):
    """The engine's speed and sizes."""

    step_ns: int = 8_000_000
    prefill_ns: int = 62_500
    running_ns: int = 50_000
    batched_tokens: int = 8_192
    requests_max: int = 256
    kv_tokens: int = 16_384 * 64


class Asked(NamedTuple):
    """A request: the hashes of its prompt's units, its tokens, and where it comes from.

    `at_ns` is its arrival at the gateway. `name` is unique.
    """

    name: int
    at_ns: int
    tenant: str
    units: tuple[int, ...]
    input_tokens: int
    output_tokens: int
    session: int = 0
    band: int = 0


class Event(NamedTuple):
    """A request's first token, or its end."""

    at_ns: int
    kind: str
    asked: Asked


class _Started:
    """A request that has a place. `left` are input tokens that are not processed yet."""

    __slots__ = ("asked", "end_step", "held", "left")

    def __init__(self, asked: Asked, left: int, held: int) -> None:
        self.asked = asked
        self.left = left
        self.held = held
        self.end_step = 0


class Engine:
    """One engine. `advance` runs it; `events` are what happened and was not taken yet."""

    def __init__(self, settings: EngineSettings | None = None) -> None:
        self.settings = settings if settings is not None else EngineSettings()
        self.now_ns = 0
        self.steps = 0
        self.events: list[Event] = []
        self.hit_tokens = 0
        self.asked_tokens = 0
        self.busy_ns = 0
        self.waiting: deque[Asked] = deque()
        self.started: dict[int, _Started] = {}
        self._prefilling: deque[_Started] = deque()
        self._ends: list[tuple[int, int]] = []
        self._chunks: list[tuple[_Started, int]] | None = None
        self._step_ns = 0
        # Units in the cache: how many requests use each, and those without a user, oldest first.
        self._users: Counter[int] = Counter()
        self._unused: OrderedDict[int, None] = OrderedDict()
        self._private = 0

    def submit(self, asked: Asked, now_ns: int) -> None:
        """Put a request behind the waiting ones. `now_ns` is not before the last call's."""
        self.advance(now_ns)
        if not self.started and not self.waiting:
            self.now_ns = max(self.now_ns, now_ns)
        if self.now_ns == now_ns:
            # The planned step has not begun, so the request may be part of it.
            self._chunks = None
        self.waiting.append(asked)

    def next_ns(self) -> int | None:
        """Return when something may happen next; None if the engine is idle."""
        if not self._plan():
            return None
        if self._chunks or self._can_start():
            return self.now_ns + self._step_ns
        return self.now_ns + self._step_ns * max(1, self._ends[0][0] - self.steps)

    def advance(self, now_ns: int) -> None:
        """Run all steps that end by `now_ns`."""
        while self._plan():
            fitting = (now_ns - self.now_ns) // self._step_ns
            if fitting < 1:
                return
            if self._chunks or self._can_start():
                self._run(1)
            else:
                self._run(min(fitting, self._ends[0][0] - self.steps))

    def tokens_of(self, asked: Asked) -> int:
        """Return how many output tokens a started request has by now."""
        started = self.started.get(asked.name)
        if started is None or not started.end_step:
            return 0
        return asked.output_tokens - (started.end_step - self.steps)

    def used_tokens(self) -> int:
        """Return the KV memory that cannot be freed now."""
        return (len(self._users) + self._private) * UNIT_TOKENS

    def _plan(self) -> bool:
        """Fix the next step, unless it is fixed already. Return False if there is no work."""
        if self._chunks is not None:
            return True
        while self._can_start():
            self._start(self.waiting.popleft())
        if not self.started:
            return False
        budget = self.settings.batched_tokens - len(self._ends)
        chunks: list[tuple[_Started, int]] = []
        for each in self._prefilling:
            if budget <= 0:
                break
            chunk = min(budget, each.left)
            budget -= chunk
            chunks.append((each, chunk))
        self._chunks = chunks
        self._step_ns = (
            self.settings.step_ns
            + self.settings.prefill_ns * sum(chunk for _, chunk in chunks)
            + self.settings.running_ns * len(self.started)
        )
        return True

    def _can_start(self) -> bool:
        if not self.waiting or len(self.started) >= self.settings.requests_max:
            return False
        asked = self.waiting[0]
        new = [unit for unit in asked.units if unit not in self._users]
        own = -(-(asked.input_tokens + asked.output_tokens) // UNIT_TOKENS) - len(asked.units)
        free = self.settings.kv_tokens // UNIT_TOKENS - len(self._users) - self._private
        # A request that is larger than the memory starts alone.
        return len(new) + own <= free or not self.started

    def _start(self, asked: Asked) -> None:
        matched = 0
        for unit in asked.units:
            if unit not in self._users and unit not in self._unused:
                break
            matched += 1
        for unit in asked.units:
            self._users[unit] += 1
            self._unused.pop(unit, None)
        own = -(-(asked.input_tokens + asked.output_tokens) // UNIT_TOKENS) - len(asked.units)
        self._private += own
        total = self.settings.kv_tokens // UNIT_TOKENS
        while self._unused and len(self._users) + self._private + len(self._unused) > total:
            self._unused.popitem(last=False)
        # The last token is always processed, as engines do it.
        hit = min(matched * UNIT_TOKENS, asked.input_tokens - 1)
        self.hit_tokens += hit
        self.asked_tokens += asked.input_tokens
        started = self.started[asked.name] = _Started(asked, asked.input_tokens - hit, own)
        self._prefilling.append(started)

    def _run(self, steps: int) -> None:
        assert self._chunks is not None and steps > 0
        self.steps += steps
        self.now_ns += steps * self._step_ns
        self.busy_ns += steps * self._step_ns
        while self._ends and self._ends[0][0] <= self.steps:
            self._end(self.started[heapq.heappop(self._ends)[1]])
        for started, chunk in self._chunks:
            started.left -= chunk
            if started.left == 0:
                self._prefilling.popleft()
                self._first(started)
        self._chunks = None

    def _first(self, started: _Started) -> None:
        self.events.append(Event(self.now_ns, FIRST, started.asked))
        started.end_step = self.steps + started.asked.output_tokens - 1
        if started.end_step <= self.steps:
            self._end(started)
        else:
            heapq.heappush(self._ends, (started.end_step, started.asked.name))

    def _end(self, started: _Started) -> None:
        asked = started.asked
        del self.started[asked.name]
        self._private -= started.held
        # The end of a prompt is forgotten before its beginning.
        for unit in reversed(asked.units):
            self._users[unit] -= 1
            if not self._users[unit]:
                del self._users[unit]
                self._unused[unit] = None
        self.events.append(Event(self.now_ns, END, asked))
