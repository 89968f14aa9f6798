"""`python -m tests.attack.flooding KIND RATE ADDRESS...`: a job's process that floods agents with
datagrams until it is ended.

KIND is `junk` (one byte), `forged` (a well-formed question of a roster's node, wrongly signed) or
`answers` (the same as an answer).
"""

import itertools
import os
import socket
import sys
import time

import nkeys

from libs.common.model import NodeId
from services.node_agent.peers.peer_messages import NONCE_BYTES, PeerAnswer, PeerAsk, Said, Signer

BURST = 20


def datagrams(kind: str, nodes: int) -> list[bytes]:
    if kind == "junk":
        return [b"x"]
    signer = Signer(nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER))  # type: ignore[no-untyped-call]
    found: list[bytes] = []
    for claimed, to in itertools.permutations([NodeId(f"n{number}") for number in range(nodes)], 2):
        nonce = os.urandom(NONCE_BYTES)
        said: Said = (
            PeerAnswer(
                cluster_id="home",
                node_id=claimed,
                incarnation=1,
                nonce=nonce,
                to=to,
                unrenewed_ms=60_000,
            )
            if kind == "answers"
            else PeerAsk("home", claimed, 1, nonce)
        )
        found.append(signer.datagram(said))
    return found


def main(kind: str, rate: int, addresses: list[str]) -> None:
    own = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    places = [(host, int(port)) for host, _, port in (each.rpartition(":") for each in addresses)]
    sent, begun = 0, time.monotonic()
    for number, data in enumerate(itertools.cycle(datagrams(kind, len(addresses)))):
        for each in places:
            own.sendto(data, each)
        sent += len(places)
        if number % BURST == 0:
            time.sleep(max(0.0, begun + sent / rate - time.monotonic()))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
