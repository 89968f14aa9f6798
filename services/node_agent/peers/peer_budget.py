"""Bounds the datagrams that an agent reads in one window, by sender. Pure.

Verifying a signature costs 0.1 ms, and any local process can send. So each kind of sender has a
budget of its own, and cannot use up another's: the address of a roster member, senders that the
roster does not know, answers that carry the cookie of this round (only the asked peer knows it),
and identities with a verified signature.
"""

from typing import Final

from libs.common.model import NodeId

# Datagrams of one window: by address of the roster, by cookie, and by verified identity.
HEARD_PER_NODE: Final = 8
# Signatures that are verified in one window for senders that the roster does not know, for example
# an agent with a new port.
STRANGERS_MAX: Final = 256
# More datagrams of strangers, or of one address, are a flood, whatever they contain: the socket
# then reads the other addresses alone.
FLOOD_HEARD: Final = 2_000
# Windows for which the socket reads those addresses alone before it tries all again.
NARROW_WINDOWS: Final = 8


class Budget:
    """The budgets of one agent's senders.

    Until `narrow_until_ns` a flood keeps strangers out, and the addresses of the roster that sent
    too much (`loud`).
    """

    def __init__(self) -> None:
        self.narrow_until_ns = 0
        self.loud: set[str] = set()
        self._begin(0)

    def _begin(self, now_ns: int) -> None:
        self.since_ns = now_ns
        self.strangers = 0
        self.heard: dict[str, int] = {}
        self.addresses: dict[str, int] = {}
        self.answers: dict[str, int] = {}
        self.identities: dict[str, int] = {}

    def hears(self, sender: str, known: bool, now_ns: int, window_ns: int) -> bool:
        """Count a datagram of any content. Returns whether this one begins a flood."""
        if now_ns - self.since_ns > window_ns:
            self._begin(now_ns)
        key = sender if known else ""
        self.heard[key] = self.heard.get(key, 0) + 1
        flood = self.heard[key] > FLOOD_HEARD or (not known and self.strangers >= STRANGERS_MAX)
        begins = flood and (now_ns >= self.narrow_until_ns or (known and key not in self.loud))
        if begins:
            if now_ns >= self.narrow_until_ns:
                self.loud.clear()
            if known:
                self.loud.add(key)
            self.narrow_until_ns = now_ns + NARROW_WINDOWS * window_ns
        return begins

    def is_narrow(self, now_ns: int) -> bool:
        return now_ns < self.narrow_until_ns

    def may_verify_ask(self, sender: str, known: bool) -> bool:
        """Return whether to verify a question's signature.

        `known`: the sender's address is one of the roster.
        """
        if known:
            return _counts(self.addresses, sender)
        self.strangers += 1
        return self.strangers <= STRANGERS_MAX

    def may_verify_answer(self, node_id: NodeId) -> bool:
        """Return whether to verify an answer that carries the cookie of this node."""
        return _counts(self.answers, node_id)

    def may_believe(self, node_id: NodeId) -> bool:
        """Return whether an identity with a verified signature may send one more datagram."""
        return _counts(self.identities, node_id)


def _counts(counted: dict[str, int], key: str) -> bool:
    counted[key] = counted.get(key, 0) + 1
    return counted[key] <= HEARD_PER_NODE
