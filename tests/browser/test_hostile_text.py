"""Text of users is text: a script in any name, label, log line or error is shown and never run."""

from pathlib import Path
from typing import Any

from libs.common import facts as f
from libs.common import subjects
from libs.common.model import Gpu, GpuHold, GpuId, JobId, JobSpec, Member, NodeId, TenantId
from tests.browser.chromium import tab
from tests.integration.gateway_world import GIB, KEY, FakeNode, World
from tests.integration.session_world import session_world

ATTACKS = (
    "<img src=x onerror=window.hit=1>",
    "<script>window.hit=1</script>",
    '"><svg onload=window.hit=1>',
    "javascript:window.hit=1",
    "${window.hit=1}{{window.hit=1}}",
    "'-window.hit=1-'",
)
ALL = " ".join(ATTACKS)
LONG = "long-" * 60


async def fill(world: World, node: FakeNode) -> dict[str, JobId]:
    """Record what validation would refuse at the gateway, as an old or hostile writer could."""
    writers = world.writers
    await writers.begin_term()
    gateway = subjects.gateway("seed")
    await writers.write(gateway, f.TenantSet(tenant=TenantId(ALL)))
    gpu = Gpu(GpuId("g0"), 0, vendor=ALL, model=ALL, memory_bytes=GIB)
    await writers.on(
        "n1",
        f.NodeRegistered(
            node_id=NodeId("n1"),
            incarnation=1,
            address=ALL,
            gpus=(gpu,),
            labels={ALL: ALL},
            rack=ALL,
            isolation={ALL: ALL},
            drivers={ALL: ALL},
            version=ALL,
        ),
    )
    jobs = {}
    for name in ("running", "failed", "queued"):
        job_id = jobs[name] = JobId(f"j{name}")
        spec = JobSpec(
            command=(ALL, LONG), name=ALL + LONG, labels={ALL: ALL}, image=ALL, workdir=ALL
        )
        fact = f.JobSubmitted(job_id=job_id, spec=spec, tenant=TenantId(ALL), user=ALL)
        await writers.write(gateway, fact)
        await writers.queue(job_id)
    for name in ("failed", "running"):
        member = Member(NodeId("n1"), 1, 0, (GpuHold(GpuId("g0")),))
        await writers.schedule(
            f.JobPlaced(job_id=jobs[name], attempt=1, members=(member,), port=29_500)
        )
        await writers.start(jobs[name], "n1")
        if name == "failed":
            over = f.JobFinished(
                job_id=jobs[name],
                attempt=1,
                node_id=NodeId("n1"),
                exit_code=1,
                reason=ALL,
                detail=ALL,
            )
            released = f.JobReleased(job_id=jobs[name], attempt=1, node_id=NodeId("n1"))
            await writers.on("n1", over, released)
            await writers.schedule(
                f.JobClosed(job_id=jobs[name], attempt=1, outcome="failed", reason=ALL)
            )
    await writers.on(
        "n1", f.GpuFaulted(node_id=NodeId("n1"), uuid=GpuId("g0"), health="degraded", reason=ALL)
    )
    await node.listen(world.bus, "n1")
    node.say(jobs["running"], "stdout", (ALL + "\n" + LONG * 100 + "\n\x1b[31mred\n").encode())
    await world.settle()
    return jobs


async def test_no_text_of_a_user_is_ever_run(tmp_path: Path, browser: Any) -> None:
    async with session_world(tmp_path) as world:
        jobs = await fill(world, FakeNode())
        asked = [
            *("/", "/?view=table", "/?node=n1", "/?by=job", "/?by=model", "/queue", "/jobs?all=1"),
            *(f"/jobs/{job}?tab={tab}" for job in jobs.values() for tab in ("details", "timeline")),
            *(f"/jobs/{jobs['running']}?tab=logs&find={text}" for text in ("onerror", "%3Csvg")),
            *("/nodes", "/nodes/n1", "/tenants", "/audit", "/audit?tab=access", "/models"),
            *(f"/nodes/{ATTACKS[0].replace('/', '%2F')}", f"/jobs/{ATTACKS[2]}", "/audit?kind=<b>"),
        ]
        expected = lambda text: any(code in text for code in ("404", "422", "503"))  # noqa: E731
        async with tab(browser, world.url, allowed=expected) as page:
            await page.sign_in(KEY)
            for path in asked:
                await page.open(path)
                await page.page.wait_for_timeout(120)
                assert await page.page.evaluate("() => window.hit === undefined"), path
            await page.open(f"/jobs/{jobs['running']}?tab=logs")
            await page.page.get_by_text(ATTACKS[0]).first.wait_for()
            await page.shot("hostile-logs")
            assert await page.page.evaluate("() => window.hit === undefined")
            page.check()


async def test_links_to_other_origins_are_not_followed_after_the_sign_in(
    tmp_path: Path, browser: Any
) -> None:
    async with session_world(tmp_path) as world:
        await world.writers.begin_term()
        for wanted in (
            *("//evil.example", "/\\\\evil.example", "https://evil.example"),
            *("javascript:window.hit=1", "/%5Cevil.example", "http://[", "/sign-in"),
        ):
            async with tab(browser, world.url) as page:
                await page.sign_in(KEY, f"/sign-in?next={wanted}")
                assert await page.page.evaluate("() => location.origin") == world.url
                assert await page.page.evaluate("() => window.hit === undefined")
                page.check()
