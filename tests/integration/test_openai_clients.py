"""OpenAI's own clients against the gateway: the current one, and the old one (openai==0.28) from an
environment of its own.

The two cannot be installed together, so the old one's environment is made once, on first use, under
.venv.
"""

import asyncio
import fcntl
import json
import os
import subprocess
import venv
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import openai
import pytest

from tests.integration.gateway_world import KEY
from tests.integration.openai_world import MESSAGES, model_world
from tests.tidy import ROOT

OLD: Final = "openai==0.28.0"
OLD_HOME: Final = ROOT / ".venv" / "openai-0.28"
INSTALL_S: Final = 120
RUN_S: Final = 60

needs_old_client = pytest.mark.skipif(
    os.environ.get("MUSTER_TEST_CLIENTS") != "1", reason="make clients runs the old client"
)


@pytest.fixture(scope="session")
def old_python() -> Path:
    """The interpreter that has the old client. Skips where it cannot be installed."""
    ready, python = OLD_HOME / ".installed", OLD_HOME / "bin" / "python"
    OLD_HOME.parent.mkdir(exist_ok=True)
    with OLD_HOME.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not ready.exists():
            problem = _install(python)
            if problem:
                pytest.skip(
                    f"{OLD} cannot be installed here (is there a package index?): {problem}"
                )
            ready.touch()
    return python


def _install(python: Path) -> str:
    """Install the old client, and return the error message; empty if it worked."""
    venv.create(OLD_HOME, with_pip=True, clear=True)
    line = [
        python,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--retries",
        "1",
        OLD,
    ]
    try:
        done = subprocess.run(line, capture_output=True, text=True, timeout=INSTALL_S)
    except subprocess.TimeoutExpired:
        return f"pip was not done after {INSTALL_S} s"
    return (
        "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["no word of it"])[-1]
    )


@asynccontextmanager
async def current_client(tmp_path: Path) -> AsyncIterator[openai.AsyncOpenAI]:
    async with (
        model_world(tmp_path) as (world, _),
        openai.AsyncOpenAI(base_url=world.url + "/v1", api_key=KEY, max_retries=0) as client,
    ):
        yield client


@needs_old_client
async def test_the_old_client_works(tmp_path: Path, old_python: Path) -> None:
    async with model_world(tmp_path) as (world, _):
        script = Path(__file__).with_name("openai_old_client.py")
        line = [str(old_python), str(script), world.url, KEY]
        done = await asyncio.to_thread(
            subprocess.run, line, capture_output=True, text=True, timeout=RUN_S
        )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "version": "0.28.0",
        "chat": "hello",
        "words": "w0 w1 w2 ",
        "completion": "hello",
        "embedding": [0.25, -0.5],
        "models": ["m", "cold", "theirs"],
        "refused": "404 model_not_found model",
        "unknown_key": True,
    }


async def test_the_current_client_works(tmp_path: Path) -> None:
    async with current_client(tmp_path) as client:
        chat = await client.chat.completions.create(model="m", messages=MESSAGES)
        assert chat.choices[0].message.content == "hello"
        assert chat.usage is not None and chat.usage.total_tokens == 12
        stream = await client.chat.completions.create(
            model="m",
            messages=MESSAGES,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
        assert (
            "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
            == "w0 w1 w2 "
        )
        assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == 7
        assert (await client.completions.create(model="m", prompt="p")).choices[0].text == "hello"
        assert (await client.embeddings.create(model="m", input="i")).data[0].embedding == [
            0.25,
            -0.5,
        ]
        assert [model.id async for model in client.models.list()] == ["m", "cold", "theirs"]
        assert (await client.models.retrieve("m")).owned_by == "default"


async def test_the_current_client_understands_every_refusal(tmp_path: Path) -> None:
    async with current_client(tmp_path) as client:
        with pytest.raises(openai.NotFoundError) as missing:
            await client.chat.completions.create(model="gone", messages=MESSAGES)
        assert missing.value.code == "model_not_found" and missing.value.request_id is not None
        with pytest.raises(openai.InternalServerError) as cold:
            await client.chat.completions.create(model="cold", messages=MESSAGES)
        assert cold.value.status_code == 503 and "2 of 2 are starting" in cold.value.message
        with pytest.raises(openai.AuthenticationError):
            await client.with_options(api_key="wrong").models.list()
        stream = await client.chat.completions.create(
            model="m",
            messages=MESSAGES,
            stream=True,
            extra_body={"x_die": "middle"},
        )
        with pytest.raises(openai.APIError, match="closed the connection"):
            async for _chunk in stream:
                pass
