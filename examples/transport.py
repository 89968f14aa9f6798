#!/usr/bin/env python3
"""Send weights from rank 0 to all other ranks over links that survive broken connections.

    head -c 32 /dev/urandom | base64 | muster secret set link-key
    muster run --nodes 3 --gpus 1 --secret link-key --upload examples -- python3 transport.py

Rank 0 lets its peers read its memory. The nodes need the package: pip install 'muster-gpu[job]'.
See docs/transport.md.
"""

import hashlib
import os

from muster.transport import Link, RemoteRegion, SharedKey, TcpTransport, allocate

WEIGHTS_BYTES = 16 << 20
WITHIN_S = 60.0
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])


def main() -> None:
    """Serve the weights as rank 0, or read them from there."""
    transport = TcpTransport(SharedKey(os.environ["LINK_KEY"].encode(), f"rank-{rank}"))
    if rank == 0:
        weights = allocate(WEIGHTS_BYTES)
        weights[:] = hashlib.shake_256(b"the weights").digest(WEIGHTS_BYTES)
        with transport.listen(host, port) as listener:
            for _ in range(size - 1):
                with listener.accept(within_s=WITHIN_S) as link:
                    serve(link, weights)
    else:
        with transport.connect(f"{host}:{port}", within_s=WITHIN_S) as link:
            with link.recv(within_s=WITHIN_S) as message:
                remote = RemoteRegion.unpack(message.view)
            weights = allocate(remote.size)
            link.read(remote, weights)  # rank 0 need not call anything meanwhile
            link.send(b"done")
            link.flush()
    print(f"rank {rank} has {hashlib.sha256(weights).hexdigest()[:12]}")


def serve(link: Link, weights: memoryview) -> None:
    """Let one peer read the weights, until it says that it has them."""
    region = link.register(weights, readable=True)
    link.send(region.remote.pack())
    with link.recv(within_s=WITHIN_S):
        region.close()


if __name__ == "__main__":
    main()
