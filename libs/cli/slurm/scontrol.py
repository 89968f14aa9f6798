"""scontrol: show jobs and nodes, and hold, release or requeue jobs."""

import os
from collections.abc import Sequence
from typing import Final

from libs.cli.faults import Declined
from libs.cli.gateway import ask, job_path
from libs.cli.slurm.columns import one_line
from libs.cli.slurm.ids import id_of
from libs.cli.slurm.job_columns import FIELDS, JobRow, array_job_id, cpus, exit_code, reason, tres
from libs.cli.slurm.node_columns import NodeRow, gres_of, reason_of
from libs.cli.slurm.node_columns import state_of as node_state
from libs.cli.slurm.options import NONE, Option, Table, parse
from libs.cli.slurm.requests import jobs_named, list_jobs, nodes_of, rows_of, say
from libs.cli.slurm.sinfo import node_rows
from libs.cli.slurm.states import state_of
from libs.client.profile import Profile, read_profile
from libs.common.errors import Refused

PROGRAM: Final = "scontrol"
OPTIONS: Final = (
    Option("oneliner", "o", NONE), Option("details", "d", NONE), Option("quiet", "Q", NONE),
    Option("all", "a", NONE),
)  # fmt: skip
TABLE: Final = Table(PROGRAM, OPTIONS, {}, {})
ON_JOBS: Final = {
    "hold": "hold", "uhold": "hold", "release": "release", "requeue": "requeue",
}  # fmt: skip
INSTEAD: Final = {
    "update": "use muster update JOB for jobs; muster drain, offline and online for nodes",
    "create": "use muster reserve",
    "delete": "use muster unreserve",
    "suspend": "Muster does not suspend jobs: use muster requeue JOB, or muster cancel JOB",
    "resume": "Muster does not suspend jobs",
    "reconfigure": "use muster config check",
    "reboot": "use muster drain NODE, and reboot the machine",
    "top": "use muster update --priority 100 JOB",
    "requeuehold": "use muster hold JOB and muster requeue JOB",
}


def main(words: Sequence[str]) -> int:
    given = parse(TABLE, words)
    verb, *rest = given.rest or [""]
    if verb == "show" and rest:
        return _show(rest, together=given.has("oneliner"))
    if verb == "ping":
        ask(read_profile(), "GET", "/v1/version")
        print("Slurmctld(primary) is UP")
        return 0
    if verb in ON_JOBS and rest:
        return _on_jobs(ON_JOBS[verb], [ref for word in rest for ref in word.split(",")])
    advice = INSTEAD.get(verb, "use show job|node|hostnames, hold, release, requeue or ping")
    raise Refused(f"{' '.join(given.rest) or 'no command'} is not supported: {advice}")


def _on_jobs(action: str, refs: Sequence[str]) -> int:
    profile = read_profile()
    code = 0
    for ref in refs:
        name = ref.partition("=")[2] or ref
        try:
            ask(profile, "POST", job_path(id_of(name), action), body={"user": profile.user})
        except Declined as error:
            say(PROGRAM, f"error: {name}: {error}")
            code = 1
    return code


def _show(words: Sequence[str], together: bool) -> int:
    what, equals, name = words[0].partition("=")
    names = [name] if equals else list(words[1:])
    what = what.lower()
    if what in ("job", "jobs", "jobid"):
        return _show_jobs(read_profile(), names, together)
    if what in ("node", "nodes", "nodename"):
        return _show_nodes(read_profile(), names, together)
    if what in ("hostnames", "hostname"):
        names = names or [os.environ.get("SLURM_JOB_NODELIST", "")]
        if not any(names):
            raise Refused("show hostnames: give a list of nodes, or set SLURM_JOB_NODELIST")
        print("\n".join(node for each in names for node in nodes_of("nodelist", each)))
        return 0
    raise Refused(
        f"show {what} is not supported: use show job, show node or show hostnames; for the others "
        "muster queue list, muster reservations, muster config show"
    )


