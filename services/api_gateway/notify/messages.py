"""Makes the messages: JSON of webhooks with their signature, Slack's form, mails.

Pure. A message holds the fact's one-line summary and the fields of SHOWN, never a command, an
environment or a whole fact; text that looks like a secret is hidden. Webhooks follow the
specification Standard Webhooks. Tests: tests/unit/test_notify_messages.py.
"""

import base64
import hashlib
import hmac
import re
from collections.abc import Callable
from email.message import EmailMessage
from typing import Any, Final

import msgspec

from libs.common import facts as f
from libs.common.facts import AnyFact, Unknown, kind_of
from libs.common.quantities import counted
from libs.common.safety.redaction import redacted
from services.api_gateway.notify.rules import About
from services.api_gateway.views import history
from services.api_gateway.views.user_words import user_named

# The fields of facts that are sent: numbers, names and words of Muster's own tables.
SHOWN: Final = (
    "attempt",
    "outcome",
    "exit_code",
    "signal",
    "counted",
    "replicas",
    "generation",
    "uuid",
    "state",
    "service",
    "epoch",
    "queue",
    "share_ms",
    "run_ms",
)
# Summaries without the command, for the kinds whose summary in the audit trail shows it.
_WITHOUT_COMMAND: Final[dict[type, Callable[[Any], str]]] = {
    f.JobSubmitted: lambda x: f"submitted by {user_named(x.user)}",
    f.ModelDeployed: lambda x: (
        f"model {x.name} deployed by {user_named(x.user)}: {counted(x.spec.replicas, 'replica')}"
    ),
}
TEXT_CHARS_MAX: Final = 1_000
SUBJECT_CHARS_MAX: Final = 150
KEY_PREFIX: Final = "whsec_"
TEST_KIND: Final = "notification.test"
# Control characters, which break lines of mails and terminals.
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """One notification. `id` is that of the fact's event in the archive and never changes."""

    id: str
    type: str
    time: str
    cluster: str
    summary: str
    tenant: str = ""
    user: str = ""
    job_id: str = ""
    job_name: str = ""
    model: str = ""
    nodes: tuple[str, ...] = ()
    data: dict[str, Any] = {}


def summary_of(fact: AnyFact | Unknown) -> str:
    """Return a one-line summary of the fact that never holds a command."""
    return _WITHOUT_COMMAND.get(type(fact), history.summary)(fact)


def notice_of(
    fact: AnyFact | Unknown, subject: About, *, id: str, time: str, cluster: str, summary: str
) -> Notice:
    """Return the notice about a fact."""
    found = {name: getattr(fact, name, None) for name in SHOWN}
    return Notice(
        id=id,
        type=kind_of(fact),
        time=time,
        cluster=cluster,
        summary=safe(summary),
        tenant=subject.tenant,
        user=safe(subject.user),
        job_id=subject.job_id,
        job_name=safe(subject.job_name),
        model=subject.model,
        nodes=subject.nodes,
        data={name: value for name, value in found.items() if isinstance(value, int | str)},
    )


def safe(text: str) -> str:
    """Return a text in one line, of bounded length, without what looks like a secret."""
    return _CONTROL.sub(" ", redacted(text[:TEXT_CHARS_MAX])).strip()


def title(notice: Notice) -> str:
    """Return the notice in one line."""
    what = notice.job_name or notice.job_id or notice.model or ", ".join(notice.nodes[:3])
    return f"{notice.type} {what}: {notice.summary}" if what else notice.summary


def webhook_body(notice: Notice) -> bytes:
    """Return the JSON that webhooks receive."""
    return msgspec.json.encode(notice)


def signature_headers(notice_id: str, at_s: int, body: bytes, key: str) -> dict[str, str]:
    """Return the headers that prove sender, time and body: HMAC-SHA256 over ID.TIME.BODY."""
    signed = f"{notice_id}.{at_s}.".encode() + body
    mac = hmac.new(key_bytes(key), signed, hashlib.sha256).digest()
    return {
        "webhook-id": notice_id,
        "webhook-timestamp": str(at_s),
        "webhook-signature": "v1," + base64.b64encode(mac).decode(),
    }


def key_bytes(key: str) -> bytes:
    """Return the bytes of a signing key."""
    return base64.b64decode(key.removeprefix(KEY_PREFIX))


def slack_body(notice: Notice) -> bytes:
    """Return the JSON that Slack and services like it accept. No text can mention a channel."""
    text = title(notice).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return msgspec.json.encode({"text": f"{text}\n{notice.cluster} {notice.id} {notice.time}"})


def mail(notice: Notice, sender: str, receiver: str) -> EmailMessage:
    """Return the mail. Its Message-ID is the same at each try."""
    message = EmailMessage()
    message["From"] = sender
    message["To"] = receiver
    message["Subject"] = f"[muster] {title(notice)}"[:SUBJECT_CHARS_MAX]
    domain = sender.rpartition("@")[2]
    cluster = re.sub(r"[^A-Za-z0-9-]", "-", notice.cluster)
    message["Message-ID"] = f"<{notice.id}.{cluster}@{domain}>"
    message["Auto-Submitted"] = "auto-generated"
    lines = [notice.summary, ""]
    rows = {
        "fact": notice.type,
        "job": f"{notice.job_name} {notice.job_id}".strip(),
        "model": notice.model,
        "nodes": ", ".join(notice.nodes),
        "tenant": notice.tenant,
        "user": notice.user,
        "time": notice.time,
        "cluster": notice.cluster,
        "id": notice.id,
    }
    lines += [f"{name + ':':<9}{value}" for name, value in rows.items() if value]
    message.set_content("\n".join(lines) + "\n")
    return message
