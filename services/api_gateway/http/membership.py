"""/v1/nodes (invite, remove) and /join: machines join the cluster and leave it.

/join needs no key: the invitation's secret authorises it. It goes over TLS to a gateway whose
certificate authority is pinned by the token.
"""

import hashlib
import secrets
import ssl
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from libs.common.facts import NodeRemovalRequested
from libs.common.messages.admission import Invitation
from libs.common.settings.settings import Settings
from services.api_gateway.access import roles
from services.api_gateway.gateway import Gateway
from services.api_gateway.http.answer_types import Invited, Joined, Leaving
from services.api_gateway.http.answers import PEM
from services.api_gateway.http.queries import (
    Query,
    answer,
    body_of,
    documented,
    gateway_of,
    gateway_without_query,
    on_record,
    principal_of,
    read,
    signed_body_of,
)
from services.api_gateway.http.routing import APIRouter
from services.api_gateway.intents import membership_intents as intents
from services.api_gateway.problems import Problem

SECRET_BYTES: Final = 24
ADMIT_S: Final = 10.0

router = APIRouter(tags=["nodes"])


class RemoveQuery(Query, frozen=True):
    wait: bool = False
    user: str = ""


@router.post("/v1/nodes", status_code=201, openapi_extra=documented(Query, intents.INVITE_FIELDS))
async def invite(request: Request) -> Response:
    """Invite a machine: create a token with which one machine may join once.

    The token is shown only in this answer.
    """
    gateway = gateway_without_query(request)
    authority, secret = _authority(gateway), secrets.token_urlsafe(SECRET_BYTES)
    fact = intents.invitation(
        await signed_body_of(request), gateway.cluster, secret, gateway.clock.wall_ns()
    )
    await on_record(request, fact, 201)
    if gateway.cluster.memberships[fact.node_id].secret_hash != fact.secret_hash:
        raise Problem(
            409, f"node {fact.node_id} was invited by another request at the same time: try again"
        )
    token = Invitation(fact.node_id, _fingerprint(authority), secret).token
    return answer(
        Invited(fact.node_id, _url(gateway.settings), token, fact.expires_ns),
        201,
        {"cache-control": "no-store"},
    )


@router.delete("/v1/nodes/{node_id}", status_code=202, openapi_extra=documented(RemoveQuery))
async def remove(request: Request, node_id: str) -> Response:
    """Remove a node.

    The node gets no more jobs. Its jobs are stopped, or with `wait` end by themselves, and replicas
    of models move when another node has room; then the node is removed. If the machine has not
    joined yet, its invitation is withdrawn, and the name may be used again.
    """
    query, gateway = read(request, RemoveQuery), gateway_of(request)
    user = roles.acting_user(principal_of(request), query.user)
    fact = intents.removal(gateway.cluster, node_id, query.wait, user)
    await gateway.record(fact)
    if isinstance(fact, NodeRemovalRequested):
        return answer(Leaving(node_id, "leaving"), 202)
    if gateway.cluster.memberships[fact.node_id].public_key:
        raise Problem(409, f"node {node_id} joined at this moment: remove it again")
    return answer(Leaving(node_id, "withdrawn"), 202)


@router.get("/join/ca")
async def authority(request: Request) -> Response:
    """Return the certificate authority of the cluster. The token contains its fingerprint, which
    alone proves it.
    """
    return Response(_authority(gateway_of(request)), media_type=PEM)


@router.post("/join", openapi_extra=documented(None, intents.JOIN_FIELDS))
async def join(request: Request) -> Response:
    """Join the cluster with an invitation and the machine's own public key.

    The answer comes when the NATS servers accept the key.
    """
    gateway = gateway_of(request)
    if not gateway.caught_up:
        raise Problem(503, "the gateway is still reading the log: try again in a moment")
    fact = intents.joining(await body_of(request), gateway.cluster, gateway.clock.wall_ns())
    if gateway.cluster.memberships[fact.node_id].public_key != fact.public_key:
        await gateway.record(fact)
    if gateway.cluster.memberships[fact.node_id].public_key != fact.public_key:
        raise Problem(403, intents.INVITATION_NOT_VALID)
    if not await gateway.admission.agreed(gateway.cluster.seq, ADMIT_S):
        raise Problem(
            503,
            (
                "the NATS servers do not accept the key yet: try again in a moment: the token "
                "stays valid for this machine"
            ),
        )
    if why := gateway.admission.refusal(fact.node_id):
        raise Problem(
            409,
            (
                f"the NATS servers do not accept node {fact.node_id}: {why}: remove the node, "
                "and join with a new key and token"
            ),
        )
    return answer(
        Joined(
            fact.node_id,
            gateway.cluster.cluster_id,
            gateway.settings.join_nats or gateway.settings.nats,
        )
    )


def _url(settings: Settings) -> str:
    return settings.join_url or f"https://{settings.gateway_tls_host}:{settings.gateway_tls_port}"


def _authority(gateway: Gateway) -> str:
    path = gateway.settings.tls_ca_file
    if not gateway.settings.gateway_tls_host or not path:
        raise Problem(
            409,
            "this cluster does not listen to other machines: start it with `muster up --listen "
            "ADDRESS`",
        )
    return Path(path).read_text()


def _fingerprint(pem: str) -> str:
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).hexdigest()
