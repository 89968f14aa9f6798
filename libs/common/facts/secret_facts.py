"""Facts of the gateways about tenants' secrets: names and versions, never a value.

Pure; part of the union in `facts/__init__.py`. Not even an encrypted value is recorded.
"""

from libs.common.facts.fact import Fact
from libs.common.model import TenantId


class SecretSet(Fact, frozen=True, tag="secret.set"):
    """A user stored a value for a secret of the tenant.

    `version` counts the values. Attempts that start later get the newest. `value_id` names the
    value in the bucket of secrets; earlier versions recorded none.
    """

    tenant: TenantId
    name: str
    version: int = 1
    user: str = ""
    value_id: str = ""


class SecretRemoved(Fact, frozen=True, tag="secret.removed"):
    """A user removed a secret of the tenant."""

    tenant: TenantId
    name: str
    user: str = ""
