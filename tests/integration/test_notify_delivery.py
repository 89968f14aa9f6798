"""Deliveries by real gateways to real servers: ordered, repeated, and over restarts."""

import base64
import hashlib
import hmac
import json
from pathlib import Path
from typing import Any

import pytest

from libs.common.folds import job_fold
from libs.common.transport.log_memory import MemoryStream
from libs.common.transport.revisions import MemoryRevisions
from services.api_gateway.notify import delivery
from tests.integration.gateway_world import World
from tests.integration.notify_world import (
    Receiver,
    add,
    notify_world,
    receiver,
    relay,
    until,
)
from tests.integration.test_gateway_archive import archived


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Repeat tries soon."""
    monkeypatch.setattr(delivery, "BACKOFF_FIRST_S", 0.05)
    monkeypatch.setattr(delivery, "BACKOFF_MAX_S", 0.2)


def bodies(hook: Receiver) -> list[dict[str, Any]]:
    return [json.loads(body) for _, body in hook.got]


def jobs(hook: Receiver) -> list[str]:
    return [body["job_id"] for body in bodies(hook)]


async def begun(world: World) -> None:
    await world.writers.begin_term()
    await world.writers.register("n1", 8)


async def row(world: World, name: str) -> dict[str, Any]:
    found = (await world.ask("GET", "/v1/notifications"))["notifications"]
    return next(each for each in found if each["name"] == name)


async def test_a_webhook_gets_chosen_facts_in_order_and_signed(tmp_path: Path) -> None:
    async with receiver() as hook, notify_world(tmp_path) as world:
        await begun(world)
        early = await world.run_to("completed")
        made = await add(world, "hook", webhook=hook.url, kinds=["job.started", "job.closed"])
        ran = [await world.run_to("completed", name=f"train-{n}") for n in range(3)]
        await until(lambda: len(hook.got) == 6)
        assert [(each["type"], each["job_id"]) for each in bodies(hook)] == [
            (kind, job) for job in ran for kind in ("job.started", "job.closed")
        ]
        assert early not in jobs(hook)
        headers, body = hook.got[-1]
        key = base64.b64decode(made["key"].removeprefix("whsec_"))
        signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
        mac = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
        assert headers["webhook-signature"] == f"v1,{mac}"
        assert headers["webhook-id"] == bodies(hook)[-1]["id"]
        assert bodies(hook)[-1]["job_name"] == "train-2"
        assert (await row(world, "hook"))["sent"] == 6


async def test_a_failing_destination_is_retried_and_delays_only_itself(tmp_path: Path) -> None:
    async with (
        receiver() as good,
        receiver() as bad,
        receiver() as hanging,
        notify_world(tmp_path) as world,
    ):
        await begun(world)
        bad.status, hanging.hangs = 503, True
        for name, hook in (("bad", bad), ("good", good), ("hanging", hanging)):
            await add(world, name, webhook=hook.url)
        ran = [await world.run_to("completed") for _ in range(3)]
        await until(lambda: len(good.got) == 3 and bad.tries >= 3)
        failing = await row(world, "bad")
        assert failing["failures"] >= 2 and failing["error"] == "the receiver answered 503"
        bad.status = 200
        await until(lambda: len(bad.got) == 3)
        assert jobs(bad) == jobs(good) == ran
        assert (await row(world, "bad"))["failures"] == 0


async def test_a_gateway_goes_on_where_the_one_before_ended(tmp_path: Path) -> None:
    stream, store = MemoryStream(), MemoryRevisions()
    ran: list[str] = []
    async with receiver() as hook:
        async with notify_world(tmp_path, revisions=store, stream=stream) as world:
            await begun(world)
            await add(world, "hook", webhook=hook.url)
            secrets = world.gateway.vault.store
            ran.append(await world.run_to("completed"))
            await until(lambda: len(hook.got) == 1)
            hook.status = 500
            ran += [await world.run_to("completed") for _ in range(2)]
            await until(lambda: hook.tries >= 3)
        hook.status = 200
        async with notify_world(tmp_path, revisions=store, stream=stream) as world:
            world.gateway.vault.store = secrets
            await until(lambda: len(hook.got) == 3)
            assert jobs(hook) == ran
            assert [each["id"] for each in bodies(hook)] == sorted(
                (each["id"] for each in bodies(hook)), key=lambda text: int(text.split("-")[0])
            )


async def test_more_messages_than_a_queue_holds_come_from_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "QUEUE_MAX", 3)
    async with receiver() as hook, notify_world(tmp_path) as world:
        await begun(world)
        hook.status = 500
        await add(world, "hook", webhook=hook.url)
        ran = [await world.run_to("completed") for _ in range(12)]
        hook.status = 200
        await until(lambda: len(hook.got) == 12)
        assert jobs(hook) == ran


async def forgotten(world: World, hook: Receiver) -> list[str]:
    """Jobs whose ends are in the log, and of which the state knows the last one alone.

    All began before the destination. The first one's message fails, so those of the others wait in
    the log.
    """
    await begun(world)
    ids = [(await world.submit(name=f"train-{n}"))["id"] for n in range(4)]
    for job in ids:
        await world.writers.queue(job)
        for move in (world.writers.place, world.writers.start, world.writers.finish):
            await move(job, "n1")
    hook.status = 500
    await add(world, "hook", webhook=hook.url)
    await world.writers.close(ids[0])
    await until(lambda: hook.tries >= 1)
    for job in ids[1:]:
        await world.writers.close(job)
    await world.settle()
    assert list(world.gateway.cluster.jobs) == ids[-1:]
    hook.status = 200
    return ids


async def test_jobs_that_the_state_has_forgotten_are_found_in_the_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_fold, "ENDED_JOBS_KEPT", 1)
    monkeypatch.setattr(delivery, "QUEUE_MAX", 1)
    stream = MemoryStream()
    async with receiver() as hook, notify_world(tmp_path, stream=stream) as world:
        ids = await forgotten(world, hook)
        await until(lambda: len(hook.got) == 1)
        async with archived(world, stream, tmp_path):
            await until(lambda: len(hook.got) == 4)
        assert jobs(hook) == ids
        assert [body["job_name"] for body in bodies(hook)] == [f"train-{n}" for n in range(4)]


async def test_an_archive_that_is_behind_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It knows a job only when it has read the commits about it."""
    monkeypatch.setattr(job_fold, "ENDED_JOBS_KEPT", 1)
    monkeypatch.setattr(delivery, "QUEUE_MAX", 1)
    stream, behind = MemoryStream(), MemoryStream()
    async with receiver() as hook, notify_world(tmp_path, stream=stream) as world:
        ids = await forgotten(world, hook)
        async with archived(world, behind, tmp_path):
            await until(lambda: "does not hold commit" in caplog.text)
            assert jobs(hook) == ids[:1]
            for entry in stream.entries:
                last = behind.last_by_subject.get(entry.subject)
                behind.store(entry.subject, entry.data, last.seq if last else 0)
            await until(lambda: len(hook.got) == 4)
        assert jobs(hook) == ids
        assert (await row(world, "hook"))["skipped"] == 0


