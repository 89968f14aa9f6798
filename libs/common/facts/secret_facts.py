"""Facts of the gateways about tenants' secrets: names and versions, never a value, not even sealed.

Pure; part of the union in `facts.py`.
"""

from libs.common.facts.fact import Fact
from libs.common.model import TenantId


class SecretSet(Fact, frozen=True, tag="secret.set"):
    """The tenant has a secret of this name; `version` counts its values.

    Attempts that begin from now on are given the newest.
    """

    tenant: TenantId
    name: str
    version: int = 1
    user: str = ""


class SecretRemoved(Fact, frozen=True, tag="secret.removed"):
    tenant: TenantId
    name: str
    user: str = ""
