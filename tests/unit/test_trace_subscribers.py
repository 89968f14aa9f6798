"""Who has CUPTI in a process, from the libraries that it has loaded."""

from services.node_agent.tracing.subscribers import has_torch, libraries_of, subscriber

MAPS = """\
7f00-7f01 r-xp 00000000 08:01 12 /usr/lib/libc.so.6
7f02-7f03 r--p 00000000 08:01 12 /usr/lib/libc.so.6
7f04-7f05 rw-p 00000000 00:00 0 
7f06-7f07 r-xp 00000000 08:01 13 /opt/my env/libtorch_cpu.so
7f08-7f09 rw-p 00000000 00:00 0 [heap]
"""


def test_libraries_are_named_once() -> None:
    assert libraries_of(MAPS) == ("libc.so.6", "libtorch_cpu.so")
    assert libraries_of("") == ()


def test_another_tracer_is_named_with_its_library() -> None:
    assert subscriber(["libc.so.6", "libToolsInjection64.so"]) == (
        "NVIDIA Nsight Systems (libToolsInjection64.so)"
    )
    assert subscriber(["libc.so.6", "libcupti.so.13"]) == ""


def test_pytorch_is_known_by_its_library() -> None:
    assert has_torch(libraries_of(MAPS))
    assert not has_torch(["libc.so.6"])
