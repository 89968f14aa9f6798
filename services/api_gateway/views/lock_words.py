"""Word each fact about locks in a line. Pure. Tests: tests/unit/test_history_words.py."""

from collections.abc import Callable
from typing import Any, Final

from libs.common import facts as f
from services.api_gateway.views.user_words import user_named

LOCK_WORDS: Final[dict[type, Callable[[Any], str]]] = {
    f.LockRequested: lambda x: (
        f"lock {x.lock} of {x.tenant} requested by {user_named(x.user)} as {x.holder}"
    ),
    f.LockRenewRequested: lambda x: f"renewal of lock {x.lock} of {x.tenant} for {x.holder}",
    f.LockReleaseRequested: lambda x: (
        f"lock {x.lock} of {x.tenant} released by {user_named(x.user)} as {x.holder}"
    ),
    f.LockGranted: lambda x: (
        f"lock {x.lock} of {x.tenant} granted to {x.holder} with token {x.token}"
    ),
    f.LockRenewed: lambda x: f"lock {x.lock} of {x.tenant} renewed for {x.holder}",
    f.LockFreed: lambda x: f"claim {x.holder} on lock {x.lock} of {x.tenant} ended: {x.reason}",
}
