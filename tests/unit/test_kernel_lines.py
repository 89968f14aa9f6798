"""Lines of the kernel's log: their meaning for a device, and proof that the kernel wrote them."""

import pytest

from services.node_agent.health.kernel_lines import Line, is_at, parse


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            (
                "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen "
                "off the bus."
            ),
            Line(
                "nvidia",
                "0000:3b:00",
                "xid 79",
                "pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
            ),
        ),
        (
            "NVRM: Xid (PCI:0000:C1:00): 31, pid=4242, name=python, Ch 00000008, MMU Fault",
            Line(
                vendor="nvidia",
                pci_bus="0000:c1:00",
                error="xid 31",
                text="pid=4242, name=python, Ch 00000008, MMU Fault",
                pid=4242,
            ),
        ),
        pytest.param(
            (
                "NVRM: Xid (PCI:0000:01:00 GPU-I:05): 94, pid=4242, name=python, Contained "
                "memory error"
            ),
            Line(
                vendor="nvidia",
                pci_bus="0000:01:00",
                error="xid 94",
                text="pid=4242, name=python, Contained memory error",
                pid=4242,
                instance=5,
            ),
            marks=pytest.mark.attack,
            id="xid-of-a-mig-instance",
        ),
        pytest.param(
            "NVRM: Xid (PCI:0000:01:00 GPU-I:11 GPU-CI:00): 43, pid=7, name=python, Ch 00000008",
            Line(
                vendor="nvidia",
                pci_bus="0000:01:00",
                error="xid 43",
                text="pid=7, name=python, Ch 00000008",
                pid=7,
                instance=11,
            ),
            marks=pytest.mark.attack,
            id="xid-of-a-compute-instance",
        ),
        pytest.param(
            (
                "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 32 egress "
                "non-posted PRIV error (First)"
            ),
            Line(
                vendor="nvidia",
                pci_bus="0000:c1:00.0",
                error="sxid 12028",
                text=(
                    "nvidia-nvswitch3 (0000:c1:00.0): Non-fatal, Link 32 egress non-posted PRIV "
                    "error (First)"
                ),
                kind="sxid non-fatal",
            ),
            marks=pytest.mark.attack,
            id="non-fatal-sxid",
        ),
        pytest.param(
            (
                "nvidia-nvswitch0: SXid (PCI:0000:C3:00.0): 24007, Fatal, Link 30 sourcetrack "
                "timeout error"
            ),
            Line(
                vendor="nvidia",
                pci_bus="0000:c3:00.0",
                error="sxid 24007",
                text="nvidia-nvswitch0 (0000:c3:00.0): Fatal, Link 30 sourcetrack timeout error",
                kind="sxid fatal",
            ),
            marks=pytest.mark.attack,
            id="fatal-sxid",
        ),
        (
            "nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 20034, Fatal",
            Line(
                "nvidia",
                "0000:c3:00.0",
                "sxid 20034",
                "nvidia-nvswitch0 (0000:c3:00.0): Fatal",
                kind="sxid fatal",
            ),
        ),
        ("NVRM: Xid (PCI:0000:3b:00): 154", Line("nvidia", "0000:3b:00", "xid 154", "")),
        (
            (
                "amdgpu 0000:43:00.0: amdgpu: socket: 0, die: 0 1 uncorrectable hardware errors "
                "detected in total in umc block"
            ),
            Line(
                *("amd", "0000:43:00.0", "uncorrectable"),
                (
                    "amdgpu 0000:43:00.0: amdgpu: socket: 0, die: 0 1 uncorrectable hardware "
                    "errors detected in total in umc block"
                ),
            ),
        ),
        (
            "amdgpu 0000:c1:00.0: amdgpu: [gfxhub0] no-retry page fault (src_id:0 ring:24)",
            Line(
                "amd",
                "0000:c1:00.0",
                "page_fault",
                "amdgpu 0000:c1:00.0: amdgpu: [gfxhub0] no-retry page fault (src_id:0 ring:24)",
            ),
        ),
        (
            "amdgpu 0000:c1:00.0: amdgpu: GPU reset begin!",
            Line(
                "amd",
                "0000:c1:00.0",
                "driver_reset",
                "amdgpu 0000:c1:00.0: amdgpu: GPU reset begin!",
            ),
        ),
        (
            (
                "xe 0000:03:00.0: [drm] *ERROR* CRITICAL: Xe has declared device 0000:03:00.0 as "
                "wedged."
            ),
            Line(
                "intel",
                "0000:03:00.0",
                "blocked",
                (
                    "xe 0000:03:00.0: [drm] *ERROR* CRITICAL: Xe has declared device "
                    "0000:03:00.0 as wedged."
                ),
            ),
        ),
        (
            "i915 0000:03:00.0: [drm] GPU HANG: ecode 12:1:85dffffb",
            Line(
                "intel",
                "0000:03:00.0",
                "hang",
                "i915 0000:03:00.0: [drm] GPU HANG: ecode 12:1:85dffffb",
            ),
        ),
    ],
)
def test_each_driver_s_words_are_read(text: str, line: Line) -> None:
    assert parse(f"3,1234,5678,-;{text}") == line


