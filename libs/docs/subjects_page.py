"""docs/subjects.md: all facts with their subjects, writers and fields, and all messages."""

from typing import Final

import msgspec

from libs.common import subjects as s
from libs.common.facts import KINDS, Fact
from libs.docs.markdown import code, page, prose, table

SUBJECT_OF: Final = {
    s.GATEWAY_KIND: s.gateway("INSTANCE"),
    s.QUOTA_KIND: s.QUOTA,
    s.SCHEDULER_KIND: s.SCHEDULER,
    s.NODE_KIND: s.node("NODE"),
}
# By the name of the constant in subjects.py: subject, sender and receiver, content.
# tests/test_docs.py checks that none is missing.
BESIDE: Final = {
    "HEARTBEAT": (
        s.heartbeat("NODE"),
        "agent -> scheduler",
        "Heartbeat. The answer is a lease and a digest of the orders.",
    ),
    "DESIRED": (
        s.desired("NODE"),
        "agent -> scheduler",
        "Request for all orders of the node.",
    ),
    "ADMITTED": (
        s.ADMITTED,
        "a NATS server's keeper -> gateways",
        "Request for the keys of the nodes that may connect from other machines.",
    ),
    "ROSTER": (
        s.roster("NODE"),
        "agent -> scheduler",
        "Request for all registered nodes. Agents need them for peer extension.",
    ),
    "OUTSTANDING": (
        s.outstanding("INSTANCE"),
        "gateway -> scheduler",
        "Number of open requests at replicas that drain.",
    ),
    "TURNS": (
        s.turns("INSTANCE"),
        "gateway -> gateways",
        "Tokens charged to tenants for a model, and which of them wait.",
    ),
    "ORDERS": (
        s.orders("NODE"),
        "scheduler -> agent",
        "The node's part of an acknowledged commit.",
    ),
    "NODE_ASK": (
        s.ask_node("NODE", "VERB"),
        "gateway -> agent",
        "A job's output, input and files; which replicas answered requests recently.",
    ),
    "SERVER_ASK": (
        s.ask_server("SERVER", "VERB"),
        "gateway -> a NATS server's companion",
        "The server's state, and orders to restart it or to empty its store.",
    ),
    "SCHEDULER_ASK": (
        s.ask_scheduler("VERB"),
        "gateway -> scheduler",
        (
            "Why a job waits, whether a job would start, the scheduler's state, and the last "
            "heartbeat of each node. Between schedulers: signs of life, and the hand-over."
        ),
    ),
    "QUOTA_ASK": (
        s.ask_quota("VERB"),
        "gateway, trimmer -> quota",
        (
            "A share of a tenant's limit per minute, the return of what is left of it, and how far "
            "quota has read the log."
        ),
    ),
    "AUDIT_ASK": (
        s.ask_audit("VERB"),
        "gateway, scheduler -> audit",
        "Commits that the log no longer holds, events of the archive, and the newest signed head.",
    ),
    "SECRETS_ASK": (
        s.ask_secrets("NODE"),
        "agent -> gateway",
        "The secrets of a job that is about to start, encrypted for the agent.",
    ),
    "UPLOADS_ASK": (
        s.ask_uploads("NODE"),
        "agent -> gateway",
        "The pieces of the directory that a job brings (`--upload`), before it starts.",
    ),
    "WEIGHTS_ASK": (
        s.ask_weights("NODE"),
        "agent -> gateway",
        "A node that has kept weights which this node cannot read, with a token for a link to it.",
    ),
    "DIAGNOSIS_ASK": (
        s.ask_diagnosis("NODE"),
        "agent -> gateway",
        "A job with several ranks shows no progress: the gateway examines all of its nodes.",
    ),
    "TAKE_OVER": (
        s.take_over("SERVICE"),
        "scheduler, quota -> the same service",
        "A leader that stops asks the followers of its term to take over.",
    ),
    "MEMBERS": (
        s.member("SERVICE", "INSTANCE"),
        "scheduler, quota, audit, gateway -> gateways",
        "Whether a process leads its service, and how far it has read the log.",
    ),
}
BUCKETS: Final = {
    "OUTPUT_BUCKET": (
        s.OUTPUT_BUCKET,
        (
            "The last bytes of each ended job's output. A node may only write keys that begin with "
            "its own name."
        ),
    ),
    "SECRET_BUCKET": (
        s.SECRET_BUCKET,
        "Tenants' secrets, encrypted with a key that only the gateways have.",
    ),
    "LEADER_BUCKET": (
        s.LEADER_BUCKET,
        "Renewals of the leader: quorum writes which prove that it reaches the log.",
    ),
    "UPLOAD_BUCKET": (
        s.UPLOAD_BUCKET,
        "Archives of the directories that jobs bring (`--upload`), by tenant and SHA-256.",
    ),
    "SESSION_BUCKET": (
        s.SESSION_BUCKET,
        "One-time links and sign-ons that were used, kept until they have expired.",
    ),
    "NOTIFY_BUCKET": (
        s.NOTIFY_BUCKET,
        "How far the messages of each destination were sent, and which gateway sends them.",
    ),
    "SNAPSHOT_BUCKET": (
        s.SNAPSHOT_BUCKET,
        (
            "Signed snapshots of the state. `cluster` saves a gateway the replay of the log; "
            "`base`, written by the trimmer, replaces the commits that were trimmed."
        ),
    ),
}
# By the name of the constant in subjects.py: stream, subject, content.
STREAMS: Final = {
    "AUDIT_STREAM": (
        s.AUDIT_STREAM,
        s.AUDIT_EVENTS,
        "All events of the archive as CloudEvents 1.0, in order. The oldest go first.",
    ),
    "HEADS_STREAM": (s.HEADS_STREAM, s.AUDIT_HEADS, "Signed heads of the audit chain."),
}
STREAM_SUBJECTS: Final = ("AUDIT_EVENTS", "AUDIT_HEADS")


