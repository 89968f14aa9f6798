"""Writes and reads the note in an attempt's marker, which is for the next agent."""

from collections.abc import Mapping
from typing import Any

import msgspec

from libs.common.model import AttemptRef, GpuId
from libs.common.reasons import NOT_STARTED, SUPERVISOR_LOST
from services.node_agent.core.observations import (
    Adopted,
    Exit,
    Probe,
)
from services.node_agent.core.state import key_of
from services.node_agent.core.used import Used
from services.node_agent.directories.protocol import AlreadyStarted, Launch
from services.node_agent.supervisor import records


def note_of(launch: Launch) -> dict[str, Any]:
    """Return the note of an attempt."""
    probe = msgspec.structs.asdict(launch.probe) if launch.probe is not None else None
    return {
        "gpus": launch.gpus,
        "slices": launch.slices,
        "instances": launch.instances,
        # Both tell this attempt from another one of its number. An agent of an earlier release
        # needs the first to adopt the attempt.
        "seq": launch.seq,
        "incarnation": launch.incarnation,
        "time_limit_s": launch.time_limit_s,
        "grace_s": launch.grace_s,
        "hang_timeout_s": launch.hang_timeout_s,
        "parts": launch.parts,
        "probe": probe,
        "workdir": launch.workdir,
        "account": account_ids(launch),
        "used": msgspec.to_builtins(launch.used),
        "container": launch.container,
        "image": launch.image,
        "in_registry": launch.in_registry,
        "tenant": launch.tenant,
    }


def account_ids(launch: Launch) -> list[int]:
    """Return the ids of the job's user; none for the agent's own."""
    return launch.account.ids if launch.account is not None else []


def exit_of(record: Mapping[str, Any]) -> Exit:
    """Return the end of an attempt from its exit record.

    An attempt whose supervisor never started counts as one whose supervisor was lost: in both cases
    the machine failed, not the job.
    """
    return Exit(
        executed=record["executed"],
        exit_code=record["exit_code"],
        signal=record["signal"] or 0,
        reason=SUPERVISOR_LOST if record["reason"] == NOT_STARTED else record["reason"],
        detail=record["detail"],
        stdout_bytes=record["stdout_bytes"],
        stderr_bytes=record["stderr_bytes"],
        dropped_bytes=record["dropped_bytes"],
        clean=record["clean"],
        run_ms=-(-record["duration_ns"] // 1_000_000) if record["executed"] else 0,
    )


def adopted_from(job_dir: str, ref: AttemptRef) -> Adopted:
    """Return an attempt of an earlier agent, as its marker describes it.

    If a power cut tore the marker, the desired state supplies the missing fields.
    """
    summary = records.read_summary(job_dir)
    if "note" not in summary:
        return Adopted(ref)
    note = summary["note"]
    return Adopted(
        ref,
        rank=summary["rank"],
        gpus=tuple(GpuId(uuid) for uuid in note["gpus"]),
        time_limit_s=note.get("time_limit_s", 0),
        grace_s=note.get("grace_s", 0),
        probe=Probe(**note["probe"]) if note.get("probe") else None,
        ignore_lease=summary.get("ignore_lease", False),
        slices={GpuId(uuid): mask for uuid, mask in note.get("slices", {}).items()},
        used=used_from(job_dir),
        hang_timeout_s=note.get("hang_timeout_s", 0),
        parts=note.get("parts", {}),
    )


def already_started(job_dir: str, ref: AttemptRef) -> AlreadyStarted:
    """Return the error of a second start, with what the marker says of the order of the first."""
    note = records.read_summary(job_dir).get("note", {})
    seq, incarnation = int(note.get("seq", 0)), int(note.get("incarnation", 0))
    return AlreadyStarted(f"{key_of(ref)} was started before", seq, incarnation)


def instances_from(job_dir: str) -> dict[GpuId, int] | None:
    """Return the numbers of the attempt's MIG instances by device; None if its agent did not note
    them.
    """
    note = records.read_summary(job_dir).get("note", {})
    if "instances" not in note:
        return None
    return {GpuId(uuid): number for uuid, number in note["instances"].items()}


def image_from(job_dir: str) -> tuple[str, bool]:
    """Return the digest of the attempt's image and whether a registry has it, as its marker says.

    The digest is empty without an image.
    """
    note = records.read_summary(job_dir).get("note", {})
    return str(note.get("image", "")), bool(note.get("in_registry", False))


def used_from(job_dir: str) -> Used:
    """Return how the attempt shares its devices, as its marker says."""
    return msgspec.convert(records.read_summary(job_dir).get("note", {}).get("used", {}), Used)
