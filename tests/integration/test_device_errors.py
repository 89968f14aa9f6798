"""A real agent with simulated devices: what is written into its pipes has happened to them."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from libs.common import facts as f
from libs.common.model import MIG, GpuHold, GpuId
from libs.common.settings.settings import Settings
from services.node_agent.drivers.simulated import SimulatedDriver
from services.node_agent.health.listen import DRIVER_PIPE, KERNEL_PIPE, listen, policy_of, watch_of
from services.node_agent.machine.line_pipe import LinePipe
from services.node_agent.metrics import exposition
from services.node_agent.service import Agent
from tests.integration.agent_world import World

FIRST, SECOND = GpuId("GPU-n-0"), GpuId("GPU-n-1")


class Played(World):
    """A world whose agent listens to its pipes."""

    pipes: tuple[LinePipe, ...] = ()

    def make(self, state_dir: Path | None = None) -> Agent:
        agent = super().make(state_dir)
        settings = Settings(state=str(self.state_dir))
        agent.state.devices.policy = policy_of(settings)
        self.state_dir.mkdir(exist_ok=True)
        self.pipes = tuple(
            listen(
                settings,
                watch_of(settings, self.driver, agent.devices, agent.state.devices.policy),
                self.driver,
                agent.sampling,
            )
        )
        return agent

    async def end(self) -> None:
        await super().end()
        for pipe in self.pipes:
            pipe.close()

    def write(self, pipe: str, line: str) -> None:
        with open(self.state_dir / pipe, "w") as file:
            file.write(line + "\n")

    def kernel(
        self, device: int, xid: int, text: str = "words", facility: int = 0, instance: str = ""
    ) -> None:
        self.write(
            KERNEL_PIPE,
            (
                f"{facility * 8 + 3},1,1,-;NVRM: Xid (PCI:0000:{device + 1:02x}:00{instance}): "
                f"{xid}, {text}"
            ),
        )

    def switch(self, number: int, words: str) -> None:
        self.write(
            KERNEL_PIPE, f"3,1,1,-;nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): {number}, {words}"
        )

    def metrics(self) -> str:
        agent = self.agent
        return exposition.text(
            "n", agent.devices.inventory, {}, {}, healths=exposition.health(agent.state.devices)
        )


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[Played]:
    made = Played(tmp_path / "state")
    await made.scheduler.listen()
    await made.begin()
    yield made
    await made.end()


async def runs(world: Played, name: str, uuid: GpuId, command: str = "exec sleep 100") -> None:
    await world.place(replace(world.order(name, command), gpus=(GpuHold(uuid),)))
    await world.said(f.JobStarted, name)


async def test_an_application_s_error_ends_the_job_and_the_device_stays(world: Played) -> None:
    await runs(world, "bad", FIRST)
    await runs(world, "good", SECOND)
    world.kernel(0, 31, "pid=1, MMU Fault")
    finished = await world.said(f.JobFinished, "bad")
    assert (finished.reason, finished.detail) == (
        "gpu_error",
        "xid 31 of GPU GPU-n-0: pid=1, MMU Fault",
    )
    await world.said(f.JobReleased, "bad")
    assert world.facts(f.GpuFaulted) == [] and world.of("good") == ["job.started"]


async def divided(world: Played) -> None:
    """Two jobs, each in an instance of the first device."""
    for name, slices in (("low", 0b1111), ("high", 0b1111_0000)):
        order = world.order(name, "exec sleep 100")
        await world.place(
            replace(
                order,
                gpus=(
                    GpuHold(
                        uuid=FIRST,
                        share=50,
                        isolation=MIG,
                        mig_profile="3g.40gb",
                        mig_slices=slices,
                    ),
                ),
            )
        )
        await world.said(f.JobStarted, name)


@pytest.mark.attack
async def test_a_contained_error_ends_the_job_in_its_mig_instance_and_the_other_one_goes_on(
    world: Played,
) -> None:
    await divided(world)
    number = next(each.number for each in world.driver.instances[FIRST].values() if each.start == 4)
    world.kernel(0, 94, "pid=1, Contained", instance=f" GPU-I:{number:02}")
    finished = await world.said(f.JobFinished, "high")
    assert finished.reason == "gpu_fault"
    assert finished.detail == f"xid 94 of GPU GPU-n-0: MIG instance {number}: pid=1, Contained"
    await world.said(f.JobReleased, "high")
    (seen,) = world.facts(f.GpuErrorSeen)
    assert [ref.job_id for ref in seen.jobs] == ["high"] and world.facts(f.GpuFaulted) == []
    assert world.of("low") == ["job.started"]
    assert 'error="xid 94"} 1' in world.metrics()


@pytest.mark.attack
async def test_an_agent_that_starts_again_knows_which_job_an_instance_is_of(world: Played) -> None:
    await divided(world)
    numbers = {each.start: each.number for each in world.driver.instances[FIRST].values()}
    await world.end()
    await world.begin()
    await world.until(lambda: FIRST in world.agent.devices.instances.known)
    world.kernel(0, 94, "Contained", instance=f" GPU-I:{numbers[0]:02} GPU-CI:00")
    await world.said(f.JobReleased, "low")
    assert "job.finished" not in world.of("high")


@pytest.mark.attack
async def test_a_fatal_error_of_a_switch_ends_the_job_with_several_gpus_and_no_other(
    world: Played,
) -> None:
    await world.end()
    world.driver = SimulatedDriver("n", 3)
    await world.begin()
    order = world.order("pair", "exec sleep 100")
    await world.place(replace(order, gpus=(GpuHold(FIRST), GpuHold(SECOND))))
    await runs(world, "one", GpuId("GPU-n-2"))
    world.switch(12028, "Non-fatal, Link 32 egress non-posted PRIV error (First)")
    await world.until(lambda: len(world.facts(f.GpuErrorSeen)) == 3)
    await world.until(lambda: world.of("pair") == ["job.started"])
    assert world.facts(f.GpuFaulted) == []
    world.switch(24007, "Fatal, Link 30 sourcetrack timeout error")
    finished = await world.said(f.JobFinished, "pair")
    assert (finished.reason, finished.detail) == (
        "gpu_fault",
        (
            "sxid 24007 of GPU GPU-n-0: nvidia-nvswitch0 (0000:c3:00.0): Fatal, Link 30 "
            "sourcetrack timeout error"
        ),
    )
    await world.said(f.JobReleased, "pair")
    assert [(fact.health, fact.reason, fact.alone) for fact in world.facts(f.GpuFaulted)] == [
        ("degraded", "sxid 24007", True)
    ] * 3
    assert world.of("one") == ["job.started"]
    assert world.metrics().count('reason="sxid 24007",health="degraded"} 1') == 3


async def test_line_that_a_user_writes_into_the_kernel_s_log_is_ignored(world: Played) -> None:
    await runs(world, "good", FIRST)
    world.kernel(0, 79, facility=1)
    world.kernel(1, 63)
    await world.until(lambda: len(world.facts(f.GpuErrorSeen)) == 1)
    assert world.of("good") == ["job.started"]


async def test_a_device_that_failed_is_reset_when_its_job_is_gone_and_its_evidence_is_kept(
    world: Played,
) -> None:
    await runs(world, "hit", FIRST)
    world.write(DRIVER_PIPE, "nvidia 0000:01:00.0 xid 95 uncontained")
    world.kernel(0, 95)
    finished = await world.said(f.JobFinished, "hit")
    assert finished.reason == "gpu_fault"
    await world.until(lambda: world.facts(f.GpuRecovered) != [])
    assert [(fact.health, fact.reason) for fact in world.facts(f.GpuFaulted)] == [
        ("offline", "xid 95"),
        ("resetting", "reset"),
    ]
    assert world.facts(f.GpuRecovered)[0].checks == {
        "reset": "done",
        "driver": "answers",
        "memory": "free",
    }
    assert [fact.error for fact in world.facts(f.GpuErrorSeen)] == ["xid 95"]
    (evidence,) = world.state_dir.glob("evidence-GPU-n-0-*.json")
    assert json.loads(evidence.read_text())["reason"] == "xid 95"


async def test_a_job_that_died_of_its_device_s_error_before_the_agent_knew_did_not_fail_by_itself(
    world: Played,
) -> None:
    line = "3,1,1,-;NVRM: Xid (PCI:0000:01:00): 94, Contained"
    await runs(world, "hit", FIRST, f"echo '{line}' > {world.state_dir}/{KERNEL_PIPE}; exit 7")
    assert (await world.said(f.JobFinished, "hit")).reason == "gpu_fault"


async def test_corrected_errors_are_recorded_once_per_window_and_the_job_continues(
    world: Played,
) -> None:
    await runs(world, "good", FIRST)
    for count in (1, 150, 400):
        world.write(DRIVER_PIPE, f"simulated 0000:01:00.0 reading {count} ecc_corrected")
        world.write(DRIVER_PIPE, f"simulated 0000:02:00.0 reading {count // 4} pcie_replays")
        await asyncio.sleep(0.2)
    (error,) = world.facts(f.GpuErrorSeen)
    assert (error.uuid, error.error, error.verdict, error.jobs[0].job_id) == (
        FIRST,
        "corrected",
        "ignore",
        "good",
    )
    assert error.detail == "149 corrected errors within 3600 s"
    assert world.of("good") == ["job.started"] and world.facts(f.GpuFaulted) == []


@pytest.mark.attack
@pytest.mark.parametrize(
    ("reading", "error", "verdict"),
    [
        ("sram_threshold", "sram_threshold", "replace"),
        ("ecc_uncorrected", "uncorrected", "drain_then_reset"),
    ],
)
async def test_a_device_whose_ecc_counters_warn_takes_no_new_job_and_its_job_goes_on(
    world: Played, reading: str, error: str, verdict: str
) -> None:
    await runs(world, "good", FIRST)
    for count in (0, 1):
        world.write(DRIVER_PIPE, f"simulated 0000:01:00.0 reading {count} {reading}")
        await world.until(
            lambda count=count: getattr(world.agent.sampling.latest[FIRST], reading) == count
        )  # type: ignore[misc]
    await world.until(lambda: world.facts(f.GpuFaulted) != [])
    (fault,) = world.facts(f.GpuFaulted)
    assert (fault.uuid, fault.health, fault.reason, fault.verdict) == (
        FIRST,
        "offline",
        error,
        verdict,
    )
    assert world.of("good") == ["job.started"]
    await world.place(world.order("late", "true"))
    assert (await world.said(f.JobRefused, "late")).reason == f"a GPU of it is away: {error}"


async def test_errors_of_a_single_link_are_told_with_its_number(world: Played) -> None:
    for count in (1, 150):
        world.write(DRIVER_PIPE, f"simulated 0000:01:00.0 reading {count} link 3 replay")
        await world.until(
            lambda count=count: world.agent.sampling.latest[FIRST].link_errors == count
        )  # type: ignore[misc]
    await world.until(lambda: world.facts(f.GpuErrorSeen) != [])
    (error,) = world.facts(f.GpuErrorSeen)
    assert (error.error, error.verdict) == ("link_errors", "ignore")
    assert error.detail == (
        "149 errors of its links, which sent again within 3600 s; link 3 has the most (150 x "
        "replay)"
    )


async def test_a_job_starts_on_a_device_only_after_the_reset_that_its_driver_asked_for(
    world: Played,
) -> None:
    world.write(DRIVER_PIPE, "simulated 0000:01:00.0 reading 1 recovery_action")
    await world.until(lambda: world.agent.sampling.latest[FIRST].recovery_action == 1)
    await world.place(world.order("early", "true"))
    refused = await world.said(f.JobRefused, "early")
    assert (
        refused.reason == f"GPU {FIRST} is not fit for a job: its driver asks for recovery action 1"
    )
    kinds = [type(fact) for commit in world.commits() for fact in commit.facts]
    assert kinds.index(f.GpuFaulted) < kinds.index(f.JobRefused)
    await world.until(lambda: world.facts(f.GpuRecovered) != [])
    assert [(fact.health, fact.verdict) for fact in world.facts(f.GpuFaulted)][-1] == (
        "resetting",
        "reset",
    )
    (evidence,) = world.state_dir.glob("evidence-GPU-n-0-*.json")
    assert json.loads(evidence.read_text())["reason"] == "recovery_action"
    await world.place(world.order("late", "true"))
    assert (await world.said(f.JobFinished, "late")).exit_code == 0


async def test_a_new_agent_says_again_what_is_wrong_and_starts_nothing_there(world: Played) -> None:
    world.kernel(0, 79)
    await world.until(lambda: len(world.facts(f.GpuFaulted)) == 1)
    await world.end()
    await world.begin()
    await world.until(lambda: len(world.facts(f.GpuFaulted)) == 2)
    await world.place(world.order("late", "true"))
    assert (await world.said(f.JobRefused, "late")).reason == "a GPU of it is away: xid 79"


async def test_lines_are_whole_whatever_comes_at_once_and_a_plain_file_is_refused(
    tmp_path: Path,
) -> None:
    heard: list[str] = []
    pipe = LinePipe(tmp_path / "pipe", heard.append)
    pipe.open(make=True)
    writer = os.open(pipe.path, os.O_WRONLY)
    for part in (b"one\ntw", b"o\n", b"three"):
        os.write(writer, part)
        await asyncio.sleep(0.01)
    os.close(writer)
    pipe.close()
    pipe.close()
    assert heard == ["one", "two"]
    (tmp_path / "plain").write_text("old\n")
    with pytest.raises(OSError, match="not permitted"):
        LinePipe(tmp_path / "plain", heard.append).open()


def test_device_policy_follows_the_settings() -> None:
    policy = policy_of(Settings(health_shadow=1, health_breaker_s=7, health_site="xid 74=reset"))
    assert (policy.shadow, policy.breaker_ns, policy.site) == (
        True,
        7_000_000_000,
        {"xid 74": "reset"},
    )
