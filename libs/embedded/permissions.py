"""The subjects that each process may publish and subscribe to, and the accounts of the server.

Pure; built from `libs/common/subjects.py`.

Each writer may publish its own facts subject and no other. A permission list alone does not ensure
that: the server sends an answer to any subject that the request names, so a process could have an
acknowledgement or a stored message written to another writer's facts. Each node therefore has an
account of its own, in which only its imports exist. No user has `allow_responses`: a process that
answers may publish to the inboxes of the processes that may ask it, and to no other subject. No
client may delete FACTS, only the trimmer may purge it, and only the process beside a server may
change it, to give it more replicas. A gateway may order a server to empty its store; the process
beside the server obeys only while all other servers hold what it holds (`server_answers.py`). A
node may write only the keys of its own output. Test on a
real server: tests/integration/test_embedded_permissions.py.
"""

from collections.abc import Sequence
from typing import Final

from libs.common import subjects as s
from libs.embedded.allowed import Allowed as Allowed
from libs.embedded.allowed import Crossing as Crossing
from libs.embedded.allowed import Fleet as Fleet

CORE_ACCOUNT: Final = "CORE"
OPERATOR: Final = "operator"
# The keeper of a NATS server. It may only ask which nodes of other machines the server accepts,
# tell gateways and other keepers about it, and change how many replicas the streams have.
KEEPER: Final = "keeper"
AUDIT: Final = "audit"
# `muster audit verify`: a second connection with audit's key.
AUDIT_VERIFY: Final = "audit-verify"
# A second connection of audit's process, which may only trim the log.
TRIMMER: Final = "trimmer"
# `muster backup`: it reads the log, the buckets and the archive, and writes nothing.
BACKUP: Final = "backup"
API: Final = "$JS.API"
# The server replaces the inbox of a request that crosses accounts by such a subject.
CROSSED_INBOX: Final = "_R_.>"
OUTPUT_STREAM: Final = f"KV_{s.OUTPUT_BUCKET}"
SECRET_STREAM: Final = f"KV_{s.SECRET_BUCKET}"
LEADER_STREAM: Final = f"KV_{s.LEADER_BUCKET}"
SNAPSHOT_STREAM: Final = f"OBJ_{s.SNAPSHOT_BUCKET}"
SESSION_STREAM: Final = f"KV_{s.SESSION_BUCKET}"
NOTIFY_STREAM: Final = f"KV_{s.NOTIFY_BUCKET}"
UPLOAD_STREAM: Final = f"OBJ_{s.UPLOAD_BUCKET}"
# Only audit creates and writes these.
AUDIT_STREAMS: Final = (s.AUDIT_STREAM, s.HEADS_STREAM)
BUCKET_STREAMS: Final = (OUTPUT_STREAM, SECRET_STREAM, LEADER_STREAM)
STREAMS: Final = (s.STREAM, *BUCKET_STREAMS, SNAPSHOT_STREAM)


def gateway_name(instance: str) -> str:
    return f"gateway-{instance}"


def node_name(node_id: str) -> str:
    return f"node-{node_id}"


def names(fleet: Fleet) -> tuple[str, ...]:
    """Return the names of all processes with nkeys: of connections, inboxes and seed files."""
    return (
        s.SCHEDULER_KIND,
        s.QUOTA_KIND,
        AUDIT,
        TRIMMER,
        OPERATOR,
        KEEPER,
        BACKUP,
        *map(gateway_name, fleet.gateways),
        *map(node_name, fleet.nodes),
    )


def core(fleet: Fleet) -> dict[str, Allowed]:
    """Return the lists of each process in CORE; nodes are among them unless they are isolated."""
    found = {
        s.SCHEDULER_KIND: _scheduler(fleet),
        s.QUOTA_KIND: _quota(fleet),
        AUDIT: _audit(fleet),
        TRIMMER: _trimmer(),
        OPERATOR: Allowed(
            (*_read_facts(), *_read_audit(), *_ask()), (*_inbox(OPERATOR), _members())
        ),
        KEEPER: _keeper(fleet),
        BACKUP: _backup(),
    }
    found |= {gateway_name(instance): _gateway(instance, fleet) for instance in fleet.gateways}
    if not fleet.isolated:
        found |= {node_name(node_id): node(node_id, fleet) for node_id in fleet.nodes}
    return found


