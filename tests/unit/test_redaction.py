"""A support bundle contains no secret: neither a known one nor text that looks like one."""

import pytest

from libs.common.safety.redaction import HIDDEN, redacted

SEED = "SUAB" + "C2D4" * 13 + "EF"
PEM = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXk\n-----END OPENSSH PRIVATE KEY-----"


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("Authorization: Bearer abcdef0123456789", "abcdef0123456789"),
        ('{"api_key": "hunter two"}', "hunter two"),
        ("DB_PASSWORD=hunter2;x", "hunter2"),
        ("export HF_TOKEN='a b c'", "a b c"),
        ("my_secret: hunter2", "hunter2"),
        ("mysql --password hunter2 -h db", "hunter2"),
        ("serve --hf-token 'hunter two'", "hunter two"),
        ("curl -u ada:hunter2 http://h/", "hunter2"),
        ("curl --user=ada:hunter2 http://h/", "hunter2"),
        ("postgresql://muster:hunter2@db:5432/m", "hunter2"),
        ("key mk_0123456789abcdefABCDEF given", "mk_0123456789abcdefABCDEF"),
        ("msk_0123456789_abcdefABCDEF", "msk_0123456789_abcdefABCDEF"),
        (f"seed {SEED}", SEED),
        ("AKIAABCDEFGHIJKLMNOP", "AKIAABCDEFGHIJKLMNOP"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln", "eyJzdWIiOiIxIn0"),
        (f"x\n{PEM}\ny", "b3BlbnNzaC1rZXk"),
    ],
)
def test_text_that_looks_like_a_secret_is_hidden(text: str, secret: str) -> None:
    assert secret not in redacted(text) and HIDDEN in redacted(text)


def test_a_known_secret_is_hidden_wherever_it_stands() -> None:
    assert (
        redacted(
            "a:correct-horse-battery:b correct-horse", ["correct-horse", "correct-horse-battery"]
        )
        == f"a:{HIDDEN}:b {HIDDEN}"
    )


def test_ordinary_text_stays_as_it_is() -> None:
    text = (
        "2026-11-21 scheduler INFO placed j4k2 on node-1 (nats://127.0.0.1:4222), 12 tokens/s, "
        "key=value, seq 42, abc"
    )
    assert redacted(text, ["abc", ""]) == text
