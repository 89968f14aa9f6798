"""Sharing domains: the tenants whose jobs may share one device.

Pure. A domain is one tenant, or all tenants that an administrator allowed to share devices. A
partly held device is open to one domain only, so the check is one comparison. Whole devices need no
check. The check is made when a placement is decided, as for tenant limits. The folds do not repeat
it, because an administrator's change may cross a placement. The simulation's checker is
`tenants_never_share_a_gpu`.
"""

from typing import Final

from libs.common.model import TenantId, job_of
from libs.common.state.cluster import Cluster, GpuView

# The domain of all tenants that share devices. No tenant has this name, nor the next one.
SHARING: Final = ""
# The domain of a device whose tenants no longer share: no further job may use it.
CLOSED: Final = "/"


def sharing_domain_of(cluster: Cluster, name: TenantId) -> str:
    """Return the sharing domain of a tenant's jobs."""
    tenant = cluster.tenants.get(name)
    return SHARING if tenant is not None and tenant.shares_devices else name


def sharing_domain_on(cluster: Cluster, view: GpuView) -> str:
    """Return the sharing domain that may use a partly held device."""
    sharing_domains = dict.fromkeys(
        sharing_domain_of(cluster, cluster.jobs[job_of(key)].tenant) for key in view.holds
    )
    return next(iter(sharing_domains)) if len(sharing_domains) == 1 else CLOSED
