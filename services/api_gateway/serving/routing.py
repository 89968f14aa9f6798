"""Chooses the replica for a request.

It is the one whose cache holds the prompt, until another would answer clearly sooner.
The rule (`choose`) needs the matched tokens and the load of each replica. `Router` holds both for
one model: the prefix index, the loads and the sessions. Pure. Tests:
tests/unit/test_serving_routing.py has one test per rule of docs/serving.md;
tests/property/test_serving_choice.py compares with a rule that is written without any care for
speed.
"""

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

from services.api_gateway.serving.loads import AVOID_NS, SECOND_NS, Loads, Sent
from services.api_gateway.serving.prefix_index import BLOCK_BYTES, PrefixIndex
from services.api_gateway.serving.prefix_space import PrefixSpace

MS_NS: Final = 1_000_000
# A replica holds a request's prompt if it holds this part of it.
HELD_PERCENT: Final = 80
# How much later than elsewhere the first token may come from the replica that holds the prompt.
PENALTY_NS: Final = 500 * MS_NS
# Expected times that differ by less are equal; then the fewest outstanding requests decide.
EQUAL_NS: Final = 10 * MS_NS
# A replica with so many requests more than the least busy one gets no prompt that it does not hold.
UNBALANCED: Final = 64
# A replica has room while its unprocessed input and its outstanding requests are below these. For a
# prompt that it holds the bound is higher: such a prompt adds little work, and elsewhere much.
ROOM_TOKENS: Final = 2_048
HELD_ROOM_TOKENS: Final = 10_240
ROOM_REQUESTS: Final = 256
SESSIONS_MAX: Final = 65_536
# A replica takes the second try of a request while less than this part of its room is used.
CALM_PERCENT: Final = 60
# Why a replica was chosen, or none.
HELD: Final = "held"
SESSION: Final = "session"
LEAST_WAIT: Final = "least_wait"
SATURATED: Final = "saturated"
NO_ROOM: Final = "no_room"
WAITS: Final = "waits_for_holder"
ALL_FULL: Final = "all_full"
NONE_LEFT: Final = "none_left"
NO_SLOT: Final = "no_slot_for_adapter"

Replica = TypeVar("Replica", bound=Hashable)


class Candidate(NamedTuple):
    """The rule's knowledge about one replica.

    `has_room`: its unprocessed tokens allow one more request; `has_place`: its outstanding requests
    do.
    """

    matched: int
    expected_ns: int
    running: int
    has_room: bool = True
    has_place: bool = True
    is_vetoed: bool = False
    is_avoided: bool = False
    has_session: bool = False


class Choice(NamedTuple):
    """The place of the chosen replica among the candidates, -1 if there is none, and why."""

    place: int
    why: str


def choose(
    tokens: int,
    candidates: Sequence[Candidate],
    turn: int = 0,
    penalty_ns: int = PENALTY_NS,
    waited_ns: int = 0,
) -> Choice:
    """Return the replica for a prompt of `tokens` that has waited for `waited_ns`.

    `turn` decides between equal ones.
    """
    if not candidates:
        return Choice(-1, NONE_LEFT)
    healthy = [
        place for place, each in enumerate(candidates) if not each.is_vetoed and not each.is_avoided
    ] or [place for place, each in enumerate(candidates) if not each.is_vetoed]
    if not healthy:
        return Choice(-1, ALL_FULL)
    healthy = [place for place in healthy if candidates[place].has_place]
    free = [place for place in healthy if candidates[place].has_room]
    if not free:
        return Choice(-1, NO_ROOM)
    wanted = [place for place in healthy if _is_wanted(candidates[place], tokens)]
    others = free
    if wanted:
        others = [place for place in free if not _is_wanted(candidates[place], tokens)]
    if len(free) > 1:
        most = min(candidates[place].running for place in free) + UNBALANCED
        others = [place for place in others if candidates[place].running <= most]
    if not wanted:
        return Choice(_least(candidates, others, turn), LEAST_WAIT)
    wanted = [place for place in wanted if candidates[place].has_room] or wanted
    held = _least(candidates, wanted, turn)
    if others:
        other = _least(candidates, others, turn)
        later_ns = candidates[held].expected_ns - candidates[other].expected_ns
        if not candidates[held].has_room:
            later_ns += waited_ns
        if later_ns > penalty_ns:
            return Choice(other, SATURATED)
    if not candidates[held].has_room:
        return Choice(-1, WAITS)
    return Choice(held, SESSION if candidates[held].has_session else HELD)


def _is_wanted(candidate: Candidate, tokens: int) -> bool:
    return candidate.has_session or _is_held(candidate.matched, tokens)


def _is_held(matched: int, tokens: int) -> bool:
    return 0 < HELD_PERCENT * tokens <= 100 * matched


def _least(candidates: Sequence[Candidate], places: Sequence[int], turn: int) -> int:
    if len(places) == 1:
        return places[0]
    count = len(candidates)
    return min(
        places,
        key=lambda place: (
            candidates[place].expected_ns // EQUAL_NS,
            candidates[place].running,
            (place - turn) % count,
        ),
    )


