"""Observations that the core receives from drivers, the kernel's log and samples."""

from typing import Any

import msgspec
import pytest

from libs.common.devices.error_catalogue import Row, Seen
from libs.common.devices.error_rows import catalogue
from libs.common.model import Gpu, GpuId
from services.node_agent.core.devices import Trouble
from services.node_agent.core.observations import DeviceErrorSeen, DeviceTroubleChanged, Observation
from services.node_agent.drivers import readings as r
from services.node_agent.drivers.readings import Event, LinkErrors, Sample
from services.node_agent.health.watch import FABRIC, NO_ROWS, Limits, Watch

ONE, TWO = GpuId("g1"), GpuId("g2")
GPUS = [
    Gpu(
        uuid=ONE,
        index=0,
        vendor="nvidia",
        model="NVIDIA H100",
        memory_bytes=80 << 30,
        pci_bus="0000:01:00.0",
    ),
    Gpu(
        uuid=TWO,
        index=1,
        vendor="nvidia",
        model="NVIDIA H100",
        memory_bytes=80 << 30,
        pci_bus="0000:02:00.0",
    ),
]
SECOND = 1_000_000_000


class Told:
    def __init__(self, **limits: int) -> None:
        self.said: list[Observation] = []
        slices = {(ONE, 5): 0b11}
        known: Any = {7: "j.1"}.get
        self.gpus = GPUS
        self.watch = Watch(
            limits=Limits(**limits),
            gpus=lambda: self.gpus,
            tell=self.said.append,
            version_of=lambda uuid: "610.1",
            key_of=known,
            slices_of=lambda *instance: slices.get(instance),
            catalogue=catalogue(),
        )

    def round(self, *events: Event, **samples: Sample) -> list[Observation]:
        self.watch.round(events, {GpuId(uuid): sample for uuid, sample in samples.items()})
        said, self.said[:] = list(self.said), []
        return said


def event(
    kind: str, number: int = 0, address: str = "0000:01:00.0", vendor: str = "nvidia"
) -> Event:
    return Event(at_ns=1, vendor=vendor, pci_bus=address, kind=kind, number=number, text="words")


def sample(at_s: int = 1, **readings: Any) -> Sample:
    return Sample(pci_bus="0000:01:00.0", at_ns=at_s * SECOND, **readings)


def erred(
    error: str,
    told: str = "driver",
    key: str = "",
    uuid: GpuId = ONE,
    action: int | None = None,
    text: str = "words",
) -> DeviceErrorSeen:
    return DeviceErrorSeen(
        uuid,
        Seen(
            vendor="nvidia",
            model="NVIDIA H100",
            driver="610.1",
            error=error,
            text=text,
            recovery=action,
        ),
        told,
        key,
    )


def test_driver_events_have_catalogue_names_and_those_of_the_kernel_log_where_both_report() -> None:
    told = Told()
    assert told.round(event(r.XID, 79)) == [erred("xid 79")]
    assert told.round(event(r.ECC), event(r.LOST)) == [erred("xid 48"), erred("xid 79")]
    assert told.round(event(r.PAGE_FAULT), event(r.RESET_BEGAN)) == [
        erred("page_fault"),
        erred("driver_reset"),
    ]
    assert told.round(event(r.OTHER, 5), event(r.THERMAL), event(r.RESET_ENDED)) == []
    assert told.round(event(r.XID, 79, "0000:09:00.0")) == []


def test_the_recovery_field_is_the_one_that_was_read_after_the_error() -> None:
    assert Told().round(
        event(r.XID, 95), g1=sample(recovery_action=4), g2=sample(recovery_action=1)
    ) == [erred("xid 95", action=4)]


def test_a_line_of_the_kernel_s_log_waits_for_the_round_and_names_the_job_of_its_process() -> None:
    told = Told()
    assert not told.watch.keep_line("11,1,1,-;NVRM: Xid (PCI:0000:02:00): 31, pid=7, MMU Fault")
    assert told.watch.keep_line("3,1,1,-;NVRM: Xid (PCI:0000:02:00): 31, pid=7, MMU Fault")
    assert told.said == []
    assert told.round() == [erred("xid 31", "kernel_log", "j.1", TWO, text="pid=7, MMU Fault")]
    assert told.round() == []


def test_last_xid_of_each_device_is_known_from_any_source() -> None:
    told = Told()
    told.round(event(r.XID, 31), event(r.XID, 94), event(r.LOST))
    told.watch.keep_line(
        "3,1,1,-;NVRM: Xid (PCI:0000:02:00): 79, pid=7, GPU has fallen off the bus."
    )
    told.round(event(r.PAGE_FAULT))
    assert told.watch.xids == {ONE: 94, TWO: 79}


