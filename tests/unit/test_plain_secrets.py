"""A secret that is written out in a command or a variable is refused before the log has it; what
only names one passes.
"""

import pytest

from libs.common.errors import Refused
from services.api_gateway.intents import job_intents
from services.api_gateway.secrets import plain_secrets

SPACES = ("\u00a0", "\u2028", "\u3000", "\x0b", "\x1c", "\x85")
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl"


@pytest.mark.parametrize(
    ("command", "secret"),
    [
        (("python", "train.py", "--token=hunter2"), "hunter2"),
        (("python", "train.py", "--password", "hunter2"), "hunter2"),
        (("vllm", "serve", "m", "--api-key", "hunter2"), "hunter2"),
        (("sh", "-c", "serve --hf_token 'hunter2'"), "hunter2"),
        (("env", "HF_TOKEN=hunter2", "true"), "hunter2"),
        *((("sh", "-c", f"serve{space}--password{space}hunter2"), "hunter2") for space in SPACES),
        *((("sh", "-c", f"env{space}HF_TOKEN=hunter2 true"), "hunter2") for space in SPACES),
        (("sh", "-c", "export AWS_SECRET_ACCESS_KEY=hunter2; true"), "hunter2"),
        (("sh", "-c", f"login hf_{'a1' * 17}"), "a1a1"),
        (("sh", "-c", f"login sk-proj-{'a1' * 17}"), "a1a1"),
        (("curl", "-H", "Authorization: Bearer hunter2", "http://h/"), "hunter2"),
        (("psql", "postgresql://ada:hunter2@db/x"), "hunter2"),
        (("login", JWT), "c2lnbmF0dXJl"),
        (("sh", "-c", "echo '-----BEGIN RSA PRIVATE KEY-----\nhunter2'"), "hunter2"),
    ],
)
def test_a_command_with_a_secret_is_refused_without_quoting_it(
    command: tuple[str, ...], secret: str
) -> None:
    with pytest.raises(Refused, match="muster secret set") as refused:
        job_intents.check_command(command)
    assert secret not in str(refused.value)


@pytest.mark.parametrize(
    "command",
    [
        ("sh", "-c", 'exec vllm serve m --api-key "$API_KEY" --hf-token=$HF_TOKEN'),
        ("sh", "-c", 'HF_TOKEN="$OTHER" TOKENS=5 train --password ${PASSWORD}'),
        (
            "train",
            "--max-tokens=100",
            "--eos-token",
            "</s>",
            "--tokenizer=meta/llama",
            "--pad-token",
            "0",
        ),
        (
            "train",
            "hf_transformers_training_run_v2",
            "--data",
            "http://host:8080/a@b",
            "s3://bucket/x",
            "task-sk-learn",
        ),
        ("train", "--token", "--verbose"),
        ("docker", "--password-stdin", "build"),
    ],
)
def test_a_command_that_only_refers_to_secrets_passes(command: tuple[str, ...]) -> None:
    job_intents.check_command(command)
    assert plain_secrets.in_command(command) == ""


def test_a_variable_is_judged_by_its_name_and_by_its_value() -> None:
    job_intents.check_environment(
        {"DATABASE": "postgresql://ada@db/x", "HF_TOKEN": "", "TOKENIZER": "llama"}
    )
    for env in ({"HF_TOKEN": "x"}, {"DATABASE": "postgresql://ada:hunter2@db/x"}, {"LOGIN": JWT}):
        with pytest.raises(Refused, match="muster secret set"):
            job_intents.check_environment(env)
