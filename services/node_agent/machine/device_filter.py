"""The device filter of a control group (cgroup v2): a BPF program that the kernel asks at each open
and mknod in the group.

It denies the named devices by major and minor number, whatever their path, and allows all others.
It lives with the group, without any process, and replaces the one before it. It is assembled here:
four instructions per device. Standard library only. Tests: tests/integration/test_device_filter.py.
"""

import ctypes
import hashlib
import os
import platform
import struct
from collections.abc import Iterable
from typing import Final

# Constants of <linux/bpf.h>.
SYSCALL: Final = {"x86_64": 321, "aarch64": 280}
PROG_LOAD, PROG_ATTACH = 5, 8
PROG_TYPE_CGROUP_DEVICE, CGROUP_DEVICE = 15, 6
CHARACTER: Final = 2
TYPE_MASK: Final = 0xFFFF
ATTRIBUTES: Final = struct.Struct("=IIQQIIQII16s")
ATTACHMENT: Final = struct.Struct("=IIII")
INSTRUCTION: Final = struct.Struct("=BBhi")
DIGITS: Final = 16
LOAD_WORD, AND, UNLESS_EQUAL, SET, EXIT = 0x61, 0x57, 0x55, 0xB7, 0x95

_libc = ctypes.CDLL(None, use_errno=True)


def digest_of(denied: Iterable[Iterable[int]]) -> str:
    """Return a short text that is the same for the same denied devices."""
    text = ",".join(f"{major}:{minor}" for major, minor in sorted(map(tuple, denied)))
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


def attach(group: str, denied: Iterable[tuple[int, int]]) -> None:
    """Attach a filter to a group. Raises OSError if the kernel refuses."""
    program = load(denied)
    folder = os.open(group, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _bpf(PROG_ATTACH, ATTACHMENT.pack(folder, program, CGROUP_DEVICE, 0))
    finally:
        os.close(folder)
        os.close(program)


def load(denied: Iterable[tuple[int, int]]) -> int:
    """Load a program and return its descriptor. Raises OSError."""
    code = assemble(denied)
    text, licence = (
        ctypes.create_string_buffer(code, len(code)),
        ctypes.create_string_buffer(b"GPL"),
    )
    count = len(code) // INSTRUCTION.size
    where = ctypes.addressof(text), ctypes.addressof(licence)
    return _bpf(
        PROG_LOAD, ATTRIBUTES.pack(PROG_TYPE_CGROUP_DEVICE, count, *where, 0, 0, 0, 0, 0, b"muster")
    )


def assemble(denied: Iterable[tuple[int, int]]) -> bytes:
    """Return the program. The kernel passes access and type, major and minor as three words; 0
    denies.
    """
    checks = []
    for major, minor in denied:
        checks += [
            _code(operation=UNLESS_EQUAL, target=3, source=0, offset=3, value=major),
            _code(operation=UNLESS_EQUAL, target=4, source=0, offset=2, value=minor),
            _code(operation=SET, target=0, source=0, offset=0, value=0),
            _code(EXIT),
        ]
    words = [
        _code(LOAD_WORD, 2, 1, 0),
        _code(LOAD_WORD, 3, 1, 4),
        _code(LOAD_WORD, 4, 1, 8),
        _code(operation=AND, target=2, source=0, offset=0, value=TYPE_MASK),
    ]
    return b"".join(
        [
            *words,
            _code(operation=UNLESS_EQUAL, target=2, source=0, offset=len(checks), value=CHARACTER),
            *checks,
            _code(operation=SET, target=0, source=0, offset=0, value=1),
            _code(EXIT),
        ]
    )


def _code(
    operation: int, target: int = 0, source: int = 0, offset: int = 0, value: int = 0
) -> bytes:
    return INSTRUCTION.pack(operation, source << 4 | target, offset, value)


def _bpf(command: int, attributes: bytes) -> int:
    number = SYSCALL.get(platform.machine())
    if number is None:
        raise OSError(0, f"no bpf(2) is known for {platform.machine()}", "bpf")
    given = ctypes.create_string_buffer(attributes, len(attributes))
    result = _libc.syscall(number, command, given, len(attributes))
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), "bpf")
    return int(result)
