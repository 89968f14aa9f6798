"""What a destination receives: signed, in one line, and without secrets."""

import base64
import hashlib
import hmac
import json
from typing import Any

import msgspec

from libs.common import facts as f
from libs.common.facts import AnyFact, kind_of
from libs.common.model import JobId
from services.api_gateway.notify import messages
from services.api_gateway.notify.messages import Notice
from services.api_gateway.notify.rules import About, choosable
from tests.golden.examples import EXAMPLES

KEY = messages.KEY_PREFIX + base64.b64encode(b"k" * 32).decode()
FACT = f.JobClosed(job_id=JobId("j1"), attempt=2, outcome="failed", exit_code=3)


def notice(summary: str = "the job failed", job_name: str = "train") -> Notice:
    return messages.notice_of(
        FACT,
        About(tenant="red", user="ada", job_id="j1", job_name=job_name),
        id="12-0",
        time="2026-11-27T08:00:00.000Z",
        cluster="lab",
        summary=summary,
    )


def test_a_webhook_holds_the_facts_small_fields_and_nothing_else() -> None:
    found = json.loads(messages.webhook_body(notice()))
    assert found["id"] == "12-0" and found["type"] == "job.closed"
    assert found["data"] == {"attempt": 2, "outcome": "failed", "exit_code": 3}
    assert (found["tenant"], found["user"], found["job_name"]) == ("red", "ada", "train")


def test_the_signature_covers_id_time_and_body() -> None:
    headers = messages.signature_headers("12-0", 99, b"{}", KEY)
    mac = hmac.new(b"k" * 32, b"12-0.99.{}", hashlib.sha256).digest()
    assert headers["webhook-signature"] == "v1," + base64.b64encode(mac).decode()
    assert headers["webhook-id"] == "12-0" and headers["webhook-timestamp"] == "99"


def test_what_looks_like_a_secret_is_hidden_in_every_form() -> None:
    leaking = notice("exit 1: --token hf_abcdefghijklmnopqrstuvwxyz123456")
    mail = messages.mail(leaking, "muster@lab.example", "ann@example.org").as_string()
    for text in (messages.webhook_body(leaking), messages.slack_body(leaking), mail.encode()):
        assert b"hf_abcdef" not in text


def test_slack_texts_mention_no_channel() -> None:
    text = json.loads(messages.slack_body(notice(job_name="<!channel> & co")))["text"]
    assert "<" not in text and "&lt;!channel&gt; &amp; co" in text


def test_a_mail_has_one_line_subjects_and_the_same_id_at_each_try() -> None:
    broken = notice(job_name="a\r\nBcc: all@example.org")
    first = messages.mail(broken, "muster@lab.example", "ann@example.org")
    assert first["Bcc"] is None and "\n" not in first["Subject"]
    assert first["Message-ID"] == "<12-0.lab@lab.example>"
    assert "the job failed" in first.get_content()


def test_long_texts_are_cut() -> None:
    assert len(messages.safe("x" * 5_000)) == messages.TEXT_CHARS_MAX


def test_a_notice_without_a_thing_is_its_summary() -> None:
    plain = Notice(id="1-0", type="term.began", time="", cluster="lab", summary="began")
    assert messages.title(plain) == "began"


MARKER = "--a-marker-in-the-command"


def marked(value: Any) -> Any:
    """Return plain values in which each command is the marker."""
    if isinstance(value, dict):
        return {key: [MARKER] if key == "command" else marked(each) for key, each in value.items()}
    return [marked(each) for each in value] if isinstance(value, list) else value


def test_no_message_holds_a_command() -> None:
    examples = [each for each in EXAMPLES if kind_of(each) in choosable()]
    assert {kind_of(each) for each in examples} == set(choosable())
    facts: list[AnyFact] = [
        msgspec.convert(marked(msgspec.to_builtins(each)), type(each)) for each in examples
    ]
    assert sum(MARKER in str(fact) for fact in facts) >= 2
    for fact in facts:
        assert MARKER not in messages.summary_of(fact), fact


def test_a_message_says_who_submitted_a_job_or_deployed_a_model() -> None:
    found = {type(each): messages.summary_of(each) for each in EXAMPLES}
    assert found[f.JobSubmitted] == "submitted by ada"
    assert found[f.ModelDeployed].endswith(": 2 replicas")
