"""openb (Alibaba cluster-trace-gpu-v2023): pods with CPUs, memory and parts of GPUs; times in
seconds.

At its own pace the trace keeps one hundredth of its cluster busy. To get a queue, replay it faster
(`--speed 100`) or on fewer nodes.
"""

from services.scheduler.simulate.trace import MIB, Row

COLUMNS = frozenset(("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli"))
MILLI = 10


def read(line: dict[str, str]) -> Row:
    if not line.get("creation_time") or not line.get("deletion_time"):
        raise ValueError(
            "a pod without creation_time and deletion_time cannot be replayed; this list is "
            "for packing only"
        )
    created, deleted = float(line["creation_time"]), float(line["deletion_time"])
    began = float(line.get("scheduled_time") or created)
    return Row(
        line["name"],
        created,
        max(0.0, deleted - began),
        int(line["num_gpu"]),
        share=int(line["gpu_milli"]) // MILLI if int(line["num_gpu"]) else 100,
        cpus_milli=int(line["cpu_milli"]),
        memory_bytes=int(line["memory_mib"]) * MIB,
        models=tuple(filter(None, (line.get("gpu_spec") or "").split("|"))),
    )
