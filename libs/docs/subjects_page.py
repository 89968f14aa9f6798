"""docs/subjects.md: every fact with its subject, its one writer and its fields; what travels beside
the log.
"""

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
# By the name of the constant in subjects.py: subject, who says it, what for. tests/test_docs.py
# holds that none is missing.
BESIDE: Final = {
    "HEARTBEAT": (
        s.heartbeat("NODE"),
        "agent -> scheduler",
        "a sign of life, answered by a lease and a digest",
    ),
    "DESIRED": (
        s.desired("NODE"),
        "agent -> scheduler",
        "answered by all that the node should account for",
    ),
    "ADMITTED": (
        s.ADMITTED,
        "a NATS server's keeper -> gateways",
        "which nodes of other machines may connect, by which keys",
    ),
    "ROSTER": (
        s.roster("NODE"),
        "agent -> scheduler",
        "answered by every registered node, for agents that no scheduler answers",
    ),
    "OUTSTANDING": (
        s.outstanding("INSTANCE"),
        "gateway -> scheduler",
        "its requests under way at replicas that are to end",
    ),
    "ORDERS": (
        s.orders("NODE"),
        "scheduler -> agent",
        "the node's part of a commit that the log has acknowledged",
    ),
    "NODE_ASK": (
        s.ask_node("NODE", "VERB"),
        "gateway -> agent",
        "a job's output, input and files; which replicas answered requests just now",
    ),
    "SCHEDULER_ASK": (
        s.ask_scheduler("VERB"),
        "gateway -> scheduler",
        (
            "why a job waits, whether one would start; whether a scheduler lives, how far it is, "
            "when it heard each node"
        ),
    ),
    "QUOTA_ASK": (
        s.ask_quota("VERB"),
        "gateway, trimmer -> quota",
        "a part of a tenant's minute; what is not needed of it; how far it has folded",
    ),
    "AUDIT_ASK": (
        s.ask_audit("VERB"),
        "gateway, scheduler -> audit",
        (
            "commits that the log no longer holds, from the archive; its events; the newest "
            "signed head"
        ),
    ),
    "SECRETS_ASK": (
        s.ask_secrets("NODE"),
        "agent -> gateway",
        "the secrets of a job that is about to start, sealed to the asker",
    ),
    "UPLOADS_ASK": (
        s.ask_uploads("NODE"),
        "agent -> gateway",
        "the pieces of what a job that is about to start brings along",
    ),
    "ALIVE": (s.ALIVE, "scheduler -> standbys", "the leader's sign of life"),
}
BUCKETS: Final = {
    "OUTPUT_BUCKET": (
        s.OUTPUT_BUCKET,
        (
            "the last bytes of each ended job, off its node; a node writes keys that begin with "
            "its own name, and no others"
        ),
    ),
    "SECRET_BUCKET": (
        s.SECRET_BUCKET,
        "tenants' secrets, sealed under a key that only the gateways have",
    ),
    "LEADER_BUCKET": (
        s.LEADER_BUCKET,
        "the leader's renewals: quorum writes that say that it still reaches the log",
    ),
    "UPLOAD_BUCKET": (
        s.UPLOAD_BUCKET,
        "directories that jobs bring along, as archives, by tenant and SHA-256",
    ),
    "SNAPSHOT_BUCKET": (
        s.SNAPSHOT_BUCKET,
        (
            "snapshots of the state, signed: `cluster` saves its own gateway a replay, `base` "
            "(the trimmer's) stands for what was trimmed"
        ),
    ),
}
# By the name of the constant in subjects.py: stream, and of its subject what it holds.
STREAMS: Final = {
    "AUDIT_STREAM": (
        s.AUDIT_STREAM,
        s.AUDIT_EVENTS,
        "every event of the archive as CloudEvents 1.0, once and in order; the oldest go first",
    ),
    "HEADS_STREAM": (s.HEADS_STREAM, s.AUDIT_HEADS, "signed heads of the audit chain"),
}
STREAM_SUBJECTS: Final = ("AUDIT_EVENTS", "AUDIT_HEADS")


def subjects() -> str:
    return page(
        "Facts and subjects",
        f"The log is the JetStream stream `{s.STREAM}` over `{s.ALL_FACTS}`. One message is "
        "one commit: facts that one writer recorded "
        "together. Each subject has one live writer, and each append names the subject's "
        "last sequence that it expects, so that a "
        "deposed writer is refused by the log itself. A fold ignores a fact that its "
        "subject's writer may not record.",
        table(("fact", "kind", "subject", "writer"), [_row(fact) for fact in s.WRITER_OF]),
        *(block for writer in SUBJECT_OF for block in _facts_of(writer)),
        "## Beside the log",
        (
            "Core NATS: nothing of this is stored, and anything of it may be lost. A lost order "
            "repairs itself by the next heartbeat's digest."
        ),
        table(
            ("subject", "from -> to", "what it is"),
            [(code(subject), *said) for subject, *said in BESIDE.values()],
        ),
        "## Streams beside the log",
        (
            "Written by audit alone, after its database; copies of what that keeps ([how to read "
            "them](howto/audit.md))."
        ),
        table(
            ("stream", "subject", "what it holds"),
            [(code(stream), code(subject), what) for stream, subject, what in STREAMS.values()],
        ),
        "## Buckets",
        table(
            ("bucket", "what it holds"), [(code(bucket), what) for bucket, what in BUCKETS.values()]
        ),
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
    """A type as it is written: `JobId`, `tuple[Member, ...]`, `int | None`."""
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