def node(node_id: str, fleet: Fleet) -> Allowed:
    """Return the lists of an agent.

    It publishes its facts, heartbeats, requests and output. It receives its orders and requests.
    """
    crossing = node_crossing(node_id)
    leader_get = () if fleet.isolated else (f"{API}.STREAM.MSG.GET.{s.STREAM}",)
    answers = (
        (CROSSED_INBOX,)
        if fleet.isolated
        else tuple(f"{_prefix(name)}.>" for name in _askers(fleet))
    )
    return Allowed(
        (*crossing.asks, *leader_get, *answers),
        (*_inbox(node_name(node_id)), *crossing.told, *crossing.answers),
    )


def node_crossing(node_id: str) -> Crossing:
    """Return all subjects that exist in a node's account."""
    own = s.node(node_id)
    asks = (
        own,
        f"{API}.DIRECT.GET.{s.STREAM}.{own}",
        s.heartbeat(node_id),
        s.desired(node_id),
        s.ask_secrets(node_id),
        s.ask_uploads(node_id),
        s.ask_weights(node_id),
        s.ask_diagnosis(node_id),
        s.roster(node_id),
        s.output(node_id),
    )
    return Crossing(asks, (s.orders(node_id),), (s.ask_node(node_id, ">"),))


def core_exports() -> Crossing:
    """Return the subjects that CORE offers to nodes. A node's account imports its own part."""
    return node_crossing("*")


def _scheduler(fleet: Fleet) -> Allowed:
    """Return the scheduler's lists.

    It creates the streams and never deletes one. It may change only buckets, where no writer may
    remove another's keys. It also asks whether another scheduler is alive.
    """
    creates = tuple(
        f"{API}.STREAM.{verb}.{stream}" for stream in STREAMS for verb in ("CREATE", "INFO")
    )
    updates = tuple(f"{API}.STREAM.UPDATE.{stream}" for stream in BUCKET_STREAMS)
    leads = (f"$KV.{s.LEADER_BUCKET}.>", *_read_stream(LEADER_STREAM))
    requesters = (
        s.SCHEDULER_KIND,
        TRIMMER,
        *_askers(fleet),
        *(() if fleet.isolated else map(node_name, fleet.nodes)),
    )
    answers = (CROSSED_INBOX, *(f"{_prefix(name)}.>" for name in requesters))
    publish = (
        s.SCHEDULER,
        s.orders("*"),
        *_leads(s.SCHEDULER_KIND),
        s.ask_audit("commits"),
        *_read_facts(),
        *_read_snapshots(),
        *creates,
        *updates,
        *leads,
        *answers,
    )
    hears = (
        s.heartbeat("*"),
        s.desired("*"),
        s.roster("*"),
        s.outstanding("*"),
        s.ask_scheduler(">"),
        s.take_over(s.SCHEDULER_KIND),
    )
    return Allowed(_without_repeats(publish), (*_inbox(s.SCHEDULER_KIND), *hears))


def _quota(fleet: Fleet) -> Allowed:
    """Return quota's lists. Gateways ask it for a share of a tenant's limit per minute."""
    askers = (s.QUOTA_KIND, TRIMMER, *map(gateway_name, fleet.gateways))
    publish = (
        s.QUOTA,
        *_leads(s.QUOTA_KIND),
        s.rates("*"),
        *_read_stream(LEADER_STREAM),
        *_read_facts(),
        *_read_snapshots(),
        *(f"{_prefix(name)}.>" for name in askers),
    )
    return Allowed(publish, (*_inbox(s.QUOTA_KIND), s.ask_quota(">"), s.take_over(s.QUOTA_KIND)))