def _show_jobs(profile: Profile, names: Sequence[str], together: bool) -> int:
    code = 0

    def missing(ref: str) -> None:
        nonlocal code
        code = 1
        say(PROGRAM, f"error: slurm_load_jobs error: Invalid job id specified: {ref}")

    jobs = jobs_named(profile, names, missing) if names else list_jobs(profile, {"elements": 1})
    for row in rows_of(profile, jobs):
        print(_joined(job_lines(row), together))
    return code


def job_lines(row: JobRow) -> list[str]:
    """Return the lines about one job, as `scontrol show job` writes them."""
    job = row.job

    def value(name: str) -> str:
        return FIELDS[name].of(row)

    array = f" ArrayJobId={array_job_id(row)} ArrayTaskId={value('arraytaskid')}"
    shown = array if job.get("array") or job.get("element_of") else ""
    return [
        f"JobId={value('jobidraw')}{shown} JobName={value('name')}",
        f"UserId={value('username')} GroupId={value('account')} MCS_label=N/A",
        f"Priority={value('prioritylong')} Nice=0 Account={value('account')} QOS=normal",
        f"JobState={state_of(job).name} Reason={reason(row)} Dependency={value('dependency')}",
        f"Requeue=1 Restarts={value('restartcnt')} BatchFlag=1 Reboot=0 ExitCode={exit_code(row)}",
        f"RunTime={value('timeused')} TimeLimit={value('timelimit')} TimeMin=N/A",
        f"SubmitTime={value('submittime')} EligibleTime={value('eligibletime')}",
        f"StartTime={value('starttime')} EndTime={value('endtime')} Deadline=N/A",
        f"Partition={value('partition')}",
        f"NodeList={value('nodelist') or '(null)'}",
        f"BatchHost={value('batchhost')}",
        f"NumNodes={value('numnodes')} NumCPUs={cpus(row)} NumTasks={value('numtasks')}",
        f"TRES={tres(row)}",
        f"TresPerNode={value('gres')}",
        f"Command={value('command')}",
        f"WorkDir={value('workdir')}",
    ]


def _show_nodes(profile: Profile, names: Sequence[str], together: bool) -> int:
    wanted = {node for name in names for node in nodes_of("nodelist", name)}
    rows = [row for row in node_rows(profile) if not wanted or row.node["id"] in wanted]
    for row in rows:
        print(_joined(node_lines(row), together))
    for name in sorted(wanted - {str(row.node["id"]) for row in rows}):
        say(PROGRAM, f"error: Node {name} not found")
    return 0 if len(rows) >= len(wanted) else 1


def node_lines(row: NodeRow) -> list[str]:
    """Return the lines about one node, as `scontrol show node` writes them."""
    node = row.node
    cpus_held, cpus_all = int(node["cpus_milli_held"]) // 1_000, int(node["cpus_milli"]) // 1_000
    held, total = int(node["memory_bytes_held"]) >> 20, int(node["memory_bytes"]) >> 20
    used = f"{int(node['held_share']) / 100:g}"
    return [
        f"NodeName={node['id']} CPUAlloc={cpus_held} CPUTot={cpus_all}",
        f"Gres={gres_of(row)}",
        f"NodeAddr={node['address'] or node['id']} NodeHostName={node['id']} "
        f"Version={node['version'] or '-'}",
        f"RealMemory={total} AllocMem={held}",
        f"State={node_state(row).upper()}",
        f"CfgTRES=cpu={cpus_all},mem={total}M,gres/gpu={node['gpus_total']}",
        f"AllocTRES=cpu={cpus_held},mem={held}M,gres/gpu={used}",
        f"Reason={reason_of(row)}",
    ]


def _joined(lines: Sequence[str], together: bool) -> str:
    plain = [one_line(line) for line in lines]
    return " ".join(plain) if together else "\n   ".join(plain) + "\n"
