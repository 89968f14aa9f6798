"""A newcomer's first steps with the dashboard alone, against a real cluster: submit, watch, find
why a job waits, free a GPU, drain a node, serve a model and chat with it.
"""

import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from bench.cluster import Cluster, running
from tests.browser.chromium import Tab, tab

ROOT = Path(__file__).parents[2]
GPUS = 2
SLOW_MS = 30_000


@pytest.fixture(scope="module")
def cluster() -> Any:
    with running(nodes=2, gpus=GPUS) as found:
        yield found


@pytest.fixture
async def page(cluster: Cluster, browser: Any) -> AsyncIterator[Tab]:
    """A page that is signed in by a one-time link, as `muster dashboard` opens it."""
    headers = {"authorization": f"Bearer {cluster.key}"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.post(f"{cluster.url}/v1/session/links") as answer,
        tab(browser, cluster.url, allowed=lambda text: "503" in text or "422" in text) as found,
    ):
        link = await answer.json()
        await found.page.goto(cluster.url + link["path"])
        await found.page.wait_for_selector(".shell")
        assert "link=" not in found.page.url
        yield found
        found.check()


async def submit(page: Tab, command: str, **fields: str) -> None:
    await page.open("/submit")
    await page.page.locator("textarea").first.fill(command)
    for name, value in fields.items():
        await page.page.locator(f"[name={name}]").fill(value)
    await page.page.get_by_role("button", name="Submit job").click()
    await page.page.wait_for_function("() => /^.jobs.j/.test(location.pathname)")


async def act(page: Tab, label: str, line: str) -> None:
    """Press an action, read the command that does the same, and confirm."""
    await page.page.locator("#main").get_by_role("button", name=label, exact=True).first.click()
    dialog = page.page.locator("dialog[open]")
    await dialog.locator("code").filter(has_text=line).wait_for()
    await dialog.locator("button[type=submit]").click()
    await dialog.wait_for(state="hidden")


async def state(page: Tab, word: str) -> None:
    await page.page.locator(".page-head .state", has_text=word).wait_for(timeout=SLOW_MS)


async def test_a_job_is_submitted_watched_and_read(page: Tab) -> None:
    script = "for i in $(seq 400); do echo line $i of the run; done; echo done >&2"
    await submit(page, script, name="first-job")
    await state(page, "completed")
    await page.page.get_by_role("link", name="Timeline").click()
    await page.page.get_by_text("job.placed").wait_for()
    await page.page.get_by_role("link", name="Logs").first.click()
    await page.page.get_by_text("line 400 of the run").wait_for()
    await page.page.get_by_label("Search the whole output").fill("line 17 ")
    await page.page.keyboard.press("Enter")
    found = page.page.locator(".found")
    await found.get_by_text("1 line with").wait_for()
    await found.locator("li button").click()
    await page.page.locator(".log .target", has_text="line 17 of the run").wait_for()
    await page.page.get_by_role("button", name="Errors").click()
    await page.page.locator(".log", has_text="done").wait_for()


async def test_output_is_followed_while_the_job_runs(page: Tab) -> None:
    await submit(page, "for i in $(seq 200); do echo tick $i; sleep 0.2; done", name="ticking")
    await state(page, "running")
    await page.page.get_by_role("link", name="Logs").first.click()
    await page.page.get_by_text("tick 15", exact=True).wait_for(timeout=SLOW_MS)
    await page.page.get_by_role("link", name="Details").click()
    await page.page.locator(".chart canvas").first.wait_for(timeout=SLOW_MS)
    await page.page.wait_for_timeout(6_000)
    await page.shot("job-of-a-real-cluster")
    await act(page, "Cancel job", "muster cancel j")
    await state(page, "cancelled")


async def test_a_waiting_job_says_why_and_starts_when_a_gpu_is_freed(page: Tab) -> None:
    await submit(page, "sleep 300", name="hog", gpus=str(GPUS), nodes="2", time_limit="1h")
    await state(page, "running")
    hog = page.page.url
    await submit(page, "sleep 300", name="patient")
    await state(page, "queued")
    patient = page.page.url
    await page.page.locator(".why .answer").wait_for()
    await page.open("/queue")
    row = page.page.locator("tr", has_text="patient")
    await row.get_by_text("~ 59m").wait_for(timeout=SLOW_MS)
    await page.shot("queue-of-a-real-cluster")
    await row.get_by_role("button", name="Why").click()
    await page.page.locator("tr.detail .answer").wait_for()
    await page.page.goto(patient)
    await page.page.wait_for_selector(".page-head .state")
    await act(page, "Hold", "muster hold j")
    await state(page, "held")
    await act(page, "Release", "muster release j")
    await state(page, "queued")
    await page.page.goto(hog)
    await page.page.wait_for_selector(".page-head .state")
    await act(page, "Cancel job", "muster cancel j")
    await state(page, "cancelled")
    await page.page.goto(patient)
    await state(page, "running")
    await act(page, "Requeue", "muster requeue j")
    await page.page.locator(".page-head", has_text="running").wait_for(timeout=SLOW_MS)
    await act(page, "Cancel job", "muster cancel j")
    await state(page, "cancelled")


async def test_a_node_is_drained_and_returned(page: Tab) -> None:
    await page.open("/nodes")
    await page.page.locator("tbody a").first.click()
    await page.page.wait_for_function("() => /^.nodes.n/.test(location.pathname)")
    node = page.page.url.rsplit("/", 1)[1]
    await page.page.locator("h1", has_text=node).wait_for()
    await act(page, "Drain", f"muster drain {node}")
    await page.page.get_by_text("maintenance").first.wait_for()
    await act(page, "Online", f"muster online {node}")
    await page.page.get_by_text("available").first.wait_for()


async def test_a_model_is_deployed_asked_scaled_and_removed(page: Tab) -> None:
    await page.open("/deploy")
    await page.page.locator("[name=name]").fill("parrot")
    server = ROOT / "examples" / "model_server.py"
    command = f"{sys.executable} {server} --port {{port}} --model parrot"
    await page.page.locator("textarea").first.fill(command)
    await page.page.get_by_role("button", name="Deploy model").click()
    await state(page, "ready")
    await page.page.get_by_label("Message").fill("Tell me about GPUs.")
    await page.page.keyboard.press("Enter")
    answer = page.page.locator(".said.assistant")
    await answer.get_by_text("all after").wait_for(timeout=SLOW_MS)
    assert len(await answer.locator("p").inner_text()) > 3
    await page.shot("chat")
    await page.page.get_by_role("spinbutton", name="Replicas").fill("2")
    await act(page, "Scale", "muster scale parrot 2")
    await page.page.locator(".page-head", has_text="2 of 2 ready").wait_for(timeout=SLOW_MS)
    await act(page, "Undeploy", "muster undeploy parrot")
    await (
        page.page.locator(".page-head .state")
        .get_by_text(re.compile("stopping|undeployed"))
        .wait_for(timeout=SLOW_MS)
    )


async def test_a_refused_form_names_the_field(page: Tab) -> None:
    await page.open("/submit")
    await page.page.locator("textarea").first.fill("true")
    await page.page.locator("[name=time_limit]").fill("soon")
    await page.page.get_by_role("button", name="Submit job").click()
    field = page.page.locator("label", has_text="Time limit")
    await field.get_by_role("alert").wait_for()