class Prompt(NamedTuple):
    """A request as the router sees it.

    It has the estimated tokens and bytes of its prompt, the hashes of the prompt's blocks, a hash
    of its session (0 if it names none), and its tenant.
    """

    tokens: int
    size: int = 0
    hashes: tuple[int, ...] = ()
    session: int = 0
    tenant: str = ""

    def matched(self, blocks: int) -> int:
        """Return the tokens in so many blocks of the prompt."""
        return min(self.tokens, blocks * BLOCK_BYTES * self.tokens // self.size) if blocks else 0


class Route(NamedTuple, Generic[Replica]):
    """The chosen replica, None if there is none; why; and the input tokens that it must process."""

    replica: Replica | None
    why: str
    miss: int


class Router(Generic[Replica]):
    """The routing state of one model in one gateway."""

    def __init__(
        self,
        index: PrefixIndex[Replica] | None = None,
        room_tokens: int = ROOM_TOKENS,
        held_room_tokens: int = HELD_ROOM_TOKENS,
        room_requests: int = ROOM_REQUESTS,
        penalty_ns: int = PENALTY_NS,
        avoid_ns: int = AVOID_NS,
        space: PrefixSpace | None = None,
    ) -> None:
        self.index: PrefixIndex[Replica] = index if index is not None else PrefixIndex()
        self.space = space
        self.loads: Loads[Replica] = Loads(avoid_ns)
        self.room_tokens = room_tokens
        self.held_room_tokens = held_room_tokens
        self.room_requests = room_requests
        self.penalty_ns = penalty_ns
        self._sessions: OrderedDict[int, Replica] = OrderedDict()
        self._turn = 0

    def route(
        self, prompt: Prompt, replicas: Sequence[Replica], now_ns: int, waited_ns: int = 0
    ) -> Route[Replica]:
        """Return the replica for the prompt among `replicas`. Nothing is counted yet."""
        self.loads.settle(now_ns)
        blocks: Sequence[int] = ()
        if prompt.hashes:
            blocks = self.index.matches(prompt.hashes, replicas, now_ns, prompt.tenant)
        session = self._sessions.get(prompt.session) if prompt.session else None
        candidates = [
            self._candidate(prompt, blocks[place] if blocks else 0, replica, session, now_ns)
            for place, replica in enumerate(replicas)
        ]
        self._turn += 1
        place, why = choose(prompt.tokens, candidates, self._turn, self.penalty_ns, waited_ns)
        if place < 0:
            return Route(None, why, prompt.tokens)
        return Route(replicas[place], why, prompt.tokens - candidates[place].matched)

    def send(
        self, prompt: Prompt, route: Route[Replica], now_ns: int, is_streamed: bool = True
    ) -> Sent[Replica]:
        """Count the request at its replica, and note that the replica's cache will hold its prompt.

        Call it before the request is sent, and `loads.end` however the request ends.
        """
        assert route.replica is not None, "no replica was chosen"
        if prompt.hashes:
            self.index.add(prompt.hashes, route.replica, now_ns, prompt.tenant)
            if self.space is not None:
                self.space.note(self.index)
        if prompt.session:
            self._sessions[prompt.session] = route.replica
            self._sessions.move_to_end(prompt.session)
            if len(self._sessions) > SESSIONS_MAX:
                self._sessions.popitem(last=False)
        return self.loads.begin(route.replica, route.miss, now_ns, is_streamed)

    def is_calm(self, replica: Replica, now_ns: int) -> bool:
        """Return whether the replica has much room, and is not avoided."""
        load = self.loads.of(replica)
        return (
            not load.is_avoided(now_ns)
            and 100 * load.pending < CALM_PERCENT * self.room_tokens
            and 100 * load.running(now_ns) < CALM_PERCENT * self.room_requests
        )

    def forget(self, replica: Replica) -> None:
        """Forget a replica that was restarted or is gone."""
        self.index.forget(replica)
        self.loads.forget(replica)

    def keep_only(self, replicas: Sequence[Replica]) -> None:
        """Forget all other replicas, as soon as they have no request left."""
        for replica in self.loads.known():
            if replica not in replicas and not self.loads.of(replica).outstanding:
                self.forget(replica)

    def _candidate(
        self, prompt: Prompt, blocks: int, replica: Replica, session: Replica | None, now_ns: int
    ) -> Candidate:
        load = self.loads.of(replica)
        matched = prompt.matched(blocks)
        miss = prompt.tokens - matched
        running = load.running(now_ns) if load.elsewhere else load.outstanding
        has_session = session is not None and replica == session
        is_held = has_session or _is_held(matched, prompt.tokens)
        room = self.held_room_tokens if is_held else self.room_tokens
        pending = load.pending
        return Candidate(
            matched=matched,
            expected_ns=(pending + miss) * SECOND_NS // load.rate,
            running=running,
            has_room=pending == 0 or pending + miss <= room,
            has_place=running < self.room_requests,
            is_vetoed=load.full and load.is_vetoed(now_ns),
            is_avoided=load.is_avoided(now_ns),
            has_session=has_session,
        )
