"""The subject and the one writer of every fact, and the core NATS subjects beside the log.

Pure. The permissions of every process (`libs/embedded`) and docs/subjects.md are generated from
these tables, and tests/test_tidy.py compares each service's card with them. Folds ignore a fact
that its subject's writer may not record.
"""

from typing import Final

from libs.common import facts as f
from libs.common.facts import Fact

STREAM: Final = "FACTS"
PREFIX: Final = "facts"
ALL_FACTS: Final = "facts.>"
QUOTA: Final = "facts.quota"
SCHEDULER: Final = "facts.scheduler"

GATEWAY_KIND: Final = "gateway"
QUOTA_KIND: Final = "quota"
SCHEDULER_KIND: Final = "scheduler"
NODE_KIND: Final = "node"


def gateway(instance: str) -> str:
    return f"facts.gateway.{instance}"


def node(node_id: str) -> str:
    return f"facts.node.{node_id}"


def writer_kind(subject: str) -> str:
    """Return the service that owns a subject: facts.node.a -> node; empty without a dot."""
    return subject.partition(".")[2].partition(".")[0]


def node_of(subject: str) -> str:
    """Return the node or instance at the subject's end; empty for services with one instance."""
    parts = subject.split(".", 2)
    return parts[2] if len(parts) == 3 else ""


def _table() -> dict[type[Fact], str]:
    owners = {
        GATEWAY_KIND: f.GatewayFact,
        QUOTA_KIND: f.QuotaFact,
        SCHEDULER_KIND: f.SchedulerFact,
        NODE_KIND: f.NodeFact,
    }
    return {fact: owner for owner, union in owners.items() for fact in union.__args__}


WRITER_OF: Final[dict[type[Fact], str]] = _table()
# The same by the kind on the wire, for readers that decode no fact.
WRITER_OF_KIND: Final = {kind: WRITER_OF[fact] for kind, fact in f.KINDS.items()}


def may_record(writer: str, writer_id: str, fact: Fact) -> bool:
    """Return whether a writer may record this kind of fact, and a node a fact with this node id."""
    if WRITER_OF.get(type(fact)) != writer:
        return False
    return writer != NODE_KIND or getattr(fact, "node_id", "") == writer_id


def is_foreign(subject: str, kind: str, node_id: str | None) -> bool:
    """Return whether the writer of a subject may not record a fact of this kind.

    The same rule as `may_record`, for facts that are not decoded. A kind of a later version is not
    foreign, because this version does not know its writer.
    """
    owner, writer = WRITER_OF_KIND.get(kind), writer_kind(subject)
    if owner is None:
        return False
    return owner != writer or (writer == NODE_KIND and node_id != node_of(subject))


# Core NATS: requests are answered, none of these is stored.
HEARTBEAT: Final = (
    "heartbeat"  # heartbeat.<node>: agent -> scheduler, answered by a lease and a digest
)
DESIRED: Final = "desired"  # desired.<node>: agent -> scheduler, answered by the full desired state
ROSTER: Final = "roster"  # roster.<node>: agent -> scheduler, answered by every registered node
# outstanding.<instance>: gateway -> scheduler: requests under way at replicas that are to end
OUTSTANDING: Final = "outstanding"
# turns.<instance>: gateway -> gateways: what it charged tenants for models, and who waits
TURNS: Final = "turns"
ORDERS: Final = "orders"  # orders.<node>: scheduler -> agent
# ask.node.<node>.<verb>: gateway -> agent: output, stdin, channel, files, prune, topology,
# memory, link, copy, readings, diagnosis; operator -> agent: authority
NODE_ASK: Final = "ask.node"
# ask.scheduler.<verb>: gateway -> scheduler: why, upcoming, hashes; trimmer -> scheduler: position;
# scheduler -> scheduler: alive
SCHEDULER_ASK: Final = "ask.scheduler"
# ask.quota.<verb>: trimmer -> quota: position; gateway -> quota: reserve, return;
# quota -> quota: alive
QUOTA_ASK: Final = "ask.quota"
# ask.audit.<verb>: gateway, scheduler -> audit: archived commits, events, the signed head;
# audit -> audit: alive
AUDIT_ASK: Final = "ask.audit"
SECRETS_ASK: Final = (
    "ask.secrets"  # ask.secrets.<node>: agent -> gateway: what a job that is about to start names
)
# ask.uploads.<node>: agent -> gateway: a piece of what a job that is about to start brings along
UPLOADS_ASK: Final = "ask.uploads"
# ask.weights.<node>: agent -> gateway: a node that has kept weights which this one cannot read
WEIGHTS_ASK: Final = "ask.weights"
# ask.diagnosis.<node>: agent -> gateway: a job with several ranks shows no progress
DIAGNOSIS_ASK: Final = "ask.diagnosis"
# members.<service>.<instance>: each process -> gateways: whether it leads, and what it has read
MEMBERS: Final = "members"
# take_over.<service>: a leader that stops -> its followers, with the number of its term. It is not
# under ask.<service>, because gateways and operators may ask there.
TAKE_OVER: Final = "take_over"
# ask.server.<server>.<verb>: gateway -> the process beside a nats-server: status, restart, replace,
# replicas; such a process asks the others for their status
SERVER_ASK: Final = "ask.server"
# a server's keeper -> gateways: which nodes of other machines may connect, by which keys
ADMITTED: Final = "ask.gateway.admitted"
OUTPUT_BUCKET: Final = "OUTPUT"  # last bytes of each ended job, off its node
LEADER_BUCKET: Final = "LEADER"
SECRET_BUCKET: Final = "SECRETS"  # tenants' secrets, sealed
NOTIFY_BUCKET: Final = "NOTIFY"  # positions of notifications, and who sends them
SNAPSHOT_BUCKET: Final = "SNAPSHOTS"
SESSION_BUCKET: Final = "SESSIONS"  # one-time links and sign-ons that were used
UPLOAD_BUCKET: Final = "UPLOADS"  # directories that jobs bring along, as archives

