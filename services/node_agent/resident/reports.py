"""Reports about resident data, and orders that stand for what an earlier agent left."""

from libs.common.life import kept_life
from libs.common.messages import KeepOrder
from services.node_agent.core.observations import KeepSeen


def seen_of(order: KeepOrder, state: str, **fields: object) -> KeepSeen:
    """Return a report about an order; the fields are those of KeepSeen."""
    return KeepSeen(order.model, order.tier, order.request, order.number, state, **fields)  # type: ignore[arg-type]


def held_order(tier: str, tenant: str, model: str) -> KeepOrder:
    """Return the order that removes what an earlier agent kept."""
    return KeepOrder(
        model=model, tier=tier, tenant=tenant, request=0, number=0, state=kept_life.READY
    )
