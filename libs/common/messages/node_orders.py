"""Orders to nodes that start and stop no job: device controls, fabric probes, resident data."""

import msgspec

from libs.common.model import GpuId, NodeId


class ControlOrder(msgspec.Struct, frozen=True):
    """A control that a device should have (`device_controls.py`).

    `request` is the sequence of the commit that requested it; 0: no request. `outcome` and `detail`
    are what the log knows about it, empty until the node has reported. `in_force` is the value that
    the device has.
    """

    uuid: GpuId
    control: str
    value: str
    request: int
    outcome: str = ""
    detail: str = ""
    in_force: str = ""


class ProbeOrder(msgspec.Struct, frozen=True):
    """An order to measure the link to `peer` for one round of a fabric test.

    Both nodes of the pair get one. The node that `dials` connects to `address` ("ip:port") of the
    peer; the other one waits for it. `token` is known to these two nodes only and proves that the
    scheduler ordered the pair. The probe takes at most `pair_ms`, and sends at most `bulk_count`
    messages of `bulk_bytes` in each direction.
    """

    test: str
    number: int
    peer: NodeId
    address: str
    dials: bool
    token: bytes
    pair_ms: int
    bulk_bytes: int
    bulk_count: int


class KeepOrder(msgspec.Struct, frozen=True):
    """One tier of a model that a node keeps (`life/kept_life.py`).

    `request` and `number`: see KeptPlaced. `granted` is what the ledger gave it of the node's
    memory, or of each device; 0: nothing yet. `gpu_bytes` is the same by device, for the tier gpu.
    `state` and `content` are what the log knows about it. The other fields are those of
    ModelKeepRequested.
    """

    model: str
    tier: str
    tenant: str
    request: int
    number: int
    state: str
    granted: int = 0
    weights: str = ""
    files: dict[str, str] = {}
    content: str = ""
    user: str = ""
    gpu_bytes: dict[GpuId, int] = {}


class KeepList(msgspec.Struct, frozen=True):
    """All that one node keeps, as of commit `seq`."""

    seq: int
    entries: tuple[KeepOrder, ...]