def test_a_silent_driver_takes_its_device_or_its_vendor_out_until_it_answers() -> None:
    told = Told()
    wedged = Trouble("offline", "words", source="driver")
    assert told.round(event(r.WEDGED)) == [DeviceTroubleChanged(ONE, r.WEDGED, wedged)]
    assert told.round(event(r.ANSWERS)) == [
        DeviceTroubleChanged(ONE, r.WEDGED, None),
        DeviceTroubleChanged(ONE, r.LOST, None),
    ]
    assert told.round(event(r.WEDGED, address="")) == [
        DeviceTroubleChanged(ONE, r.WEDGED, wedged),
        DeviceTroubleChanged(TWO, r.WEDGED, wedged),
    ]
    assert told.round(event(r.WEDGED, address="", vendor="amd")) == []


def test_a_hot_device_rests_from_one_mark_until_it_is_below_another() -> None:
    told = Told()
    assert told.round(g1=sample(temperature_c=84)) == []
    hot = Trouble("offline", "85 C; from 85 C on", source="driver")
    assert told.round(g1=sample(temperature_c=85)) == [DeviceTroubleChanged(ONE, "thermal", hot)]
    assert told.round(g1=sample(temperature_c=90)) == []
    assert told.round(g1=sample(temperature_c=80)) == []
    assert told.round(g1=sample(temperature_c=79)) == [DeviceTroubleChanged(ONE, "thermal", None)]


def test_a_pending_remap_asks_for_a_reset_and_a_failed_one_for_repair() -> None:
    (pending, failed) = Told().round(g1=sample(remap_pending=1, remap_failed=1))
    assert (
        isinstance(pending, DeviceTroubleChanged)
        and pending.trouble is not None
        and isinstance(failed, DeviceTroubleChanged)
        and failed.trouble is not None
    )
    assert (pending.reason, pending.trouble.health, pending.trouble.verdict) == (
        "remap_pending",
        "degraded",
        "drain_then_reset",
    )
    assert (failed.reason, failed.trouble.health, failed.trouble.verdict) == (
        "remap_failed",
        "offline",
        "replace",
    )
    assert Told().round(g1=sample(remap_pending=0, remap_failed=0)) == []


def test_a_fabric_that_is_down_leaves_its_device_to_jobs_with_one_device() -> None:
    told = Told()
    assert told.round(g1=sample(fabric="")) == []
    down = Trouble("degraded", "it is not registered", source="driver", alone=True)
    said = [DeviceTroubleChanged(ONE, FABRIC, down)]
    assert told.round(g1=sample(fabric="it is not registered")) == said
    assert told.round(g1=sample(fabric="")) == [DeviceTroubleChanged(ONE, FABRIC, None)]


def test_too_many_corrected_errors_in_a_window_are_reported_once() -> None:
    told = Told(corrected_max=10, corrected_window_s=60)
    few = [(1, 100), (30, 105), (61, 110), (61, 110), (62, 111), (100, 115)]
    assert [told.round(g1=sample(at_s, ecc_corrected=count)) for at_s, count in few] == [[]] * 6
    (said,) = told.round(g1=sample(110, ecc_corrected=125))
    assert isinstance(said, DeviceErrorSeen) and (said.error.error, said.uuid) == ("corrected", ONE)
    assert told.round(g1=sample(111, ecc_corrected=130)) == []
    assert told.round(g1=sample(112, ecc_corrected=3)) == []
    assert told.round(g1=sample(113, ecc_corrected=14)) == []
    assert told.round(g1=sample(169, ecc_corrected=14)) == []
    (said,) = told.round(g1=sample(170, ecc_corrected=14))
    assert (
        isinstance(said, DeviceErrorSeen) and said.error.text == "11 corrected errors within 60 s"
    )
    assert told.round(g1=sample(171, ecc_corrected=99)) == []


def test_link_replays_are_counted_separately_and_per_device() -> None:
    told = Told(corrected_max=1, link_errors_max=10, corrected_window_s=60)
    assert (
        told.round(g1=sample(1, link_errors=5, pcie_replays=0), g2=sample(1, link_errors=0)) == []
    )
    said = told.round(g1=sample(2, link_errors=16, pcie_replays=11), g2=sample(2, link_errors=10))
    assert [(one.uuid, one.error.error) for one in said if isinstance(one, DeviceErrorSeen)] == [
        (ONE, "link_errors"),
        (ONE, "pcie_replays"),
    ]
    assert [
        one.uuid
        for one in told.round(g2=sample(3, link_errors=11))
        if isinstance(one, DeviceErrorSeen)
    ] == [TWO]


def test_missing_readings_report_nothing() -> None:
    assert Told().round(g1=sample()) == []


