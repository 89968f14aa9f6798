"""A node's metrics: what is lacking has no line, DCGM's names are for NVIDIA alone, and the series
of jobs are bounded.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec.structs import fields, replace
from prometheus_client.parser import text_string_to_metric_families

from libs.common.messages import StartOrder
from libs.common.model import AttemptRef, Gpu, GpuHold, GpuId, JobId, JobSpec
from services.node_agent.core import state as s
from services.node_agent.core.devices import Devices, Trouble, add_trouble
from services.node_agent.drivers.readings import Lacking, LinkErrors, Process, Sample
from services.node_agent.metrics.exposition import (
    BY_LINK,
    DCGM,
    ERRORS,
    JOBS_MAX,
    OURS,
    SHARES,
    THROTTLED,
    TROUBLES,
    UP,
    XID,
    JobShare,
    health,
    job_shares,
    text,
)

CARD = Gpu(
    uuid=GpuId("GPU-1"),
    index=0,
    vendor="nvidia",
    model='H100 "80GB"',
    memory_bytes=80 << 30,
    pci_bus="0000:01:00.0",
)
OTHER = Gpu(
    uuid=GpuId("GPU-2"),
    index=1,
    vendor="amd",
    model="MI300X",
    memory_bytes=192 << 30,
    pci_bus="0000:02:00.0",
)
NUMBERS = {
    field.name: 1_000
    for field in fields(Sample)
    if field.name not in ("pci_bus", "simulated", "throttled", "processes", "link_counts")
}
FULL = Sample(pci_bus=CARD.pci_bus, **NUMBERS, throttled=("power_cap",), processes=(Process(7, 1),))  # type: ignore[arg-type]
BARE = Sample(pci_bus=OTHER.pci_bus, at_ns=2 * 10**9, busy_percent=25)

Found = dict[tuple[str, str], float]


def found(
    samples: Mapping[GpuId, Sample],
    jobs: Mapping[GpuId, Sequence[JobShare]] | None = None,
    gpus: Sequence[Gpu] = (CARD, OTHER),
) -> Found:
    """(name, UUID) -> value."""
    families = text_string_to_metric_families(text("n1", gpus, samples, jobs or {}))
    return {
        (named(one.name), one.labels["UUID"]): one.value
        for family in families
        for one in family.samples
    }


def named(name: str) -> str:
    """The parser gives every counter the ending of OpenMetrics."""
    return name.removesuffix("_total") if name.startswith("DCGM") else name


def labels(jobs: Mapping[GpuId, Sequence[JobShare]], name: str) -> list[dict[str, str]]:
    families = text_string_to_metric_families(
        text(
            node="n1", gpus=[CARD], samples={CARD.uuid: FULL}, jobs=jobs, nvidia_version="580.65.06"
        )
    )
    return [one.labels for family in families for one in family.samples if one.name == name]


def test_card_readings_are_exported_under_both_names_in_their_units() -> None:
    values = found({CARD.uuid: FULL})
    assert (
        values["muster_gpu_busy_ratio", CARD.uuid] == 10
        and values["DCGM_FI_DEV_GPU_UTIL", CARD.uuid] == 1_000
    )
    assert (
        values["muster_gpu_power_watts", CARD.uuid]
        == values["DCGM_FI_DEV_POWER_USAGE", CARD.uuid]
        == 1
    )
    assert (
        values["muster_gpu_clock_hertz", CARD.uuid] == 10**9
        and values["DCGM_FI_DEV_SM_CLOCK", CARD.uuid] == 1_000
    )
    assert values["muster_gpu_energy_joules_total", CARD.uuid] == 1
    assert values["DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", CARD.uuid] == 1_000
    assert (
        values["DCGM_FI_DEV_XID_ERRORS", CARD.uuid] == 0
        and values["muster_gpu_processes", CARD.uuid] == 1
    )
    assert {name for name, _ in values} >= {each.name for each in (*OURS, *DCGM)}


def test_dcgm_s_names_are_for_nvidia_alone() -> None:
    values = found({CARD.uuid: FULL, OTHER.uuid: replace(FULL, pci_bus=OTHER.pci_bus)})
    assert {uuid for name, uuid in values if name.startswith("DCGM")} == {CARD.uuid}
    assert ("muster_gpu_power_watts", OTHER.uuid) in values


def test_missing_reading_has_no_line_and_a_silent_device_is_not_up() -> None:
    values = found({OTHER.uuid: BARE})
    of_it = {name: value for (name, uuid), value in values.items() if uuid == OTHER.uuid}
    assert of_it == {
        "muster_gpu_up": 1,
        "muster_gpu_sampled_seconds": 2,
        "muster_gpu_busy_ratio": 0.25,
    }
    assert {name: value for (name, uuid), value in values.items() if uuid == CARD.uuid} == {
        "muster_gpu_up": 0,
        XID[0]: 0,
    }


def test_free_memory_is_missing_unless_total_and_used_are_known() -> None:
    for lacking in ({"memory_total_bytes": Lacking("no")}, {"memory_used_bytes": Lacking("no")}):
        assert ("DCGM_FI_DEV_FB_FREE", CARD.uuid) not in found(
            {CARD.uuid: replace(FULL, **lacking)}
        )


def test_reserved_memory_is_not_free() -> None:
    sizes = {
        "memory_total_bytes": 100 << 20,
        "memory_used_bytes": 10 << 20,
        "memory_reserved_bytes": 30 << 20,
    }
    values = found({CARD.uuid: replace(FULL, **sizes)})
    assert [
        values[f"DCGM_FI_DEV_FB_{name}", CARD.uuid] for name in ("FREE", "USED", "RESERVED")
    ] == [60, 10, 30]
    without = found({CARD.uuid: replace(FULL, **{**sizes, "memory_reserved_bytes": Lacking("no")})})
    assert (
        without["DCGM_FI_DEV_FB_FREE", CARD.uuid] == 90
        and ("DCGM_FI_DEV_FB_RESERVED", CARD.uuid) not in without
    )


def test_the_last_xid_shows_for_a_device_that_does_not_answer_any_more() -> None:
    written = text(
        node="n1",
        gpus=[CARD, OTHER],
        samples={OTHER.uuid: BARE},
        jobs={},
        nvidia_version="580.65.06",
        xids={CARD.uuid: 79},
    )
    (line,) = [line for line in written.splitlines() if line.startswith("DCGM")]
    assert line.startswith("DCGM_FI_DEV_XID_ERRORS{") and line.endswith(
        ',DCGM_FI_DRIVER_VERSION="580.65.06"} 79'
    )


def test_a_device_is_named_as_nvidia_s_exporter_names_it() -> None:
    (one,) = labels({}, "DCGM_FI_DEV_GPU_TEMP")
    assert one == {
        "gpu": "0",
        "UUID": "GPU-1",
        "pci_bus_id": "00000000:01:00.0",
        "device": "nvidia0",
        "modelName": 'H100 "80GB"',
        "vendor": "nvidia",
        "Hostname": "n1",
        "DCGM_FI_DRIVER_VERSION": "580.65.06",
    }
    assert "DCGM_FI_DRIVER_VERSION" not in labels({}, "muster_gpu_up")[0]


def test_each_reason_for_slow_clocks_is_a_series() -> None:
    assert [one["reason"] for one in labels({}, "muster_gpu_throttled")] == ["power_cap"]


def test_a_job_that_has_a_device_alone_is_named_on_all_that_it_says() -> None:
    alone = {CARD.uuid: [JobShare(JobId("j1"), "blue", 100)]}
    (one,) = labels(alone, "DCGM_FI_DEV_GPU_UTIL")
    assert (one["hpc_job"], one["tenant"]) == ("j1", "blue")
    assert found({CARD.uuid: FULL}, alone)["muster_gpu_job_share", CARD.uuid] == 1


def test_jobs_that_share_a_device_have_their_shares_and_no_reading_of_it_is_theirs() -> None:
    two = {CARD.uuid: [JobShare(JobId("j1"), "blue", 25), JobShare(JobId("j2"), "blue", 50)]}
    assert "hpc_job" not in labels(two, "DCGM_FI_DEV_GPU_UTIL")[0]
    assert [one["hpc_job"] for one in labels(two, "muster_gpu_job_share")] == ["j1", "j2"]


def test_of_many_jobs_the_last_are_counted_together() -> None:
    many = {CARD.uuid: [JobShare(JobId(f"j{number}"), "blue", 2) for number in range(JOBS_MAX + 3)]}
    names = [one["hpc_job"] for one in labels(many, "muster_gpu_job_share")]
    assert len(names) == JOBS_MAX + 1 and names[-1] == "other"
    assert found({CARD.uuid: FULL}, many)["muster_gpu_job_share", CARD.uuid] == 0.06


def test_each_mig_instance_has_a_row_with_its_job_and_slices() -> None:
    jobs = [
        JobShare(JobId("j1"), "blue", 25, "2g.20gb", slices=0b1100),
        JobShare(JobId("j2"), "red", 14, "1g.10gb", slices=0b1),
    ]
    rows = labels({CARD.uuid: jobs}, "muster_gpu_instance_memory_slices")
    assert [(one["GPU_I_PROFILE"], one["first_slice"], one["hpc_job"]) for one in rows] == [
        ("2g.20gb", "2", "j1"),
        ("1g.10gb", "0", "j2"),
    ]
    whole = {CARD.uuid: [JobShare(JobId("j1"), "blue", 100)]}
    assert labels(whole, "muster_gpu_instance_memory_slices") == []


def test_adopted_job_without_an_order_has_no_share_metric() -> None:
    gpus = (GpuHold(OTHER.uuid), GpuHold(CARD.uuid, 30))
    order = StartOrder(
        job_id=JobId("j1"),
        attempt=1,
        incarnation=1,
        seq=1,
        rank=0,
        gpus=gpus,
        spec=JobSpec(command=("true",)),
        tenant="blue",
        user="",
        peers=(),
        port=0,
    )
    known = s.Attempt(ref=AttemptRef(JobId("j1"), 1), phase=s.LAUNCHED, order=order)
    unknown = s.Attempt(ref=AttemptRef(JobId("j2"), 1), phase=s.LAUNCHED)
    assert job_shares({CARD.uuid: [known, unknown]}) == {
        CARD.uuid: [JobShare(JobId("j1"), "blue", 30)]
    }


def test_every_name_stands_on_the_page() -> None:
    page = (Path(__file__).parents[2] / "docs" / "howto" / "watch-devices.md").read_text()
    assert [
        name
        for name in (XID[0], *(each.name for each in (*OURS, *DCGM)))
        if f"`{name}`" not in page
    ] == []
    assert all(name in page for name in (UP[0], THROTTLED[0], SHARES[0]))


def test_no_device_is_an_empty_answer() -> None:
    assert text("n1", [], {}, {}) == ""


def test_pci_address_of_another_vendor_stays_as_its_driver_writes_it() -> None:
    written = text("n1", [OTHER], {}, {})
    assert 'pci_bus_id="0000:02:00.0"' in written


def test_errors_and_troubles_of_a_device_have_a_series_each() -> None:
    devices = Devices(counts={CARD.uuid: {"xid 94": 2}})
    add_trouble(
        devices, CARD.uuid, "sxid 24007", Trouble("degraded", verdict="reboot_node", alone=True)
    )
    families = text_string_to_metric_families(
        text("n1", [CARD, OTHER], {}, {}, healths=health(devices))
    )
    series = [
        one for family in families for one in family.samples if one.name in (ERRORS[0], TROUBLES[0])
    ]
    assert [(one.name, one.labels["UUID"], one.value) for one in series] == [
        ("muster_gpu_errors_total", CARD.uuid, 2),
        ("muster_gpu_trouble", CARD.uuid, 1),
    ]
    assert series[0].labels["error"] == "xid 94"
    assert (series[1].labels["reason"], series[1].labels["health"]) == ("sxid 24007", "degraded")


def test_errors_of_links_have_a_series_for_each_link_and_kind() -> None:
    sample = replace(FULL, link_counts=(LinkErrors(3, "replay", 40),))
    families = text_string_to_metric_families(text("n1", [CARD], {CARD.uuid: sample}, {}))
    (series,) = [one for family in families for one in family.samples if one.name == BY_LINK[0]]
    assert (series.labels["link"], series.labels["kind"], series.value) == ("3", "replay", 40)
