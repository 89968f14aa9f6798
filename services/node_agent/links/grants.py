"""The grants of one agent: which tokens it signed, and which of them a session has used.

A grant allows one session, whose connections may break and come back. A restarted agent knows no
grant, so a token from before is refused. Safe for threads. Tests: tests/attack/test_agent_links.py.
"""

import secrets
import threading
from collections import Counter
from collections.abc import Callable
from typing import Final

from libs.common.errors import Refused
from libs.common.messages.file_messages import BUSY
from libs.common.messages.link_messages import PATH_BYTES_MAX, READ, LinkAsk
from libs.job.transport.access import Refused as NoAccess
from services.node_agent.fabric.tokens import SECOND_NS, LinkKey, LinkToken, Purpose
from services.node_agent.jobs.files import Fault

GRANTS_MAX: Final = 1_024
GRANTS_PER_TENANT: Final = 256
VALID_S: Final = 3_600
NONCE_BYTES: Final = 16
# Nodes that read the same kept weights or upload at once. Others wait for more sources.
READERS_MAX: Final = 2
# A token that no session used for so long is no reader.
UNUSED_NS: Final = 15 * SECOND_NS
# Without room for another token, those that no session used for so long are forgotten.
FORGOTTEN_NS: Final = 60 * SECOND_NS
FRESH: Final = "fresh"
OPEN: Final = "open"


class Grants:
    """Grants by nonce. A grant leaves when its session or its time ends."""

    def __init__(self, key: LinkKey, wall_ns: Callable[[], int]) -> None:
        self.key, self.wall_ns = key, wall_ns
        self._lock = threading.Lock()
        self._known: dict[str, tuple[LinkAsk, int]] = {}
        self._states: dict[str, str] = {}

    def sign(self, cluster_id: str, ask: LinkAsk) -> bytes:
        """Return the token of a new grant. Raises Refused, or Fault BUSY if there are too many."""
        if ask.direction != READ:
            raise Refused(f"direction: {ask.direction[:64]!r} is unknown: use {READ}")
        if len(ask.path) > PATH_BYTES_MAX or b"\0" in ask.path:
            raise Refused(f"path: give at most {PATH_BYTES_MAX} bytes, without a NUL byte")
        nonce = secrets.token_hex(NONCE_BYTES)
        purpose = Purpose(
            nonce=nonce,
            job_id=ask.job_id,
            attempt=ask.attempt,
            direction=ask.direction,
            path=ask.path,
            model=ask.model,
            request=ask.request,
            upload=ask.upload,
        )
        now_ns = self.wall_ns()
        try:
            token = self.key.token(
                cluster_id, ask.dialler, ask.tenant, now_ns=now_ns, valid_s=VALID_S, purpose=purpose
            )
        except ValueError as error:
            raise Refused(str(error)) from error
        with self._lock:
            self._make_room(ask.tenant, now_ns)
            self._check_readers(ask, now_ns)
            self._known[nonce] = ask, now_ns + VALID_S * SECOND_NS
            self._states[nonce] = FRESH
        return token

    def admit(self, token: LinkToken) -> None:
        """Check the grant of a token whose signature is right. Raises Refused of links."""
        with self._lock:
            if token.nonce not in self._known:
                raise NoAccess(
                    "the token was used, was not used in time, or was signed before the agent "
                    "restarted"
                )

    def begin(self, nonce: str) -> LinkAsk | None:
        """Return the grant for a new session; None if a session has it already."""
        with self._lock:
            if self._states.get(nonce) != FRESH:
                return None
            self._states[nonce] = OPEN
            return self._known[nonce][0]

    def end(self, nonce: str) -> None:
        """End a grant together with its session."""
        with self._lock:
            self._known.pop(nonce, None)
            self._states.pop(nonce, None)

    def _make_room(self, tenant: str, now_ns: int) -> None:
        """Forget tokens that no session used: those that expired, and more if there is no room.

        Raises Fault BUSY if there is none then.
        """
        self._forget_fresh(now_ns)
        if self._has_room(tenant):
            return
        self._forget_fresh(now_ns + VALID_S * SECOND_NS - FORGOTTEN_NS)
        if self._has_room(tenant) or self._gives_way(tenant):
            return
        mine = self._of_tenants()[tenant]
        raise Fault(
            BUSY,
            f"node {self.key.node_id} has {len(self._known)} tokens for links outstanding, "
            f"{mine} of tenant {tenant}: at most {GRANTS_MAX} and "
            f"{GRANTS_PER_TENANT} are signed. Wait until copies end",
        )

    def _forget_fresh(self, until_ns: int) -> None:
        """Forget the tokens without a session that are valid no longer than this."""
        for nonce in [name for name, (_, end_ns) in self._known.items() if end_ns <= until_ns]:
            if self._states[nonce] == FRESH:
                del self._known[nonce], self._states[nonce]

    def _of_tenants(self) -> Counter[str]:
        return Counter(ask.tenant for ask, _ in self._known.values())

    def _has_room(self, tenant: str) -> bool:
        return len(self._known) < GRANTS_MAX and self._of_tenants()[tenant] < GRANTS_PER_TENANT

    def _gives_way(self, tenant: str) -> bool:
        """Forget the oldest unused token of the tenant with most tokens; return whether it did.

        It gives way only to a tenant with fewer tokens.
        """
        number = self._of_tenants()
        if number[tenant] >= GRANTS_PER_TENANT:
            return False
        most, _ = number.most_common(1)[0]
        if number[most] <= number[tenant] + 1:
            return False
        for nonce, (ask, _) in self._known.items():
            if ask.tenant == most and self._states[nonce] == FRESH:
                del self._known[nonce], self._states[nonce]
                return True
        return False

    def _check_readers(self, ask: LinkAsk, now_ns: int) -> None:
        """Raise Fault BUSY if enough nodes read these weights, or this upload."""
        if not (ask.model or ask.upload):
            return
        unused_ns = now_ns + VALID_S * SECOND_NS - UNUSED_NS
        readers = sum(
            _wanted(each) == _wanted(ask) and (self._states[nonce] == OPEN or until_ns >= unused_ns)
            for nonce, (each, until_ns) in self._known.items()
        )
        if readers >= READERS_MAX:
            what = f"the weights of model {ask.model}" if ask.model else f"upload {ask.upload[:12]}"
            raise Fault(
                BUSY,
                f"{readers} nodes read {what} from node {self.key.node_id}, and at most "
                f"{READERS_MAX} may: try again later",
            )


def _wanted(ask: LinkAsk) -> tuple[str, str, int, str]:
    """Return what is the same for all readers of one thing."""
    return ask.tenant, ask.model, ask.request, ask.upload
