"""Commits that a hostile node could publish: valid ones of its own, mutated at every level, by a
seed.

Structure-aware: the bytes, the fields of the envelope, the facts and their fields, the integers,
the names of jobs, nodes and devices. tests/property/test_hostile_commits.py folds them; `fuzz.py`
publishes them to a real cluster.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from libs.common import facts as f
from libs.common import subjects
from libs.common.facts import AnyFact
from libs.common.model import AttemptRef, Gpu, GpuId, JobId, NodeId

EDGES: Final = (
    0,
    1,
    -1,
    127,
    255,
    1 << 31,
    (1 << 31) - 1,
    1 << 53,
    (1 << 53) + 1,
    1 << 62,
    (1 << 63) - 1,
    1 << 63,
    (1 << 64) - 1,
    -(1 << 63),
)
TEXTS: Final = (
    "",
    "\x00",
    "x" * 10_000,
    "../../etc",
    "node-2",
    "\u202e",
    "🂡" * 300,
    "facts.scheduler",
)
KINDS: Final = tuple(f.NodeFact.__args__)


class Hostile:
    """A node that says anything.

    It knows the names of the jobs, the other nodes and their devices.
    """

    def __init__(
        self,
        chance: Random,
        node: str,
        others: Sequence[str],
        jobs: Sequence[str],
        uuids: Sequence[str],
    ) -> None:
        self.chance = chance
        self.node = NodeId(node)
        self.subject = subjects.node(node)
        self.others = others
        self.jobs = list(jobs) or ["j"]
        self.uuids = list(uuids) or ["g"]
        self.number = 0
        self.incarnation = 0

    def next(self) -> bytes:
        """Return the next message."""
        self.number += 1
        facts = [self._fact() for _ in range(self.chance.choice((0, 1, 1, 1, 2, 5)))]
        envelope: list[Any] = [
            f.VERSION,
            f.VERSION,
            self.subject,
            self.number,
            self.incarnation,
            1 << 60,
            0,
            facts,
        ]
        level = self.chance.choice(
            (
                self._as_it_is,
                self._as_it_is,
                self._fields,
                self._envelope,
                self._bytes,
                self._junk,
                self._deep,
            )
        )
        return level(msgspec.to_builtins(envelope, builtin_types=(bytes,)))

    def _fact(self) -> AnyFact:
        kind = self.chance.choice(KINDS)
        fields = {
            field.name: self._value(field.name)
            for field in msgspec.structs.fields(kind)
            if field.required
        }
        made: AnyFact = kind(**fields)
        return self._registered(made) if isinstance(made, f.NodeRegistered) else made

    def _registered(self, fact: f.NodeRegistered) -> f.NodeRegistered:
        """One that is read, as often as not, and claims devices of others."""
        self.incarnation += self.chance.choice((0, 1, 1, 1, 1 << 30))
        gpus = tuple(self._gpu() for _ in range(self.chance.choice((0, 1, 3, 300))))
        refs = tuple(
            AttemptRef(JobId(self.chance.choice(self.jobs)), 1)
            for _ in range(self.chance.randrange(3))
        )
        directory = self.chance.choice(("", "one", "two"))
        return replace(
            fact,
            node_id=self.node,
            incarnation=self.incarnation,
            gpus=gpus,
            attempts=refs,
            directory=directory,
        )

    def _gpu(self) -> Gpu:
        uuid = self.chance.choice((*self.uuids, f"x{self.chance.randrange(10_000)}"))
        return Gpu(
            uuid=GpuId(uuid),
            index=self._number(),
            vendor="simulated",
            model="H100",
            memory_bytes=self._number(),
        )

    def _value(self, name: str) -> Any:
        choices: dict[str, Callable[[], Any]] = {
            "node_id": lambda: (
                self.node if self.chance.random() < 0.8 else self.chance.choice(self.others)
            ),
            "job_id": lambda: self.chance.choice(self.jobs),
            "uuid": lambda: self.chance.choice(self.uuids),
            "attempt": lambda: self.chance.choice((1, 1, 1, 2, self._number())),
            "gpus": tuple,
            "health": lambda: self.chance.choice(
                ("degraded", "offline", "resetting", "healthy", "?")
            ),
        }
        numbers = ("incarnation", "exit_code", "request", "used_bytes", "share_bytes", "grace_s")
        if name in choices:
            return choices[name]()
        return self._number() if name in numbers else self.chance.choice(TEXTS)

    def _number(self) -> int:
        return self.chance.choice((*EDGES, self.chance.randrange(100)))

    def _as_it_is(self, envelope: list[Any]) -> bytes:
        return msgspec.msgpack.encode(envelope)

    def _fields(self, envelope: list[Any]) -> bytes:
        """Change, remove or add fields of a fact."""
        for fact in envelope[7]:
            for name in list(fact):
                if self.chance.random() < 0.3:
                    fact[name] = self._anything()
            if self.chance.random() < 0.1:
                fact.pop(self.chance.choice(list(fact)), None)
            if self.chance.random() < 0.1:
                fact["new"] = self._anything()
        return msgspec.msgpack.encode(envelope)

    def _envelope(self, envelope: list[Any]) -> bytes:
        envelope[self.chance.randrange(8)] = self._anything()
        if self.chance.random() < 0.2:
            envelope.insert(self.chance.randrange(9), self._anything())
        return msgspec.msgpack.encode(envelope)

    def _anything(self) -> Any:
        return self.chance.choice(
            (
                self._number(),
                self.chance.choice(TEXTS),
                None,
                True,
                1.5,
                [],
                {},
                [self._number()] * 300,
                {"a": b"x"},
            )
        )

    def _bytes(self, envelope: list[Any]) -> bytes:
        """Flip, cut or double bytes."""
        data = bytearray(msgspec.msgpack.encode(envelope))
        for _ in range(self.chance.randrange(1, 6)):
            data[self.chance.randrange(len(data))] = self.chance.randrange(256)
        cut = self.chance.randrange(len(data) + 1)
        return bytes(self.chance.choice((data, data[:cut], data[cut:] + data)))

    def _junk(self, envelope: list[Any]) -> bytes:
        return self.chance.choice(
            (b"", b"hello", b"\xdd\xff\xff\xff\xff", b"\xc1", self.chance.randbytes(40))
        )

    def _deep(self, envelope: list[Any]) -> bytes:
        """Return an unknown fact with deep nesting."""
        nested = (
            b"\x82\xa4kind\xa1?\xa1x"
            + b"\x91" * self.chance.choice((10, 60, 70, 900, 20_000))
            + b"\x90"
        )
        return msgspec.msgpack.encode([*envelope[:7], []])[:-1] + b"\x91" + nested
