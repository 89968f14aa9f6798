"""Questions about the past are answered by a child process with a deadline, one at a time; the
scheduler's loop goes on meanwhile.
"""

import asyncio
import os
import sys
from pathlib import Path

import msgspec
import pytest

from libs.common import facts as f
from libs.common import subjects
from libs.common.model import JobId, JobSpec
from libs.common.process.clock import SystemClock
from libs.common.transport.connection_nats import connect
from libs.common.transport.log_jetstream import JetStreamLog, create_stream
from libs.common.transport.writer import Writer
from services.scheduler.questions.past import WAITING_MAX, Past, Question
from tests.integration.test_agent_process import nats_server

SLEEPS = (sys.executable, "-c", "import time; time.sleep(60)")
JOB = JobId("j")


async def test_the_child_explains_the_state_of_a_past_sequence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with nats_server(tmp_path) as port:
        monkeypatch.setenv("MUSTER_NATS", f"nats://127.0.0.1:{port}")
        client = await connect([f"nats://127.0.0.1:{port}"], "test")
        await create_stream(client, 1, 64 << 20)
        log = JetStreamLog(client)
        for subject, fact in (
            (subjects.gateway("t"), f.JobSubmitted(job_id=JOB, spec=JobSpec(command=("true",)))),
            (subjects.QUOTA, f.JobRejected(job_id=JOB, reason="too many wait")),
        ):
            writer = Writer(log, SystemClock(), subject, lambda: 0)
            await writer.attach()
            await writer.commit([fact])
        await client.close()
        past = Past()
        then, now, none = [
            msgspec.json.decode(await past.answer(Question(at, job)))
            for job, at in ((JOB, 1), (JOB, 2), (JobId("x"), 2))
        ]
    assert (then["state"], then["at"]) == ("pending", 1)
    assert (now["state"], now["at"]) == ("rejected", 2)
    assert none["state"] == "unknown"


async def test_a_child_past_its_deadline_is_ended_and_the_loop_goes_on_meanwhile() -> None:
    past = Past(SLEEPS, deadline_s=0.5)
    answer = asyncio.create_task(past.answer(Question(7, JOB)))
    turns = 0
    while not answer.done():
        await asyncio.sleep(0.01)
        turns += 1
    told = msgspec.json.decode(await answer)
    assert (told["at"], told["state"]) == (7, "unknown") and "within" in told["answer"]
    assert turns > 1


async def test_only_so_many_questions_wait() -> None:
    past = Past(SLEEPS, deadline_s=0.2)
    told = await asyncio.gather(*(past.answer(Question(n, JOB)) for n in range(WAITING_MAX + 1)))
    assert ["wait already" in msgspec.json.decode(one)["answer"] for one in told] == [
        False
    ] * WAITING_MAX + [True]


async def test_a_child_that_fails_says_why() -> None:
    told = msgspec.json.decode(
        await Past((sys.executable, "-c", "print('no log'); raise SystemExit(3)")).answer(
            Question(1, JOB)
        )
    )
    assert told["answer"].endswith("could not be folded: no log")


async def test_a_question_that_is_given_up_leaves_no_child_behind(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    past = Past(
        (
            sys.executable,
            "-c",
            f"import os, time; open({str(note)!r}, 'w').write(str(os.getpid())); time.sleep(60)",
        )
    )
    asking = asyncio.create_task(past.answer(Question(1, JOB)))
    async with asyncio.timeout(10):
        while not note.exists() or not note.read_text():
            await asyncio.sleep(0.01)
    asking.cancel()
    await asyncio.wait((asking,))
    with pytest.raises(ProcessLookupError):
        os.kill(int(note.read_text()), 0)
