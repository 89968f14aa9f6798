"""The only file that calls vendors' libraries: a process of its own (`local.py` starts it), for a call into a driver may hang or crash.

It answers each line on stdin ("look") with one line of JSON. Every vendor is tried; what is not there says why in one line. amdsmi is
imported only here and late: it raises on import where its library is missing.
"""

import json
import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Any, Final

MIB: Final = 1 << 20

Found = dict[str, Any]


def nvidia() -> Iterator[Found]:
    """By NVML. Memory that the driver keeps for itself is not counted as used where the driver tells it apart (v2)."""
    nvml: Any = import_module("pynvml")
    nvml.nvmlInit()
    for index in range(nvml.nvmlDeviceGetCount()):
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        memory = _nvidia_memory(nvml, handle)
        uuid, model = nvml.nvmlDeviceGetUUID(handle), nvml.nvmlDeviceGetName(handle)
        yield _gpu("nvidia", uuid, index, model, memory.total, memory.used)


def _nvidia_memory(nvml: Any, handle: Any) -> Any:  # noqa: ANN401  the binding is not typed
    try:
        return nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    except (nvml.NVMLError_FunctionNotFound, nvml.NVMLError_NotSupported):
        return nvml.nvmlDeviceGetMemoryInfo(handle)


def amd() -> Iterator[Found]:
    """By AMD SMI. The id is the one that ROCR_VISIBLE_DEVICES takes."""
    try:
        amdsmi: Any = import_module("amdsmi")
    except KeyError as error:  # so it says on import that its library is not there
        raise OSError(f"{error.args[0]} not found") from error
    amdsmi.amdsmi_init()
    for index, handle in enumerate(amdsmi.amdsmi_get_processor_handles()):
        asic, memory = amdsmi.amdsmi_get_gpu_asic_info(handle), amdsmi.amdsmi_get_gpu_vram_usage(handle)
        uuid = f"GPU-{int(str(asic['asic_serial']), 16):016x}"
        yield _gpu("amd", uuid, index, asic["market_name"], memory["vram_total"] * MIB, memory["vram_used"] * MIB)


VENDORS: Final = {"nvidia": nvidia, "amd": amd}


def look() -> Found:
    """Every device with what is used of its memory, and why a vendor has none."""
    gpus: list[Found] = []
    missing: dict[str, str] = {}
    for vendor, devices in VENDORS.items():
        try:
            found = list(devices())
        except ModuleNotFoundError as error:
            missing[vendor] = f"Python's {error.name} is not installed: pip install 'muster-gpu[{vendor}]'"
            continue
        except Exception as error:  # the bindings raise anything, on import too: KeyError, OSError, their own
            missing[vendor] = " ".join(str(error).split())[:200] or type(error).__name__
            continue
        gpus += found
        if not found:
            missing[vendor] = "its library answers and knows no device"
    return {"gpus": gpus, "missing": missing}


def _gpu(vendor: str, uuid: object, index: int, model: object, memory_bytes: object, used_bytes: object) -> Found:
    return {
        "vendor": vendor,
        "uuid": str(uuid),
        "index": index,
        "model": str(model),
        "memory_bytes": int(str(memory_bytes)),
        "used_bytes": int(str(used_bytes)),
    }


def main() -> None:
    # What a binding prints must not stand between the answers.
    answers, sys.stdout = sys.stdout, sys.stderr
    for _ in sys.stdin:
        print(json.dumps(look()), file=answers, flush=True)


if __name__ == "__main__":
    main()
