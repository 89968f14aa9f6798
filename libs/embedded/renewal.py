"""Renews the certificates and the authority of a running cluster of `muster up`, in place.

A new server certificate takes effect when the server reloads its file; connections stay. A new
authority comes in two steps: first every process and every joined machine trusts both, then the
servers show a certificate of the new one. The second step waits until every machine has answered,
because one that does not trust the new authority could not connect again. The command may be
repeated: it goes on with the authority that it began. Tests:
tests/integration/test_certificate_renewal.py.
"""

import asyncio
import datetime
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from libs.common import subjects
from libs.common.errors import Refused, Unavailable
from libs.common.model import NodeId
from libs.common.safety import authorities
from libs.common.safety.following import TLS_NAME, Introduced, Introduction
from libs.common.transport import connection_nats
from libs.common.transport.bus import Bus
from libs.common.transport.bus_nats import NatsBus
from libs.embedded import certificates, identity, keeper, permissions, plan, runfile, shape
from libs.embedded.identity import write_private
from libs.embedded.living import is_living
from libs.embedded.shape import Shape

# The authority that is introduced but does not sign yet.
NEXT: Final = "ca-next"
# The files of an authority in the order of their exchange: until the certificate is exchanged, the
# gateways give joining machines the one that has signed the servers.
PLACES: Final = (certificates.key_file, certificates.certificate_file)
ANSWER_S: Final = 5.0
NAMES_SHOWN: Final = 10
# Nodes that are asked at the same time.
PLACES_MAX: Final = 64

Say = Callable[[str], None]


class Shown(NamedTuple):
    """One certificate: its file, its name, its end (RFC 3339), and the whole days until then."""

    file: str
    name: str
    ends: str
    days: int


def listed(state: Path) -> list[Shown]:
    """Return the certificates of the cluster. Raises Refused if it has none."""
    keys = _keys(state)
    return [
        _shown(certificates.certificate_file(keys, name))
        for name in (certificates.AUTHORITY, certificates.SERVER, NEXT)
        if certificates.certificate_file(keys, name).exists()
    ]


def renew(state: Path, say: Say) -> None:
    """Replace the servers' certificate by a new one of the same authority."""
    keys = _keys(state)
    _finish(keys)
    _new_server(keys)
    _reload(state, say)
    say(f"the servers show a new certificate until {listed(state)[1].ends}")


def renew_authority(state: Path, force: bool, say: Say) -> None:
    """Replace the authority.

    Raises Refused if a machine does not trust the new one yet, unless `force`.
    """
    keys = _keys(state)
    found = shape.load(state)
    assert found is not None
    if _finish(keys):
        _new_server(keys)
        _reload(state, say)
        say("the change of the authority that was interrupted is complete")
        return
    certificates.authority(keys, NEXT)
    introduction = _introduction(keys)
    trusted = certificates.certificate_file(keys, certificates.TRUSTED)
    write_private(trusted, authorities.extended(trusted.read_text(), introduction))
    nodes = list[NodeId]()
    missing = dict[str, str]()
    # Other machines may join while the first ones are asked.
    while joined := [NodeId(each) for each in keeper.load(state).nodes if each not in nodes]:
        missing |= asyncio.run(_introduced(state, found, joined, introduction))
        nodes += joined
    for node_id, why in missing.items():
        say(f"node {node_id} does not trust the new authority: {why}")
    if missing and not force:
        names = ", ".join([*missing][:NAMES_SHOWN])
        raise Refused(
            f"the authority stays as it is, because {names} could not connect to the new one: "
            "start their agents or remove the nodes, then repeat the command; --force cuts them off"
        )
    for place in PLACES:
        place(keys, NEXT).replace(place(keys, certificates.AUTHORITY))
    _new_server(keys)
    _reload(state, say)
    say(
        f"the cluster has a new authority, which {len(nodes) - len(missing)} joined machines trust "
        "beside the old one; tokens of `muster node add` that were not used are void"
    )


