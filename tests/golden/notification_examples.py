"""The examples of facts about notifications; see `examples.py`."""

from typing import Final

from libs.common import facts as f
from libs.common.facts import AnyFact
from libs.common.model import NodeId, TenantId

NODE: Final = NodeId("node-1")
TENANT: Final = TenantId("physics")
NOTIFICATIONS: Final[tuple[AnyFact, ...]] = (
    f.NotificationSet(
        tenant=TENANT,
        name="ops",
        form="webhook",
        shown="https://hooks.example",
        kinds=("job.closed", "node."),
        user="ada",
        own=True,
        failures=True,
        models=("chat",),
        nodes=(NODE,),
        tenants=("*",),
        version=3,
    ),
    f.NotificationRemoved(tenant=TENANT, name="ops", user="ada"),
)