@pytest.mark.parametrize(
    "record",
    [
        "11,1,2,-;NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.",
        "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.",
        "x,1,2,-;NVRM: Xid (PCI:0000:3b:00): 79",
        " SUBSYSTEM=pci",
        (
            "6,1,2,-;amdgpu 0000:43:00.0: amdgpu: 1 correctable hardware errors detected in "
            "total in gfx block"
        ),
        (
            "3,1,2,-;nvidia-nvswitch2: SXid (PCI:0000:c4:00.0): 10002, Severity 5 Engine "
            "instance 00 Sub-engine instance 00"
        ),
        "3,1,2,-;nvidia-nvswitch2: SXid (PCI:0000:c4:00.0): 10002, Data {0x00000001, 0x00000000}",
        "6,1,2,-;usb 1-1: new device",
        "",
    ],
)
def test_lines_not_from_the_kernel_or_without_a_device_error_are_ignored(
    record: str,
) -> None:
    assert parse(record) is None


@pytest.mark.parametrize(
    "text",
    [
        (
            "overlayfs: failed to resolve 'NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off "
            "the bus': -2"
        ),
        "overlayfs: failed to resolve 'amdgpu 0000:43:00.0: amdgpu: GPU reset begin!': -2",
        (
            "overlayfs: failed to resolve 'xe 0000:03:00.0: [drm] *ERROR* CRITICAL: Xe has "
            "declared device 0000:03:00.0 as wedged.': -2"
        ),
        (
            "overlayfs: failed to resolve 'nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 24007, "
            "Fatal, Link 30': -2"
        ),
        "GPU reset begin[4711]: segfault at 0 ip 0 sp 0 error 4",
        (
            "amdgpu 0000:43:00.0: amdgpu:  Process GPU reset begin pid 4711 thread GPU reset "
            "begin pid 4711"
        ),
        "amdgpu 0000:43:00.0: amdgpu:  for process page fault (x) pid 4711",
        "i915 0000:03:00.0: [drm] Resetting chip for stopped heartbeat in GPU HANG [4711]",
    ],
)
def test_user_text_that_the_kernel_repeats_is_ignored(text: str) -> None:
    assert parse(f"3,1,2,-;{text}") is None


@pytest.mark.parametrize(
    ("pci_bus", "told", "same"),
    [
        ("0000:3b:00.0", "0000:3b:00", True),
        ("00000000:3B:00.0", "0000:3b:00", True),
        ("0000:3b:00.0", "0000:3b:00.0", True),
        ("0000:3b:00.0", "0001:3b:00", False),
        ("0000:3b:00.0", "0000:3c:00", False),
        ("", "0000:3c:00", False),
    ],
)
def test_a_device_is_known_by_its_address_however_it_is_written(
    pci_bus: str, told: str, same: bool
) -> None:
    assert is_at(pci_bus, told) is same