def _keys(state: Path) -> Path:
    """Return the folder with the keys. Raises Refused for a cluster without certificates."""
    if shape.load(state) is None:
        raise Refused(f"there is no cluster in {state}: name its state directory with --state")
    keys = state / "keys"
    if not certificates.key_file(keys, certificates.AUTHORITY).exists():
        raise Refused(
            f"the cluster in {state} has no certificates, because it does not listen for other "
            "machines: `muster up --listen ADDRESS` creates them"
        )
    certificates.ensure(keys)
    return keys


def _finish(keys: Path) -> bool:
    """Finish an exchange of the authority that a crash interrupted; return whether there was one.

    A crash while the next authority was written leaves one of its files too. That file is removed.
    """
    left = [place for place in PLACES if place(keys, NEXT).exists()]
    if len(left) != 1:
        return False
    (place,) = left
    (other,) = (each for each in PLACES if each != place)
    if _public(place(keys, NEXT)) != _public(other(keys, certificates.AUTHORITY)):
        place(keys, NEXT).unlink()
        return False
    place(keys, NEXT).replace(place(keys, certificates.AUTHORITY))
    return True


def _public(path: Path) -> bytes:
    """Return the public key in a file with a certificate or a private key."""
    data = path.read_bytes()
    if path.suffix == ".pem":
        key = x509.load_pem_x509_certificate(data).public_key()
    else:
        key = _signer(path).public_key()
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return key.public_bytes(serialization.Encoding.DER, form)


def _shown(path: Path) -> Shown:
    found = x509.load_pem_x509_certificate(path.read_bytes())
    left = found.not_valid_after_utc - datetime.datetime.now(datetime.UTC)
    name = found.subject.rfc4514_string().removeprefix("CN=")
    return Shown(path.name, name, found.not_valid_after_utc.isoformat(), left.days)


def _introduction(keys: Path) -> Introduction:
    key = _signer(certificates.key_file(keys, certificates.AUTHORITY))
    return authorities.introduce(certificates.certificate_file(keys, NEXT).read_text(), key)


def _signer(path: Path) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(path.read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return key


async def _introduced(
    state: Path, found: Shape, nodes: Sequence[NodeId], introduction: Introduction
) -> dict[str, str]:
    """Introduce the new authority to the nodes; return those that do not trust it, with why."""
    keys = state / "keys"
    client = await connection_nats.connect(
        [found.nats],
        permissions.OPERATOR,
        identity.seed_file(keys, permissions.OPERATOR).read_bytes().strip(),
        str(certificates.certificate_file(keys, certificates.TRUSTED)),
    )
    bus, places = NatsBus(client), asyncio.Semaphore(PLACES_MAX)

    async def refusal(node_id: NodeId) -> str:
        async with places:
            return await _refusal(bus, node_id, introduction)

    whys = await asyncio.gather(*(refusal(node_id) for node_id in nodes))
    await client.close()
    return {node_id: why for node_id, why in zip(nodes, whys, strict=True) if why}


async def _refusal(bus: Bus, node_id: NodeId, introduction: Introduction) -> str:
    """Introduce the new authority to a node. Return why the node does not trust it; empty if it
    does.
    """
    subject = subjects.ask_node(node_id, "authority")
    try:
        answer = await bus.request(subject, msgspec.msgpack.encode(introduction), ANSWER_S)
        return msgspec.msgpack.decode(answer, type=Introduced).refused
    except (Unavailable, msgspec.DecodeError) as error:
        return str(error) or "it does not answer"


def _new_server(keys: Path) -> None:
    """Create a new certificate and key of the servers, and replace the old files by them."""
    made = f"{certificates.SERVER}-next"
    for place in (certificates.key_file, certificates.certificate_file):
        place(keys, made).unlink(missing_ok=True)
    certificates.server(keys, made, certificates.AUTHORITY, [TLS_NAME])
    for place in (certificates.certificate_file, certificates.key_file):
        place(keys, made).replace(place(keys, certificates.SERVER))


def _reload(state: Path, say: Say) -> None:
    """Let the running NATS server read its certificate again; the gateways do so by themselves."""
    run = runfile.running(state)
    ticket = run.children.get(plan.SERVER) if run is not None else None
    if ticket is None or not is_living(ticket):
        say("the cluster does not run: it uses the new certificate at its next start")
        return
    os.kill(ticket.pid, signal.SIGHUP)