def _audit(fleet: Fleet) -> Allowed:
    """Return audit's lists. It publishes only what it archived: as answers, and in its streams."""
    askers = (AUDIT, s.SCHEDULER_KIND, BACKUP, *_askers(fleet))
    own = tuple(
        f"{API}.STREAM.{verb}.{stream}"
        for stream in AUDIT_STREAMS
        for verb in ("CREATE", "INFO", "MSG.GET")
    )
    says = (s.AUDIT_EVENTS, s.AUDIT_HEADS, *own, *(f"{_prefix(name)}.>" for name in askers))
    return Allowed(
        (
            *_leads(AUDIT),
            s.leader(AUDIT),
            *_read_stream(LEADER_STREAM),
            *_read_facts(),
            *_read_snapshots(),
            *says,
        ),
        (*_inbox(AUDIT), *_inbox(AUDIT_VERIFY), s.ask_audit(">"), s.take_over(AUDIT)),
    )


def _keeper(fleet: Fleet) -> Allowed:
    """Return the lists of the process beside a NATS server. All servers have the same key.

    It may change streams, because it changes the number of their replicas. It has no more power by
    that than by the server's files and the password between servers, which it has anyway. It asks
    the other servers for their state, and orders nothing.
    """
    askers = (KEEPER, *map(gateway_name, fleet.gateways))
    answers = (s.ask_server("*", "status"), *(f"{_prefix(name)}.>" for name in askers))
    streams = tuple(f"{API}.STREAM.{verb}" for verb in ("NAMES", "INFO.*", "UPDATE.*"))
    return Allowed((s.ADMITTED, *streams, *answers), (*_inbox(KEEPER), s.ask_server("*", "*")))


def _trimmer() -> Allowed:
    """Return the trimmer's lists.

    It stores a snapshot, asks the services how far they have read, and purges the log.
    """
    asks = (s.ask_scheduler("position"), s.ask_quota("position"))
    publish = (
        f"{API}.STREAM.PURGE.{s.STREAM}",
        *_read_facts(),
        *_read_snapshots(),
        *_save_snapshots(),
        *asks,
    )
    return Allowed(_without_repeats(publish), _inbox(TRIMMER))


def _backup() -> Allowed:
    """Return the lists of a backup: it reads whole streams from their leaders.

    The secrets that it reads are sealed.
    """
    streams = (OUTPUT_STREAM, SECRET_STREAM, SESSION_STREAM, UPLOAD_STREAM, s.HEADS_STREAM)
    reads = tuple(
        f"{API}.STREAM.{verb}.{stream}" for stream in streams for verb in ("INFO", "MSG.GET")
    )
    return Allowed((*_read_facts(), *reads, s.ask_audit("commits")), _inbox(BACKUP))


def _gateway(instance: str, fleet: Fleet) -> Allowed:
    """Return the lists of a gateway.

    It writes its own facts, tenants' secrets, uploads and snapshots, reads the last output of jobs,
    and asks the other services. It creates the buckets of uploads, snapshots, sessions and
    notifications. It receives the nodes' commits to count their bytes.
    """
    reads = (*_read_facts(), *_read_snapshots(), *_read_stream(OUTPUT_STREAM))
    asks = (*_ask(), s.ask_quota("reserve"), s.ask_quota("return"), s.ask_server("*", "*"))
    secrets = (f"$KV.{s.SECRET_BUCKET}.>", *_read_stream(SECRET_STREAM))
    sessions = (f"$KV.{s.SESSION_BUCKET}.>", f"{API}.STREAM.CREATE.{SESSION_STREAM}")
    notify = (
        f"$KV.{s.NOTIFY_BUCKET}.>",
        f"{API}.STREAM.CREATE.{NOTIFY_STREAM}",
        *_read_stream(NOTIFY_STREAM),
    )
    nodes = (
        () if fleet.isolated else (f"{_prefix(node_name(node_id))}.>" for node_id in fleet.nodes)
    )
    answers = (CROSSED_INBOX, f"{_prefix(KEEPER)}.>", *nodes)
    publish = (
        s.gateway(instance),
        s.outstanding(instance),
        s.turns(instance),
        s.member(s.GATEWAY_KIND, instance),
        *asks,
        *reads,
        *secrets,
        *sessions,
        *notify,
        *_save_snapshots(),
        *_keep_uploads(),
        *answers,
    )
    return Allowed(
        _without_repeats(publish),
        (
            *_inbox(gateway_name(instance)),
            s.ask_secrets("*"),
            s.ask_uploads("*"),
            s.ask_weights("*"),
            s.ask_diagnosis("*"),
            s.turns("*"),
            s.ADMITTED,
            s.node("*"),
            _members(),
        ),
    )