# Streams beside the log, both audit's; copies of what it keeps.
AUDIT_STREAM: Final = "AUDIT"
AUDIT_EVENTS: Final = "audit.events"
HEADS_STREAM: Final = "AUDIT_HEADS"
AUDIT_HEADS: Final = "audit.heads"


def heartbeat(node_id: str) -> str:
    return f"{HEARTBEAT}.{node_id}"


def desired(node_id: str) -> str:
    return f"{DESIRED}.{node_id}"


def roster(node_id: str) -> str:
    return f"{ROSTER}.{node_id}"


def outstanding(instance: str) -> str:
    return f"{OUTSTANDING}.{instance}"


def turns(instance: str) -> str:
    return f"{TURNS}.{instance}"


def orders(node_id: str) -> str:
    return f"{ORDERS}.{node_id}"


def ask_node(node_id: str, verb: str) -> str:
    return f"{NODE_ASK}.{node_id}.{verb}"


def output(node_id: str) -> str:
    """Return the subjects of a node's keys in the bucket of output.

    A key is node, job, attempt, rank and stream (`transport/kv.py`).
    """
    return f"$KV.{OUTPUT_BUCKET}.{node_id}.*.*.*.*"


def ask_secrets(node_id: str) -> str:
    return f"{SECRETS_ASK}.{node_id}"


def ask_uploads(node_id: str) -> str:
    return f"{UPLOADS_ASK}.{node_id}"


def ask_weights(node_id: str) -> str:
    return f"{WEIGHTS_ASK}.{node_id}"


def ask_diagnosis(node_id: str) -> str:
    return f"{DIAGNOSIS_ASK}.{node_id}"


def ask_server(server: str, verb: str) -> str:
    return f"{SERVER_ASK}.{server}.{verb}"


def ask_scheduler(verb: str) -> str:
    return f"{SCHEDULER_ASK}.{verb}"


def ask_quota(verb: str) -> str:
    return f"{QUOTA_ASK}.{verb}"


def ask_audit(verb: str) -> str:
    return f"{AUDIT_ASK}.{verb}"


def ask_alive(service: str) -> str:
    """Return the subject on which the leader of a service answers its followers."""
    return f"ask.{service}.alive"


def ask_leader(service: str, epoch: int) -> str:
    """Return the subject by which a leader asks itself, from its second connection to its first.

    It is an inbox of the service's own key, so no other process hears it.
    """
    return f"_INBOX_{service}.leader.{epoch}"


def take_over(service: str) -> str:
    """Return the subject on which a leader that stops asks its followers to take over."""
    return f"{TAKE_OVER}.{service}"


def member(service: str, instance: str) -> str:
    return f"{MEMBERS}.{service}.{instance}"


def rates(number: str) -> str:
    """Return the subject of a page of quota's rates in the bucket of leaders."""
    return f"$KV.{LEADER_BUCKET}.rates.{number}"


def leader(service: str) -> str:
    """Return the subject of a service's term in the bucket of leaders."""
    return f"$KV.{LEADER_BUCKET}.{service}"
