"""Any other trace: job_id, submit_s, gpus, duration_s, and optionally tenant, share, priority,
cpus_milli, memory_mib, gpu_model, time_limit_s.

`gpus` counts devices over all nodes, `share` is the part of each in hundredths, `gpu_model` names
the accepted GPU models ("A|B": either).
"""

from services.scheduler.simulate.trace import MIB, Row

COLUMNS = frozenset(("job_id", "submit_s", "gpus", "duration_s"))


def read(line: dict[str, str]) -> Row:
    return Row(
        name=line["job_id"],
        submit_s=float(line["submit_s"]),
        duration_s=float(line["duration_s"]),
        gpus=int(line["gpus"]),
        tenant=line.get("tenant") or "default",
        share=int(line.get("share") or 100),
        priority=int(line.get("priority") or 50),
        cpus_milli=int(line.get("cpus_milli") or 0),
        memory_bytes=int(line.get("memory_mib") or 0) * MIB,
        models=tuple(filter(None, (line.get("gpu_model") or "").split("|"))),
        time_limit_s=int(line.get("time_limit_s") or 0),
    )
