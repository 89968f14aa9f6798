"""Structures, constants and the number of arguments, as the vendors' own headers have them.

A test is skipped where its header is not installed (CUDA's toolkit, ROCm, level-zero-dev); the
compiler's CPATH may name other places.
"""

import ctypes
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest

from libs.job.device import cuda, hip, level_zero
from libs.job.device import level_zero_layouts as ze
from libs.job.memory import cuda_driver, level_zero_driver

PLACES: Final = ("-I/usr/local/cuda/include", "-I/opt/rocm/include", "-D__HIP_PLATFORM_AMD__")
HEADERS: Final = {
    "cuda": "cuda.h",
    "hip": "hip/hip_runtime_api.h",
    "level_zero": "level_zero/ze_api.h",
}
ALLOCATION: Final = {
    "type": "type",
    "handle_types": "requestedHandleTypes",
    "location": "location",
    "win32": "win32HandleMetaData",
    "flags": "allocFlags",
}
ZE_HEAD: Final = {"stype": "stype", "next": "pNext"}
# Our structure, the header's, and the header's names of the fields.
STRUCTURES: Final[dict[str, list[tuple[Any, str, dict[str, str]]]]] = {
    "cuda": [
        (cuda.AllocationProperties, "CUmemAllocationProp", ALLOCATION),
        (cuda.AccessDescription, "CUmemAccessDesc", {"location": "location", "flags": "flags"}),
    ],
    "hip": [
        (
            cuda.AllocationProperties,
            "hipMemAllocationProp",
            {**ALLOCATION, "handle_types": "requestedHandleType"},
        ),
        (cuda.AccessDescription, "hipMemAccessDesc", {"location": "location", "flags": "flags"}),
    ],
    "level_zero": [
        (
            ze.DeviceProperties,
            "ze_device_properties_t",
            {**ZE_HEAD, "type": "type", "uuid": "uuid", "name": "name"},
        ),
        (
            ze.DeviceMemoryProperties,
            "ze_device_memory_properties_t",
            {**ZE_HEAD, "total_size": "totalSize", "name": "name"},
        ),
        (
            ze.PciProperties,
            "ze_pci_ext_properties_t",
            {**ZE_HEAD, "domain": "address.domain", "generation": "maxSpeed"},
        ),
        (ze.ContextDescription, "ze_context_desc_t", {**ZE_HEAD, "flags": "flags"}),
        (
            ze.QueueDescription,
            "ze_command_queue_desc_t",
            {**ZE_HEAD, "ordinal": "ordinal", "mode": "mode", "priority": "priority"},
        ),
        (ze.ExternalMemory, "ze_external_memory_import_fd_t", {**ZE_HEAD, "fd": "fd"}),
        (ze.ExternalMemory, "ze_external_memory_export_fd_t", {"flags": "flags", "fd": "fd"}),
        (ze.ExternalMemory, "ze_external_memory_export_desc_t", {**ZE_HEAD, "flags": "flags"}),
        (ze.PhysicalDescription, "ze_physical_mem_desc_t", {"flags": "flags", "size": "size"}),
        (ze.PhysicalProperties, "ze_physical_mem_properties_t", {"id": "id", "size": "size"}),
    ],
}
CONSTANTS: Final = {
    "cuda": {
        "CU_LIMIT_STACK_SIZE": cuda.LIMITS[cuda.Limit.STACK],
        "CU_LIMIT_MALLOC_HEAP_SIZE": cuda.LIMITS[cuda.Limit.HEAP],
        "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED": cuda.PEER_ALREADY,
        "CU_MEM_ALLOCATION_TYPE_PINNED": cuda_driver.PINNED,
        "CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR": cuda_driver.POSIX_DESCRIPTOR,
        "CU_MEM_LOCATION_TYPE_DEVICE": cuda_driver.ON_DEVICE,
        "CU_MEM_ALLOC_GRANULARITY_MINIMUM": cuda_driver.MINIMUM,
        "CU_MEM_ACCESS_FLAGS_PROT_READWRITE": cuda_driver.READ_WRITE,
        "CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED": cuda_driver.VIRTUAL_MEMORY,
        "CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED": cuda_driver.POSIX_EXPORT,
        "CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED": (
            cuda_driver.RDMA_WITH_VIRTUAL_MEMORY
        ),
    },
    "hip": {
        "hipLimitStackSize": hip.LIMITS[hip.Limit.STACK],
        "hipLimitMallocHeapSize": hip.LIMITS[hip.Limit.HEAP],
        "hipErrorPeerAccessAlreadyEnabled": 704,
        "hipMemAllocationTypePinned": cuda_driver.PINNED,
        "hipMemHandleTypePosixFileDescriptor": cuda_driver.POSIX_DESCRIPTOR,
        "hipMemLocationTypeDevice": cuda_driver.ON_DEVICE,
        "hipMemAllocationGranularityMinimum": cuda_driver.MINIMUM,
        "hipMemAccessFlagsProtReadWrite": cuda_driver.READ_WRITE,
    },
    "level_zero": {
        "ZE_DEVICE_TYPE_GPU": level_zero.GPU,
        "ZE_INIT_FLAG_GPU_ONLY": level_zero.GPU_ONLY,
        "ZE_COMMAND_QUEUE_MODE_SYNCHRONOUS": level_zero.SYNCHRONOUS,
        "ZE_EXTERNAL_MEMORY_TYPE_FLAG_DMA_BUF": level_zero_driver.DMA_BUF,
        "ZE_MEMORY_ACCESS_ATTRIBUTE_READWRITE": level_zero_driver.READ_WRITE,
        **{
            f"ZE_STRUCTURE_TYPE_{name}": value
            for name, value in vars(ze).items()
            if name.isupper() and isinstance(value, int)
        },
        **{name: code for code, (name, _) in level_zero.CODES.items()},
    },
}
TABLES: Final = {
    "cuda": cuda.FUNCTIONS,
    "hip": hip.FUNCTIONS,
    "level_zero": level_zero.FUNCTIONS,
}