async def test_facts_about_jobs_that_no_archive_knows_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The archive begins after the commits that submitted them."""
    monkeypatch.setattr(job_fold, "ENDED_JOBS_KEPT", 1)
    monkeypatch.setattr(delivery, "QUEUE_MAX", 1)
    stream = MemoryStream()
    async with receiver() as hook, notify_world(tmp_path, stream=stream) as world:
        ids = await forgotten(world, hook)
        begin = 1 + max(entry.seq for entry in stream.entries if b"job.submitted" in entry.data)
        async with archived(world, stream, tmp_path, begin=begin):
            await until(lambda: len(hook.got) == 2)
        assert jobs(hook) == [ids[0], ids[-1]]
        found = await row(world, "hook")
        assert (found["sent"], found["skipped"]) == (2, 2)


async def test_old_messages_are_given_up_with_a_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "KEEP_S", 0)
    async with receiver() as hook, notify_world(tmp_path) as world:
        await begun(world)
        hook.status = 500
        await add(world, "hook", webhook=hook.url)
        await world.run_to("completed")
        await until(lambda: hook.tries >= 1)
        hook.status = 200
        second = await world.run_to("completed")
        await until(lambda: len(hook.got) == 1)
        assert jobs(hook) == [second]
        assert (await row(world, "hook"))["skipped"] == 1


async def test_a_removed_destination_gets_nothing_more(tmp_path: Path) -> None:
    async with receiver() as hook, receiver() as other, notify_world(tmp_path) as world:
        await begun(world)
        await add(world, "hook", webhook=hook.url)
        await add(world, "other", webhook=other.url)
        await world.run_to("completed")
        await until(lambda: len(hook.got) == len(other.got) == 1)
        await world.ask("DELETE", "/v1/notifications/hook", 204)
        await world.run_to("completed")
        await until(lambda: len(other.got) == 2)
        assert len(hook.got) == 1


async def test_mails_go_over_tls_with_a_login(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("hunter2hunter2\n")
    login = ("muster", "hunter2hunter2")
    async with relay(tmp_path, login) as (mails, settings):
        mail = {
            **settings,
            "smtp_user": "muster",
            "smtp_password_file": str(tmp_path / "password"),
            "notify_mail_domains": "example.org",
        }
        async with notify_world(tmp_path, **mail) as world:
            await begun(world)
            await add(world, "mail", mail="ann@example.org")
            job = await world.run_to("completed", name="train")
            await until(lambda: len(mails.got) == 1)
            receivers, message = mails.got[0]
            assert receivers == ["ann@example.org"]
            assert message["Subject"].startswith("[muster] job.closed train")
            assert job in str(message.get_payload())
            mails.refuse = "550 no"
            result = await world.ask("POST", "/v1/notifications/mail/test", json={})
            assert result == {
                "accepted": False,
                "detail": "the mail relay refused the mail (550)",
            }


async def test_slack_gets_a_text(tmp_path: Path) -> None:
    async with receiver() as hook, notify_world(tmp_path) as world:
        await begun(world)
        await add(world, "slack", slack=hook.url, failures=True)
        await world.run_to("completed")
        job = (await world.submit(name="bad"))["id"]
        await world.writers.queue(job)
        await world.writers.close(job, "failed", 3)
        await until(lambda: len(hook.got) == 1)
        assert "job.closed bad" in json.loads(hook.got[0][1])["text"]
