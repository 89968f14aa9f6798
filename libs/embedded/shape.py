"""The shape of an embedded cluster: its nodes, ports and addresses, stored in state/cluster.json.

The flags of the first start apply to later ones, unless new flags change them. The file marks a
directory as a cluster's. A file of a later version stops the start: an older program must not
change what it does not understand.
"""

import ipaddress
import secrets
import shutil
import socket
from pathlib import Path
from typing import Final

import msgspec

from libs.common.errors import Corrupt, Refused, TooNew
from libs.common.quantities import counted
from libs.embedded import servers
from libs.embedded.identity import write_private
from libs.embedded.permissions import Fleet

FORMAT: Final = "muster-embedded"
VERSION: Final = 1
FREE_BYTES_MIN: Final = 256 << 20
LOG_BYTES_MAX: Final = 8 << 30
LOG_BYTES_MIN: Final = 64 << 20
NODES_MAX: Final = 1_024
# Gateway instances; they take the port and the following ones.
GATEWAY_INSTANCES: Final = tuple("abcdefgh")
# Processes of a service of which one leads, and the options that say how many there are.
INSTANCES: Final = tuple("abc")
REPLICATED: Final = ("schedulers", "quotas", "audits")
# The agent of this machine's own GPUs.
LOCAL_NODE: Final = "local"
# Files that a first start creates before cluster.json, and leaves behind if it is interrupted.
BEFORE_SHAPE: Final = ("lock", "logs")


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The flags of up, down and clean. None: the value of the last start, or `Shape`'s default."""

    nodes: int | None = None
    gpus: int | None = None
    model: str | None = None
    host: str | None = None
    port: int | None = None
    gateways: int | None = None
    schedulers: int | None = None
    quotas: int | None = None
    audits: int | None = None
    listen: str | None = None
    local: bool | None = None
    force: bool = False
    state: Path = Path(".muster")
    foreground: bool = True
    yes: bool = False


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """The content of state/cluster.json."""

    format: str = FORMAT
    version: int = VERSION
    cluster_id: str
    nodes: int = 4
    gpus: int = 8
    model: str = "Simulated H100"
    host: str = "127.0.0.1"
    port: int = 8080
    gateways: int = 1
    schedulers: int = 1
    quotas: int = 1
    audits: int = 1
    nats_port: int = 0
    listen: str = ""
    local: bool = False
    log_bytes: int = LOG_BYTES_MAX
    # The first gateway's port for gRPC, chosen at each start; 0: no gRPC.
    grpc_port: int = 0

    @property
    def fleet(self) -> Fleet:
        simulated = tuple(f"node-{number}" for number in range(1, self.nodes + 1))
        return Fleet(
            nodes=(*simulated, LOCAL_NODE) if self.local else simulated,
            gateways=GATEWAY_INSTANCES[: self.gateways],
        )

    @property
    def words(self) -> str:
        """The nodes of the cluster in words."""
        simulated = (
            [f"{counted(self.nodes, 'node')} with {self.gpus} x {self.model} each"]
            if self.nodes
            else []
        )
        own = ["this machine's own GPUs"] if self.local else []
        return " and ".join([*simulated, *own]) or "no nodes of its own"

    @property
    def gateway(self) -> str:
        """The address of the gateway for a client on this machine."""
        host = "127.0.0.1" if self.host == "0.0.0.0" else self.host  # nosec B104
        return f"http://{host}:{self.port}"

    @property
    def grpc(self) -> str:
        """The address of gRPC for a client on this machine."""
        return f"{self.gateway.removeprefix('http://').rpartition(':')[0]}:{self.grpc_port}"

    @property
    def nats(self) -> str:
        return (
            f"tls://{self.listen}:{self.nats_port}"
            if self.listen
            else f"nats://127.0.0.1:{self.nats_port}"
        )


class _Head(msgspec.Struct, frozen=True):
    format: str = ""
    version: int = 0


def shape_file(state: Path) -> Path:
    return state / "cluster.json"