def subjects() -> str:
    return page(
        "Facts and subjects",
        f"The log is the JetStream stream `{s.STREAM}` with the subjects `{s.ALL_FACTS}`. One "
        "message is one commit: the facts that one writer appended together. Each subject has one "
        "live writer. Each append names the last sequence of its subject that the writer expects, "
        "so the log refuses the commits of a deposed writer. Every fold ignores facts that their "
        "writer may not record.",
        table(("fact", "kind", "subject", "writer"), [_row(fact) for fact in s.WRITER_OF]),
        *(block for writer in SUBJECT_OF for block in _facts_of(writer)),
        "## Beside the log",
        (
            "These messages travel on core NATS. They are not stored and may be lost. If an order "
            "is lost, the digest in the next heartbeat's answer shows it, and the agent asks for "
            "its orders."
        ),
        table(
            ("subject", "from -> to", "content"),
            [(code(subject), *texts) for subject, *texts in BESIDE.values()],
        ),
        "## Streams beside the log",
        (
            "Only audit writes them, after its database: they are copies of the archive ([how to "
            "read them](howto/audit.md))."
        ),
        table(
            ("stream", "subject", "content"),
            [(code(stream), code(subject), text) for stream, subject, text in STREAMS.values()],
        ),
        "## Buckets",
        table(("bucket", "content"), [(code(bucket), text) for bucket, text in BUCKETS.values()]),
    )


def _row(fact: type[Fact]) -> tuple[str, str, str, str]:
    writer = s.WRITER_OF[fact]
    return (
        f"[{fact.__name__}](#{fact.__name__.lower()})",
        code(_kind(fact)),
        code(SUBJECT_OF[writer]),
        writer,
    )


def _facts_of(writer: str) -> list[str]:
    blocks = [f"## Written by {writer}"]
    for fact in (fact for fact, owner in s.WRITER_OF.items() if owner == writer):
        blocks += [
            f"### {fact.__name__}",
            prose(fact.__doc__),
            table(("field", "type", "default"), _fields(fact)),
        ]
    return blocks


def _fields(fact: type[Fact]) -> list[tuple[str, str, str]]:
    return [
        (code(field.name), code(type_text(field.type)), _default(field))
        for field in msgspec.structs.fields(fact)
    ]


def type_text(kind: object) -> str:
    """Return the type as in source code: `JobId`, `tuple[Member, ...]`, `int | None`."""
    arguments = getattr(kind, "__args__", ())
    if kind is Ellipsis:
        return "..."
    if arguments and not hasattr(kind, "__origin__"):
        return " | ".join(type_text(each) for each in arguments)
    name = str(getattr(kind, "__name__", kind))
    if name == "NoneType":
        return "None"
    return f"{name}[{', '.join(type_text(each) for each in arguments)}]" if arguments else name


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.default is not msgspec.NODEFAULT:
        return code(
            str(msgspec.to_builtins(field.default))
            if isinstance(field.default, msgspec.Struct)
            else repr(field.default)
        )
    return "" if field.default_factory is msgspec.NODEFAULT else "empty"


def _kind(fact: type[Fact]) -> str:
    return next(kind for kind, each in KINDS.items() if each is fact)
