"""The nodes of other machines that this launcher's server accepts: state/admitted.json, and how the server hears of another.

The gateway says them from the log (`libs/common/admission.py`); the file is only what the server is started with before it does.
"""

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from libs.common.admission import Admitted
from libs.common.errors import Corrupt
from libs.embedded import certificates, nats_config, plan, servers
from libs.embedded.identity import write_private
from libs.embedded.shape import Shape

# nats-server 2.15 links the imports of an account that a reload adds only at the reload after it.
RELOADS: Final = 2
RELOAD_PAUSE_S: Final = 0.3


def file(state: Path) -> Path:
    return state / "admitted.json"


def load(state: Path) -> Admitted:
    """None yet: an empty one. Raises Corrupt for a file that is not ours."""
    try:
        return msgspec.json.decode(file(state).read_bytes(), type=Admitted)
    except FileNotFoundError:
        return Admitted()
    except msgspec.DecodeError as error:
        raise Corrupt(f"{file(state)} cannot be read ({error}): remove it, the gateway says it again") from error


def configure(state: Path, shape: Shape, found: Admitted) -> Path:
    """The server's file with these nodes beside the launcher's own; its path."""
    keys = state / "keys"
    server = nats_config.Server(plan.SERVER, shape.nats_port, str(state / "nats"), shape.log_bytes)
    if shape.listen:
        files = str(certificates.cert_file(keys)), str(certificates.key_file(keys))
        server = msgspec.structs.replace(server, listen=shape.listen, certificate=files[0], key=files[1])
    nodes = tuple(node_id for node_id in shape.fleet.nodes if node_id not in found.removed)
    joined = {node_id: key for node_id, key in found.nodes.items() if node_id not in nodes} if shape.listen else {}
    return servers.write_config(state, server, msgspec.structs.replace(shape.fleet, nodes=nodes), joined)


def save(state: Path, found: Admitted) -> None:
    write_private(file(state), msgspec.json.encode(found).decode())


async def reload(send: Callable[[signal.Signals], None]) -> None:
    """Connections whose account and key stay are not touched; those of keys that are gone are closed."""
    for _ in range(RELOADS):
        send(signal.SIGHUP)
        await asyncio.sleep(RELOAD_PAUSE_S)
