"""The memory broker's rules, and its table of grants and holders on a node.

Pure. A grant belongs to one attempt of a job, and to the process that received it (the holder). The
broker asks `check` before it creates memory and calls `add` afterwards; nothing is counted before
it exists. Memory of a driver that can revoke it is free when its holder returns it or dies. Other
memory stays with the attempt as a spare, which the attempt's next grant of the same size uses,
because a process that says it returned a descriptor may have kept a copy. Spares end with the
attempt. Tests: tests/unit/test_memory_grants.py.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

GRANTS_OF_ATTEMPT_MAX: Final = 4_096
PURPOSE_CHARACTERS_MAX: Final = 64
# The device number of host memory.
HOST: Final = -1


class Holder(NamedTuple):
    """A process: pids are reused, so its start time belongs to its name."""

    pid: int
    start_ticks: int


class Attempt(msgspec.Struct, frozen=True):
    """An attempt that may ask for memory.

    `limits` are bytes by device number of the node. `ordinals` are these numbers in the job's own
    order; empty if both are the same. `numa` are the memory nodes beside its devices, for host
    memory. `token` is the SHA-256 of its token. `job_dir` is where its supervisor's identity
    stands. A `lost` attempt began under a broker of which nothing is left: all that it may have
    counts as used until it ends.
    """

    key: str
    tenant: str
    token: bytes
    limits: dict[int, int]
    job_dir: str
    lost: bool = False
    ordinals: tuple[int, ...] = ()
    numa: tuple[int, ...] = ()


class Grant(msgspec.Struct, frozen=True):
    """Physical memory of one attempt; without a `holder` it is a spare. Sizes are in bytes.

    `ask` is the holder's number of its request, so that a repeated request gets the same grant.
    """

    grant: int
    key: str
    device: int
    bytes: int
    purpose: str
    holder: Holder | None
    ask: int = 0


class Refusal(Exception):
    """A request that gets nothing. `reason` is one word for programs, `detail` is for people."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


class Books(msgspec.Struct):
    """The attempts and grants of one node.

    `capacity` and `granularity` are bytes by device, `revocable` says whose memory can be taken
    from a process that keeps it. `unusable` is why a device gives no memory. `used` is the sum of
    all grants by attempt and device, spares included.
    """

    capacity: dict[int, int] = {}
    granularity: dict[int, int] = {}
    revocable: dict[int, bool] = {}
    unusable: dict[int, str] = {}
    attempts: dict[str, Attempt] = {}
    grants: dict[int, Grant] = {}
    used: dict[tuple[str, int], int] = {}
    count: dict[str, int] = {}
    last: int = 0


def add_device(
    books: Books, device: int, *, capacity: int, granularity: int, revocable: bool
) -> None:
    """Add a device, or note what has changed of it."""
    books.capacity[device] = capacity
    books.granularity[device] = granularity
    books.revocable[device] = revocable
    books.unusable.pop(device, None)


def close_device(books: Books, device: int, why: str) -> None:
    """Refuse new memory of a device. What is granted stays granted, and cannot be revoked."""
    books.capacity.setdefault(device, 0)
    books.granularity.setdefault(device, 1)
    books.revocable.setdefault(device, False)
    books.unusable[device] = why


def number_of(attempt: Attempt, ordinal: int) -> int:
    """Return the node's number of a device that the job calls `ordinal`. Raises Refusal."""
    if ordinal != HOST and attempt.ordinals and 0 <= ordinal < len(attempt.ordinals):
        ordinal = attempt.ordinals[ordinal]
    elif ordinal != HOST and attempt.ordinals:
        raise _no_device(attempt, ordinal)
    if ordinal not in attempt.limits:
        raise _no_device(attempt, ordinal)
    return ordinal


def ordinal_of(attempt: Attempt, device: int) -> int:
    """Return how the job calls a device of the node."""
    return attempt.ordinals.index(device) if device in attempt.ordinals else device


def _no_device(attempt: Attempt, ordinal: int) -> Refusal:
    known = ", ".join(str(ordinal_of(attempt, device)) for device in sorted(attempt.limits))
    return Refusal("device", f"device {ordinal} is not one of the job's pools: use one of {known}")


def _named(attempt: Attempt, device: int) -> str:
    return "host memory" if device == HOST else f"device {ordinal_of(attempt, device)}"


def admit(books: Books, attempt: Attempt) -> None:
    """Let an attempt ask for memory. Harmless when repeated."""
    books.attempts.setdefault(attempt.key, attempt)


def by_token(books: Books, token: bytes) -> Attempt | None:
    """Return the attempt whose token has this SHA-256."""
    return next((each for each in books.attempts.values() if each.token == token), None)


