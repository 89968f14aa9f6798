"""Whose jobs may share one device: those of one tenant, or of all tenants of which an administrator
said that they share.

Pure. A tenant's jobs are of one circle, and a partly held device is open to one circle only, so the
question is one comparison. A whole device is no question: nobody else is on it. It is asked when a
placement is decided, as a tenant's limits are: the folds do not ask it, for the word of an
administrator may cross a placement. The simulation's checker is `tenants_never_share_a_gpu`.
"""

from typing import Final

from libs.common.model import TenantId, job_of
from libs.common.state.cluster import Cluster, GpuView

# Of all tenants that share. No tenant has this name, nor the next.
SHARING: Final = ""
# A device on which tenants are that do not share any more: open to nobody.
CLOSED: Final = "/"


def sharing_domain_of(cluster: Cluster, name: TenantId) -> str:
    """The circle of a tenant's jobs."""
    tenant = cluster.tenants.get(name)
    return SHARING if tenant is not None and tenant.shares_devices else name


def sharing_domain_on(cluster: Cluster, view: GpuView) -> str:
    """To whom a partly held device is open."""
    sharing_domains = dict.fromkeys(
        sharing_domain_of(cluster, cluster.jobs[job_of(key)].tenant) for key in view.holds
    )
    return next(iter(sharing_domains)) if len(sharing_domains) == 1 else CLOSED