def compiler() -> str:
    found = shutil.which("cc") or shutil.which("gcc")
    if found is None:
        pytest.skip("no C compiler here to read the vendors' headers")
    return found


@pytest.fixture(params=HEADERS)
def name(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    source = tmp_path / "there.c"
    source.write_text(f"#include <{HEADERS[request.param]}>\n")
    line = [compiler(), *PLACES, "-fsyntax-only", str(source)]
    if subprocess.run(line, capture_output=True, check=False).returncode:
        pytest.skip(f"{HEADERS[request.param]} is not installed here")
    return str(request.param)


def printed(name: str, folder: Path, expressions: list[str]) -> list[int]:
    """The values of C expressions, by a program that includes the header."""
    prints = "".join(f'printf("%lld\\n", (long long)({each}));' for each in expressions)
    source, program = folder / "asks.c", folder / "asks"
    source.write_text(
        f"#include <stddef.h>\n#include <stdio.h>\n#include <{HEADERS[name]}>\n"
        f"int main(void) {{ {prints} return 0; }}\n"
    )
    subprocess.run([compiler(), *PLACES, "-w", "-o", str(program), str(source)], check=True)
    answer = subprocess.run([str(program)], capture_output=True, text=True, check=True)
    return [int(line) for line in answer.stdout.split()]


def test_structures_have_the_header_s_layout(name: str, tmp_path: Path) -> None:
    ours, asked = [], []
    for structure, theirs, fields in STRUCTURES[name]:
        ours.append(ctypes.sizeof(structure))
        asked.append(f"sizeof({theirs})")
        for mine, field in fields.items():
            ours.append(getattr(structure, mine).offset)
            asked.append(f"offsetof({theirs}, {field})")
    found = printed(name, tmp_path, asked)
    assert [(a, o, f) for a, o, f in zip(asked, ours, found, strict=True) if o != f] == []


def test_constants_have_the_header_s_values(name: str, tmp_path: Path) -> None:
    found = printed(name, tmp_path, list(CONSTANTS[name]))
    assert dict(zip(CONSTANTS[name], found, strict=True)) == CONSTANTS[name]


def test_functions_take_as_many_arguments_as_in_the_header(name: str, tmp_path: Path) -> None:
    source = tmp_path / "whole.c"
    source.write_text(f"#include <{HEADERS[name]}>\n")
    line = [compiler(), *PLACES, "-E", "-P", str(source)]
    text = subprocess.run(line, capture_output=True, text=True, check=True).stdout
    for function, arguments in TABLES[name].items():
        # cuda.h renames some functions to their newest version; the older ones take the same.
        declared = re.findall(rf"\b{function}(?:_v2)?\s*\(([^)]*)\)\s*;", text)
        assert declared, function
        given = [each for each in declared[0].split(",") if each.strip() not in ("", "void")]
        assert len(given) == len(arguments), (function, declared)