def check(books: Books, key: str, device: int, size: int, purpose: str) -> int:
    """Return the bytes to create: `size` rounded up to the device's granularity.

    Raises Refusal: nothing may be created then.
    """
    attempt = books.attempts.get(key)
    if attempt is None:
        raise Refusal("released", f"attempt {key} may not ask for memory: it was released")
    if device not in attempt.limits:
        raise _no_device(attempt, device)
    if device not in books.capacity or device in books.unusable:
        why = books.unusable.get(device, "the broker does not know it")
        raise Refusal("driver", f"{_named(attempt, device)} gives no memory: {why}")
    if size <= 0 or size > attempt.limits[device]:
        raise Refusal(
            "size", f"bytes: {size} is not valid: ask for 1 to {attempt.limits[device]} bytes"
        )
    if len(purpose) > PURPOSE_CHARACTERS_MAX or not purpose.isprintable():
        raise Refusal(
            "purpose", f"purpose: use at most {PURPOSE_CHARACTERS_MAX} printable characters"
        )
    step = books.granularity[device]
    rounded = -(-size // step) * step
    if _spare(books, key, device, rounded) is None:
        _check_room(books, attempt, device, rounded)
    return rounded


def _check_room(books: Books, attempt: Attempt, device: int, rounded: int) -> None:
    used, limit = used_of(books, attempt.key, device), attempt.limits[device]
    if attempt.lost:
        raise Refusal(
            "lost",
            f"the memory broker and its agent ended together, so what attempt {attempt.key} holds "
            "is unknown: it counts as its whole pool until it ends. Restart the job",
        )
    if used + rounded > limit:
        raise Refusal(
            "quota",
            f"{rounded} bytes of {_named(attempt, device)} are more than the pool has left: {used} "
            f"of {limit} bytes are granted. Return memory, or ask for a larger --pool",
        )
    if books.count.get(attempt.key, 0) >= GRANTS_OF_ATTEMPT_MAX:
        raise Refusal(
            "grants", f"the job has {GRANTS_OF_ATTEMPT_MAX} grants, the most: ask for larger ones"
        )
    owned = owned_bytes(books, device)
    if owned + rounded > books.capacity[device]:
        raise Refusal(
            "full",
            f"{rounded} bytes do not fit on {_named(attempt, device)}: {owned} of "
            f"{books.capacity[device]} bytes are granted. Try again later",
        )


def repeated(books: Books, key: str, holder: Holder, ask: int) -> Grant | None:
    """Return the grant that this request got already; 0 numbers no request."""
    held = books.grants.values() if ask else ()
    wanted = (key, holder, ask)
    return next((each for each in held if (each.key, each.holder, each.ask) == wanted), None)


def take_spare(books: Books, wanted: Grant) -> Grant | None:
    """Give a spare of the wanted size to the wanted holder; None if the attempt has none."""
    spare = _spare(books, wanted.key, wanted.device, wanted.bytes)
    if spare is None:
        return None
    taken = msgspec.structs.replace(wanted, grant=spare.grant)
    books.grants[taken.grant] = taken
    return taken


def add(books: Books, wanted: Grant) -> Grant:
    """Record memory that exists now, under the next number."""
    grant = msgspec.structs.replace(wanted, grant=books.last + 1)
    restore(books, grant)
    return grant


def restore(books: Books, grant: Grant) -> None:
    """Record a grant under its own number. Asserts that the number is new."""
    assert grant.grant not in books.grants, f"grant {grant.grant} exists"
    books.grants[grant.grant] = grant
    place = (grant.key, grant.device)
    books.used[place] = books.used.get(place, 0) + grant.bytes
    books.count[grant.key] = books.count.get(grant.key, 0) + 1
    books.last = max(books.last, grant.grant)


def remove(books: Books, number: int) -> None:
    """Forget memory that does not exist any more. Asserts that the grant was recorded."""
    grant = books.grants.pop(number)
    place = (grant.key, grant.device)
    books.used[place] -= grant.bytes
    books.count[grant.key] -= 1
    if not books.used[place]:
        del books.used[place]
    if not books.count[grant.key]:
        del books.count[grant.key]


def returned(books: Books, key: str, number: int) -> Grant | None:
    """Return the grant whose memory the caller must free now; None if it became a spare.

    Raises Refusal if the attempt has no such grant: another job's number tells nothing.
    """
    grant = books.grants.get(number)
    if grant is None or grant.key != key or grant.holder is None:
        raise Refusal("grant", f"grant {number} is not one that this job holds")
    if books.revocable[grant.device]:
        return grant
    _make_spare(books, grant)
    return None


def died(books: Books, holder: Holder) -> Sequence[Grant]:
    """Return the grants of a dead process whose memory the caller must free now."""
    held = [grant for grant in books.grants.values() if grant.holder == holder]
    for grant in held:
        if not books.revocable[grant.device]:
            _make_spare(books, grant)
    return [grant for grant in held if books.revocable[grant.device]]


def released(books: Books, key: str) -> Sequence[Grant]:
    """End an attempt; return all its grants, whose memory the caller must free now."""
    books.attempts.pop(key, None)
    return [grant for grant in books.grants.values() if grant.key == key]


def used_of(books: Books, key: str, device: int) -> int:
    """Return the bytes that an attempt owns on a device."""
    attempt = books.attempts.get(key)
    if attempt is not None and attempt.lost:
        return attempt.limits.get(device, 0)
    return books.used.get((key, device), 0)


def owned_bytes(books: Books, device: int) -> int:
    """Return the bytes of a device that attempts own, spares and lost pools included."""
    lost = sum(each.limits.get(device, 0) for each in books.attempts.values() if each.lost)
    return lost + sum(size for (_, on), size in books.used.items() if on == device)


def holders(books: Books) -> Sequence[Holder]:
    """Return every process that holds memory, each once."""
    return list(dict.fromkeys(g.holder for g in books.grants.values() if g.holder is not None))


def _spare(books: Books, key: str, device: int, rounded: int) -> Grant | None:
    if books.revocable[device]:
        return None
    return next(
        (
            grant
            for grant in books.grants.values()
            if grant.holder is None
            and (grant.key, grant.device, grant.bytes) == (key, device, rounded)
        ),
        None,
    )


def _make_spare(books: Books, grant: Grant) -> None:
    books.grants[grant.grant] = msgspec.structs.replace(grant, holder=None, ask=0)