def prepare(options: Options) -> Shape:
    """Create the state directory if there is none, and return the shape of this start.

    Raises Refused, Corrupt or TooNew.
    """
    state = options.state
    try:
        state.mkdir(parents=True, exist_ok=True, mode=0o700)
        free = shutil.disk_usage(state).free
        known = load(state)
    except OSError as error:
        raise Refused(
            f"the state directory {state} cannot be used ({error.strerror}): choose another "
            "with --state"
        ) from error
    if free < FREE_BYTES_MIN:
        raise Refused(
            f"only {free >> 20} MiB are free under {state}: a cluster needs "
            f"{FREE_BYTES_MIN >> 20} MiB; free some, or choose another disk with --state"
        )
    return _checked(_changed(known or _first(free), options))


def load(state: Path) -> Shape | None:
    """Return the stored shape; None for an empty or missing directory.

    Raises Corrupt if the directory holds other files, or the file is damaged.
    """
    path = shape_file(state)
    if not path.exists():
        if state.exists() and any(each.name not in BEFORE_SHAPE for each in state.iterdir()):
            raise Corrupt(
                f"{state} is not the state of a cluster (it holds files but no cluster.json): "
                "choose another directory with --state"
            )
        return None
    raw = path.read_bytes()
    try:
        head = msgspec.json.decode(raw, type=_Head)
        if head.format == FORMAT and head.version > VERSION:
            raise TooNew(
                f"{path} was written by a newer muster (format {head.version}, this one "
                f"knows {VERSION}): upgrade this one"
            )
        shape = msgspec.json.decode(raw, type=Shape)
    except msgspec.DecodeError as error:
        raise Corrupt(
            f"{path} cannot be read ({error}): restore it, or remove {state} and start a new "
            "cluster (the jobs of this one are lost)"
        ) from error
    if shape.format != FORMAT:
        raise Corrupt(
            f"{path} belongs to another program ({shape.format!r}): choose another directory "
            "with --state"
        )
    return shape


def save(state: Path, shape: Shape) -> None:
    write_private(
        shape_file(state), msgspec.json.format(msgspec.json.encode(shape), indent=1).decode()
    )


def _first(free: int) -> Shape:
    """Return the shape of a new cluster. Its log may take half of the disk's free space."""
    log_bytes = max(LOG_BYTES_MIN, min(LOG_BYTES_MAX, free // 2))
    return Shape(
        cluster_id=f"{socket.gethostname()[:40].lower()}-{secrets.token_hex(3)}",
        log_bytes=log_bytes,
    )


def _changed(shape: Shape, options: Options) -> Shape:
    if options.local and options.nodes is None and shape.nodes and not shape.local:
        shape = msgspec.structs.replace(
            shape, nodes=0
        )  # beside real devices, simulated nodes only if the user asked for them
    given = {
        name: getattr(options, name)
        for name in (
            *("nodes", "gpus", "model", "host", "port", "gateways", "listen", "local"),
            *REPLICATED,
        )
    }
    return msgspec.structs.replace(
        shape, **{name: value for name, value in given.items() if value is not None}
    )


def _checked(shape: Shape) -> Shape:
    bounds = {
        "nodes": (0 if shape.local or shape.listen else 1, NODES_MAX),
        "gpus": (0, 64),
        "port": (1, 65_536 - shape.gateways),
    }
    bounds["gateways"] = (1, len(GATEWAY_INSTANCES))
    bounds |= dict.fromkeys(REPLICATED, (1, len(INSTANCES)))
    for name, (least, most) in bounds.items():
        if not least <= getattr(shape, name) <= most:
            raise Refused(f"--{name} {getattr(shape, name)} is out of range: use {least} to {most}")
    if shape.listen and not _is_own_address(shape.listen):
        raise Refused(
            f"--listen {shape.listen} is not an address of this machine: give one that the other "
            "machines reach (see `ip -brief address`)"
        )
    return shape


def _is_own_address(text: str) -> bool:
    """Return whether this is one address of this machine. Others need one, so 0.0.0.0 is not."""
    try:
        return not ipaddress.ip_address(text).is_unspecified and servers.port_is_free(text, 0)
    except ValueError:
        return False
