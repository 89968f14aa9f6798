"""The bounds and the router of a model's queue, by the gateway's settings. Tests:
tests/integration/test_openai_queues.py.
"""

from typing import Final

from libs.common.settings.settings import Settings
from libs.common.state.cluster import Endpoint
from services.api_gateway.serving.admission import Bounds
from services.api_gateway.serving.prefix_index import PrefixIndex
from services.api_gateway.serving.prefix_space import PrefixSpace
from services.api_gateway.serving.routing import HELD_ROOM_TOKENS, MS_NS, ROOM_TOKENS, Router
from services.api_gateway.views.models import PRIORITIES

# One tenant's waiting requests may hold this part of the gateway's open requests.
TENANT_PART: Final = 4
# The prefix indexes of all models together may be as large as so many of one model.
INDEXES: Final = 8
# Without a bound.
NO_BOUND: Final = 1 << 62


def bounds(settings: Settings) -> Bounds:
    """Return the bounds of a model's waiting requests."""
    return Bounds(
        tenant_tokens=settings.model_tenant_waiting_tokens,
        model_tokens=settings.model_waiting_tokens,
        lowest_tokens=settings.model_waiting_tokens // 2,
        bands=len(PRIORITIES),
        wait_ns=settings.model_wait_ms * MS_NS,
        tenant_requests=max(1, settings.model_requests_max // TENANT_PART),
    )


def prefix_space(settings: Settings) -> PrefixSpace:
    """Return the space for the prefix indexes of all models."""
    return PrefixSpace(INDEXES * settings.model_prefix_bytes)


def router(settings: Settings, space: PrefixSpace) -> Router[Endpoint]:
    """Return the router of a model."""
    room = settings.model_room_tokens
    return Router(
        index=PrefixIndex(settings.model_prefix_bytes),
        room_tokens=room or NO_BOUND,
        held_room_tokens=room * HELD_ROOM_TOKENS // ROOM_TOKENS or NO_BOUND,
        room_requests=settings.model_room_requests or NO_BOUND,
        avoid_ns=settings.model_suspect_ms * MS_NS,
        space=space,
    )
