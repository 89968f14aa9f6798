"""Keep which replicas have which LoRA adapters, and choose where a request to one goes.

`Residency` holds that for one model in one gateway. `groups` is the rule: first the replicas that
have the adapter, then those with a free slot, then those whose least recently used adapter no
request uses. A replica has at most `resident_max` adapters, which are its slots; a request takes
one when it is bound to the replica. Pure. Tests: tests/unit/test_serving_adapters.py.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

from services.api_gateway.serving.fairness import SECOND_NS

# A replica that could not load an adapter is not asked again for so long.
FAILED_NS: Final = 5 * SECOND_NS
RESIDENT_MAX: Final = 8

Replica = TypeVar("Replica", bound=Hashable)


class Wanted(NamedTuple):
    """An adapter that a request names. Another path under the same name is another version."""

    name: str
    version: int


class Failure(NamedTuple):
    """The reason why a replica could not load a version of an adapter, and until when it counts."""

    version: int
    why: str
    until_ns: int


class Slot:
    """One adapter at one replica: the loaded version, 0 before it is, how often it was loaded, and
    the requests there.
    """

    __slots__ = ("loads", "users", "version")

    def __init__(self) -> None:
        self.users = 0
        self.version = 0
        self.loads = 0


class Residency(Generic[Replica]):
    """The adapters of a model's replicas, as far as this gateway has loaded them.

    Call `begin` for each request that is bound to a replica, and `end` however it ends. The slots
    of a replica are in the order of their last use.
    """

    def __init__(self, resident_max: int = RESIDENT_MAX) -> None:
        self.resident_max = resident_max
        self._slots: dict[Replica, OrderedDict[str, Slot]] = {}
        # Adapters that lost their slot, and that the replica has still.
        self._due: dict[Replica, list[str]] = {}
        self._failures: dict[tuple[Replica, str], Failure] = {}

    def groups(
        self,
        wanted: Wanted,
        replicas: Sequence[Replica],
        now_ns: int,
        is_avoided: Callable[[Replica], bool],
    ) -> list[list[Replica]]:
        """Return the replicas for a request in groups, the best ones first.

        A replica whose slots are all in use is in none. Those that could not load the adapter of
        late, or are avoided, come last.
        """
        found: dict[int, list[Replica]] = {}
        for replica in replicas:
            slots = self._slots.get(replica) or OrderedDict()
            if wanted.name in slots:
                rank = 0
            elif len(slots) < self.resident_max:
                rank = 1
            elif any(not slot.users for slot in slots.values()):
                rank = 2
            else:
                continue
            if is_avoided(replica) or self.failure(wanted, replica, now_ns):
                rank = 3
            found.setdefault(rank, []).append(replica)
        return [found[rank] for rank in sorted(found)]

    def begin(self, wanted: Wanted, replica: Replica) -> None:
        """Count a request to the adapter at the replica, one of `groups`.

        If no slot is free, the least recently used adapter without requests loses its own.
        """
        slots = self._slots.setdefault(replica, OrderedDict())
        if wanted.name not in slots and len(slots) >= self.resident_max:
            self._drop(replica, next(name for name, slot in slots.items() if not slot.users))
        slots.setdefault(wanted.name, Slot()).users += 1
        slots.move_to_end(wanted.name)

    def end(self, wanted: Wanted, replica: Replica) -> None:
        """Count the request no longer. An adapter that was never loaded then has no slot."""
        slots = self._slots[replica]
        slot = slots[wanted.name]
        slot.users -= 1
        if not slot.users and not slot.version:
            del slots[wanted.name]

    def has(self, wanted: Wanted, replica: Replica) -> bool:
        """Return whether the replica has this version of the adapter."""
        slot = self._slot(wanted.name, replica)
        return slot is not None and slot.version == wanted.version

    def had_other(self, wanted: Wanted, replica: Replica) -> bool:
        """Return whether the replica has another version of the adapter."""
        slot = self._slot(wanted.name, replica)
        return slot is not None and slot.version not in (0, wanted.version)

    def loaded(self, wanted: Wanted, replica: Replica) -> None:
        """Note that the replica has the adapter now."""
        slot = self._slots[replica][wanted.name]
        slot.version = wanted.version
        slot.loads += 1
        self._failures.pop((replica, wanted.name), None)

    def failed(self, wanted: Wanted, replica: Replica, why: str, now_ns: int) -> None:
        """Note that the replica could not load the adapter."""
        until_ns = now_ns + FAILED_NS
        self._failures[replica, wanted.name] = Failure(wanted.version, why, until_ns)

    def failure(self, wanted: Wanted, replica: Replica, now_ns: int) -> str:
        """Return why the replica could not load the adapter of late; empty if it could."""
        known = self._failures.get((replica, wanted.name))
        is_recent = known is not None and known.version == wanted.version
        return known.why if known is not None and is_recent and now_ns < known.until_ns else ""

    def loads(self, wanted: Wanted, replica: Replica) -> int:
        """Return how often the adapter of a request at the replica was loaded."""
        return self._slots[replica][wanted.name].loads

    def lost(self, wanted: Wanted, replica: Replica, loads: int) -> None:
        """Note that the replica did not have the adapter after so many loads of it."""
        slot = self._slots[replica][wanted.name]
        if slot.loads == loads:
            slot.version = 0

    def take_due(self, replica: Replica) -> list[str]:
        """Return the adapters to unload at the replica, once. Call it before each load there."""
        return self._due.pop(replica, [])

    def drop_unwanted(self, versions: Mapping[str, int]) -> list[Replica]:
        """Take the slots of adapters that were removed or have another version now, and that no
        request uses. Return the replicas at which adapters are to be unloaded.
        """
        unwanted = [
            (replica, name)
            for replica, slots in self._slots.items()
            for name, slot in slots.items()
            if not slot.users and versions.get(name) != slot.version
        ]
        for replica, name in unwanted:
            self._drop(replica, name)
        return list(self._due)

    def keep_only(self, replicas: Iterable[Replica], now_ns: int) -> None:
        """Forget all other replicas, as soon as no request uses an adapter there, and failures that
        count no longer.
        """
        kept = tuple(replicas)
        for replica, slots in list(self._slots.items()):
            if replica not in kept and not any(slot.users for slot in slots.values()):
                del self._slots[replica]
                self._due.pop(replica, None)
        self._failures = {
            key: failure for key, failure in self._failures.items() if now_ns < failure.until_ns
        }

    def _slot(self, name: str, replica: Replica) -> Slot | None:
        slots = self._slots.get(replica)
        return slots.get(name) if slots is not None else None

    def _drop(self, replica: Replica, name: str) -> None:
        del self._slots[replica][name]
        self._due.setdefault(replica, []).append(name)

    def replicas_with(self, name: str) -> list[Replica]:
        """Return the replicas that have a version of the adapter."""
        return [
            replica
            for replica, slots in self._slots.items()
            if (slot := slots.get(name)) is not None and slot.version
        ]