def _leads(service: str) -> tuple[str, ...]:
    """Return what a process needs that may lead its service: it asks its leader, hands over to its
    followers, and reports to the gateways.
    """
    return (s.ask_alive(service), s.take_over(service), s.member(service, "*"))


def _members() -> str:
    """Return what hears of all processes of all services."""
    return s.member("*", "*")


def _askers(fleet: Fleet) -> tuple[str, ...]:
    """Return the processes, other than nodes, that may ask the scheduler and the nodes."""
    return (OPERATOR, *map(gateway_name, fleet.gateways))


def _ask() -> tuple[str, ...]:
    return (s.ask_scheduler(">"), s.ask_audit(">"), s.ask_node("*", ">"))


def _read_facts() -> tuple[str, ...]:
    """Return what `log_jetstream` needs: bounds, single messages, and a push consumer."""
    return (
        f"{API}.STREAM.MSG.GET.{s.STREAM}",
        f"{API}.DIRECT.GET.{s.STREAM}.>",
        *_consume(s.STREAM),
    )


def _read_audit() -> tuple[str, ...]:
    """Return what reads single messages of both audit streams, and consumes them."""
    return tuple(
        each for stream in AUDIT_STREAMS for each in (*_consume(stream), *_read_stream(stream))
    )


def _read_snapshots() -> tuple[str, ...]:
    """Return what reads snapshots. The client finds the stream's name, then uses a consumer."""
    verbs = (f"{API}.STREAM.NAMES", f"{API}.CONSUMER.DELETE.{SNAPSHOT_STREAM}.>")
    return (*_read_stream(SNAPSHOT_STREAM), *_consume(SNAPSHOT_STREAM), *verbs)


def _save_snapshots() -> tuple[str, ...]:
    return _write_objects(s.SNAPSHOT_BUCKET)


def _keep_uploads() -> tuple[str, ...]:
    """Return what reads and writes uploads.

    A direct get finds each piece of an object by the piece before it. A node has none of these
    rights: it asks a gateway.
    """
    reads = (*_read_stream(UPLOAD_STREAM), f"{API}.DIRECT.GET.{UPLOAD_STREAM}")
    return (*_write_objects(s.UPLOAD_BUCKET), *reads)


def _write_objects(bucket: str) -> tuple[str, ...]:
    return (
        f"$O.{bucket}.>",
        *(f"{API}.STREAM.{verb}.OBJ_{bucket}" for verb in ("CREATE", "PURGE")),
    )


def _consume(stream: str) -> tuple[str, ...]:
    create = f"{API}.CONSUMER.CREATE.{stream}"
    return (f"{API}.STREAM.INFO.{stream}", create, f"{create}.>", f"$JS.FC.{stream}.>")


def _read_stream(stream: str) -> tuple[str, ...]:
    """Return what reads single messages of a bucket, from the leader and by direct get."""
    return (
        f"{API}.STREAM.INFO.{stream}",
        f"{API}.STREAM.MSG.GET.{stream}",
        f"{API}.DIRECT.GET.{stream}.>",
    )


def _inbox(name: str) -> tuple[str, ...]:
    return (f"{_prefix(name)}.>",)


def _prefix(name: str) -> str:
    """Return the inbox prefix that `connection_nats.connect` uses.

    No wildcard matches a part of it, because `*` stands for a whole token.
    """
    return f"_INBOX_{name}"


def _without_repeats(subjects: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(subjects))