@pytest.mark.attack
def test_an_error_of_a_mig_instance_comes_with_the_slices_of_that_instance() -> None:
    told = Told()
    assert told.watch.keep_line("3,1,1,-;NVRM: Xid (PCI:0000:01:00 GPU-I:05): 94, pid=7, Contained")
    (said,) = told.round()
    assert said == msgspec.structs.replace(
        erred("xid 94", "kernel_log", "j.1", text="MIG instance 5: pid=7, Contained"), slices=0b11
    )
    found = msgspec.structs.replace(event(r.XID, 94), instance=5)
    assert [one.slices for one in told.round(found) if isinstance(one, DeviceErrorSeen)] == [0b11]
    (unknown,) = told.round(msgspec.structs.replace(event(r.XID, 94), instance=6))
    assert isinstance(unknown, DeviceErrorSeen) and unknown.slices is None


@pytest.mark.attack
def test_an_error_of_a_switch_is_reported_for_each_device_on_its_fabric() -> None:
    told = Told()
    assert told.watch.keep_line(
        "3,1,1,-;nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 24007, Fatal, Link 30 timeout"
    )
    text = "nvidia-nvswitch0 (0000:c3:00.0): Fatal, Link 30 timeout"
    fatal = Seen(
        vendor="nvidia",
        model="NVIDIA H100",
        driver="610.1",
        error="sxid 24007",
        text=text,
        kind="sxid fatal",
    )
    said = told.round(g1=sample(recovery_action=0))
    assert said == [
        DeviceErrorSeen(ONE, fatal, "kernel_log"),
        DeviceErrorSeen(TWO, fatal, "kernel_log"),
    ]
    other = Gpu(
        uuid=GpuId("a1"),
        index=2,
        vendor="amd",
        model="MI300X",
        memory_bytes=192 << 30,
        pci_bus="0000:03:00.0",
        links="x",
    )
    told.gpus = [msgspec.structs.replace(GPUS[0], links="links-0"), GPUS[1], other]
    told.watch.keep_line(
        "3,1,1,-;nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 24007, Fatal, Link 30 timeout"
    )
    assert told.round() == [DeviceErrorSeen(ONE, fatal, "kernel_log")]


@pytest.mark.attack
def test_rising_uncorrected_errors_are_reported_by_the_catalogues_limit() -> None:
    told = Told(corrected_max=10)
    assert told.round(g1=sample(1, ecc_uncorrected=3), g2=sample(1, ecc_uncorrected=0)) == []
    assert told.round(g1=sample(2, ecc_uncorrected=3)) == []
    text = "1 uncorrected errors within 3600 s"
    assert told.round(g1=sample(3, ecc_uncorrected=4)) == [erred("uncorrected", text=text)]
    told.watch.catalogue = msgspec.structs.replace(
        catalogue(), rows=(Row("", ("uncorrected",), "", "", most=2, window_s=60),)
    )
    told.watch.rows.clear()
    assert told.round(g2=sample(4, ecc_uncorrected=2)) == []
    assert [
        one.uuid
        for one in told.round(g2=sample(5, ecc_uncorrected=3))
        if isinstance(one, DeviceErrorSeen)
    ] == [TWO]
    told.watch.catalogue = NO_ROWS
    told.watch.rows.clear()
    assert told.round(g2=sample(6, ecc_uncorrected=99, sram_threshold=1)) == []


@pytest.mark.attack
def test_exceeded_sram_threshold_is_reported_once_until_it_clears() -> None:
    told = Told()
    assert told.round(g1=sample(sram_threshold=0, sram_uncorrected=0)) == []
    (said,) = told.round(g1=sample(sram_threshold=1, sram_uncorrected=5))
    assert isinstance(said, DeviceErrorSeen) and (said.error.error, said.uuid) == (
        "sram_threshold",
        ONE,
    )
    assert said.error.text == "its driver says so; uncorrectable SRAM errors since it was loaded: 5"
    assert told.round(g1=sample(sram_threshold=1)) == []
    assert told.round(g1=sample(sram_threshold=0)) == [
        DeviceTroubleChanged(ONE, "sram_threshold", None)
    ]


@pytest.mark.attack
def test_link_errors_name_the_link_that_has_most() -> None:
    told = Told(link_errors_max=10)
    links = (LinkErrors(0, "crc", 2), LinkErrors(3, "replay", 40))
    assert told.round(g1=sample(1, link_errors=5)) == []
    (said,) = told.round(g1=sample(2, link_errors=42, link_counts=links))
    assert isinstance(said, DeviceErrorSeen)
    assert said.error.text == (
        "37 errors of its links, which sent again within 3600 s; link 3 has the most (40 x replay)"
    )
    assert told.round(g2=sample(2, link_errors=1, link_counts=())) == []


def test_sample_of_a_device_that_left_the_node_is_ignored() -> None:
    assert Told().round(gone=sample(ecc_uncorrected=1)) == []
