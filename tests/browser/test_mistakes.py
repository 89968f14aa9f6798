"""What the pages say when something goes wrong, against a real cluster: a command that does not
exist, a job that is in the way, a model that was undeployed.
"""

from typing import Any

import pytest

from bench.cluster import running
from tests.browser.chromium import Tab
from tests.browser.test_actions import SLOW_MS, act, page, state, submit

__all__ = ["page"]


@pytest.fixture(scope="module")
def cluster() -> Any:
    with running(nodes=2, gpus=2) as found:
        yield found


async def test_a_command_that_does_not_exist_is_named_everywhere(page: Tab) -> None:
    await submit(page, "pyton train.py --epochs 3", name="typo", time_limit="2m", estimate="1m")
    await state(page, "failed")
    words = "The command pyton was not found on node-"
    job = page.page.url.partition("?")[0].rpartition("/")[2]
    await page.open(f"/jobs/{job}?tab=details")
    await page.page.locator(".note.bad", has_text=words).wait_for()
    await page.shot("typo-details")
    await page.open(f"/jobs/{job}?tab=logs")
    await page.page.locator(".log", has_text=words).wait_for()
    await page.open(f"/jobs/{job}?tab=why")
    await page.page.locator(".why .answer", has_text="the command pyton was not found").wait_for()
    await page.open("/jobs?all=1")
    await page.page.locator("tr", has_text="typo").get_by_text(words).wait_for()
    await page.open(f"/jobs/{job}")
    await page.page.get_by_role("link", name="Submit again").click()
    await page.page.wait_for_function("() => document.querySelector('[name=name]')?.value")
    assert await page.page.locator("textarea").first.input_value() == "pyton train.py --epochs 3"
    fields = {"name": "typo", "time_limit": "120s", "estimate": "60s"}
    for name, value in fields.items():
        assert await page.page.locator(f"[name={name}]").input_value() == value
    await page.shot("submit-again")


async def test_a_model_whose_command_does_not_exist_can_be_mended_on_its_page(page: Tab) -> None:
    await page.open("/deploy")
    await page.page.locator("[name=name]").fill("qwen")
    await page.page.locator("textarea").first.fill("vllm-x serve m --host {host} --port {port}")
    await page.page.get_by_text("A replica would start on node-").wait_for()
    await page.page.get_by_role("button", name="Deploy model").click()
    await state(page, "crash looping")
    banner = page.page.locator(".note.bad", has_text="The command vllm-x was not found on node-")
    await banner.wait_for()
    await banner.get_by_role("link", name="qwen-").wait_for()
    await page.page.get_by_text("The next try is at").wait_for(timeout=SLOW_MS)
    await page.page.locator(".why .answer", has_text="the command vllm-x was not found").wait_for()
    await page.shot("model-crashes")
    await banner.get_by_role("link", name="Edit and redeploy").click()
    await page.page.wait_for_function("() => document.querySelector('[name=name]')?.value")
    await page.page.locator("textarea").first.fill("sleep 600")
    await page.page.get_by_role("button", name="Redeploy model").click()
    await page.page.get_by_text("starting").first.wait_for(timeout=SLOW_MS)
    await act(page, "Undeploy", "muster undeploy qwen")
    await page.page.get_by_text("Undeployed at ").wait_for()
    assert await page.page.get_by_label("Message").count() == 0
    await page.shot("model-undeployed")
    await page.page.get_by_role("link", name="Deploy again").click()
    await page.page.wait_for_function("() => document.querySelector('[name=name]')?.value")
    assert await page.page.locator("[name=name]").input_value() == "qwen"


async def test_the_button_beside_a_remedy_cancels_the_job_that_is_in_the_way(page: Tab) -> None:
    await submit(page, "sleep 300", name="hog", gpus="2", nodes="2")
    await state(page, "running")
    hog = page.page.url.partition("?")[0].rpartition("/")[2]
    await submit(page, "sleep 300", name="patient", gpus="2", nodes="2")
    await state(page, "queued")
    await page.page.get_by_text("1 job ahead has no time limit and no estimate.").wait_for()
    await page.open("/queue")
    row = page.page.locator("tr", has_text="patient")
    await row.get_by_text("GPUs in use: needs 2, at most 0 free").wait_for(timeout=SLOW_MS)
    await row.get_by_role("button", name="Why").click()
    detail = page.page.locator("tr.detail")
    await detail.get_by_role("link", name=hog).first.wait_for()
    await page.shot("queue-why")
    await detail.get_by_role("button", name="Cancel patient", exact=True).click()
    dialog = page.page.locator("dialog[open]")
    await dialog.get_by_text("It leaves the queue; nothing runs yet.").wait_for()
    await dialog.get_by_role("button", name="Leave it").click()
    await detail.locator(".note button").first.click()
    await dialog.locator("code").filter(has_text=f"muster cancel {hog}").wait_for()
    await dialog.get_by_role("button", name="Cancel job", exact=True).click()
    await page.page.get_by_text("hog is cancelled.").wait_for()
    await page.page.get_by_text("Nothing waits").wait_for(timeout=SLOW_MS)
    await page.open(f"/jobs/{hog}")
    await state(page, "cancelled")
    await page.open("/jobs?name=patient")
    await page.page.locator("tbody a").first.click()
    await act(page, "Cancel job", "muster cancel j")
    await state(page, "cancelled")
