"""`muster model pull`, `pulled` and `unpull`: copies of models on the nodes' disks.

A pull is an ordinary job for each node, whose command begins with `{pull}`; the node's agent runs
`libs/job/pulling` for it. Tests: tests/integration/test_pulled_cluster.py.
"""

import threading
import time
from collections.abc import Callable, Collection
from queue import SimpleQueue
from typing import Any, Final
from urllib.parse import quote

import click

from libs.cli.flags.durations import age
from libs.cli.flags.jobflags import secrets
from libs.cli.flags.sizes import show_size
from libs.cli.following.attach import Listener, attach
from libs.cli.following.waiting import wait_for, wait_for_end
from libs.cli.gateway import Json, ask, ask_all, job_path
from libs.cli.jobs import ENDED, exit_code_of, utc_now
from libs.cli.terminal.ending import end_line
from libs.cli.terminal.output import complain, listed, print_table, print_value
from libs.cli.terminal.table import Column
from libs.client.profile import Profile, read_profile
from libs.common.errors import MusterError, Refused
from libs.common.placeholders import PULL
from libs.common.quantities import counted
from libs.job.pulling.copies import FROM_PEER
from libs.job.pulling.errors import PullError
from libs.job.pulling.hub import Hub
from libs.job.pulling.listing import MAIN, check_repository, check_revision, folder_of

TOKEN: Final = "HF_TOKEN"  # nosec B105
RETRIES: Final = 2
NAME_MAX: Final = 128
FOLLOWED_AT_ONCE: Final = 32
COMMIT_SHOWN: Final = 12
LOOK_S: Final = 0.5
UNPULL_S: Final = 90.0
# States of nodes that take jobs.
UP: Final = ("healthy", "suspect")
COLUMNS: Final = (
    Column("NODE"),
    Column("MODEL"),
    Column("REVISION"),
    Column("COMMIT"),
    Column("FILES", right=True),
    Column("SIZE", right=True),
    Column("LAST USE", right=True),
    Column("STATE"),
    Column("PATH", flexible=True),
)


@click.command(short_help="Pull a model's files to nodes.")
@click.argument("repository", metavar="NAME")
@click.option(
    "--revision", metavar="R", default=MAIN, show_default=True, help="Branch, tag or commit."
)
@click.option("--to-node", "nodes", multiple=True, metavar="NODE", help="Pull to this node.")
@click.option("--all", "everywhere", is_flag=True, help="Pull to all nodes.")
@click.option(
    "--include",
    multiple=True,
    metavar="PATTERN",
    help="Pull only files whose path matches, for example '*.safetensors'. Repeatable.",
)
@click.option(
    "--secret",
    metavar="NAME",
    help="Secret of your tenant with the hub's token, for private repositories.",
)
@click.option("--hub", metavar="URL", help="Address of the hub. Default: the nodes' MUSTER_HUB.")
@click.option("--from-node", metavar="NODE", help="Copy from this node instead of the hub.")
@click.option("-d", "--detach", is_flag=True, help="Print the ids of the jobs and do not wait.")
def pull(
    repository: str,
    revision: str,
    nodes: tuple[str, ...],
    everywhere: bool,
    include: tuple[str, ...],
    secret: str | None,
    hub: str | None,
    from_node: str | None,
    detach: bool,
) -> int:
    """Pull a model's files to nodes, from a hub or from another node.

    Each node gets a job of its own, with logs, retries and muster cancel. A pull that was
    interrupted continues where it ended. Use the copy as {pulled:NAME} in a command.

    \b
    muster model pull Qwen/Qwen2.5-7B --to-node node-1 --to-node node-2
    muster model pull meta-llama/Llama-3.1-8B --all --secret hf-token
    muster model pull Qwen/Qwen2.5-7B --from-node node-1 --to-node node-3
    muster deploy chat -- vllm serve {pulled:Qwen/Qwen2.5-7B} --port {port}
    """
    _check(repository, revision, hub)
    profile = read_profile()
    words = [PULL, repository, "--revision", revision]
    words += [word for pattern in include for word in ("--include", pattern)]
    words += ["--hub", hub] if hub else []
    targets = _targets(profile, nodes, everywhere, from_node)
    if from_node:
        if include or secret or hub or detach:
            raise click.UsageError(
                "--from-node copies what that node has: leave --include, --secret, --hub and "
                "--detach out"
            )
        return _from_node(profile, repository, revision, from_node, targets)
    known = secrets([f"{secret}={TOKEN}"]) if secret else {}
    jobs = {_submitted(profile, repository, words, node, known, RETRIES): node for node in targets}
    if detach:
        for job_id in jobs:
            click.echo(job_id)
        return 0
    return _followed(profile, jobs)


def _check(repository: str, revision: str = MAIN, hub: str | None = None) -> None:
    """Check what a pull names before it is in the log. Raises Refused."""
    try:
        check_repository(repository)
        check_revision(revision)
        if hub:
            Hub(hub)
    except PullError as error:
        raise Refused(str(error)) from error


def _targets(
    profile: Profile, nodes: tuple[str, ...], everywhere: bool, source: str | None
) -> list[str]:
    """Return the nodes to pull to. Raises UsageError or Refused without a clear choice."""
    if nodes and everywhere:
        raise click.UsageError("--all is given with --to-node: give one of them")
    if source in nodes:
        raise click.UsageError(f"node {source} is named by --from-node and by --to-node")
    if nodes:
        return list(dict.fromkeys(nodes))
    known = [
        str(node["id"])
        for node in ask_all(profile, "/v1/nodes", "nodes")
        if node["state"] in UP and node["id"] != source
    ]
    if (everywhere and known) or len(known) == 1:
        return known
    if not known:
        raise Refused("there is no other node to pull to: muster nodes lists the nodes")
    raise click.UsageError(
        f"there are {counted(len(known), 'node')} to pull to: name them with --to-node NODE, or "
        "pull to all with --all"
    )


def _submitted(
    profile: Profile,
    repository: str,
    words: list[str],
    node: str,
    known: dict[str, str] | None = None,
    retries: int = 0,
) -> str:
    """Submit the job of one node. Return its id.

    Without retries it has one attempt only: a copy from another node is made for that attempt.
    """
    body: Json = {
        "command": words,
        "gpus": 0,
        "cpus": 1,
        "name": f"pull-{folder_of(repository)}"[:NAME_MAX],
        "node_list": [node],
        "retries": retries,
        "requeue": retries > 0,
        "secrets": known or {},
        "user": profile.user,
    }
    return str(ask(profile, "POST", "/v1/jobs", body=body)["id"])


def _followed(profile: Profile, jobs: dict[str, str]) -> int:
    """Print the output of pulls until all have ended. Return the exit code."""
    printing = threading.Lock()

    def follow(job_id: str) -> int:
        before = f"{jobs[job_id]}: " if len(jobs) > 1 else ""
        rest = b""

        def write(_: str, data: bytes) -> None:
            nonlocal rest
            *lines, rest = (rest + data).split(b"\n")
            with printing:
                for line in lines:
                    click.echo(f"{before}{line.decode(errors='replace')}")

        last = attach(profile, job_id, 0, Listener(write, lambda state, attempt: None))
        if line := end_line(profile, job_id, last):
            complain(f"{before}{line}")
        return exit_code_of(last)

    for job_id, node in jobs.items():
        complain(f"job {job_id} pulls to {node}; it goes on without this command")
    return max(_all_of(follow, jobs), default=0)


def _all_of(follow: Callable[[str], int], jobs: Collection[str]) -> list[int]:
    """Follow jobs, several at once. Return their exit codes. Raises the first error.

    The threads do not outlive this process, so Ctrl-C ends it although the jobs go on.
    """
    ended, at_once = SimpleQueue[int | Exception](), threading.Semaphore(FOLLOWED_AT_ONCE)

    def work(job_id: str) -> None:
        found: int | Exception = 1
        try:
            with at_once:
                found = follow(job_id)
        except (MusterError, OSError) as error:
            found = error
        finally:
            ended.put(found)

    for job_id in jobs:
        threading.Thread(target=work, args=(job_id,), daemon=True).start()
    codes = []
    for _ in jobs:
        found = ended.get()
        if isinstance(found, Exception):
            raise found
        codes.append(found)
    return codes


def _from_node(
    profile: Profile, repository: str, revision: str, source: str, targets: list[str]
) -> int:
    """Copy from a node that has it, to one node after the other. Return the exit code."""
    (held,) = ask(profile, "GET", "/v1/pulled", {"node_id": source})["nodes"]
    copies = [
        copy
        for copy in held["copies"]
        if copy["repository"] == repository
        and copy["complete"]
        and revision in (*copy["revisions"], copy["commit"])
    ]
    if not copies:
        raise Refused(
            f"node {source} has no copy of {repository} ({revision})"
            f"{': ' + held['error'] if held['error'] else ''}: muster model pulled lists what "
            "nodes have"
        )
    commit = str(copies[0]["commit"])
    words = [PULL, repository, "--revision", commit, "--held"]
    giver = _submitted(profile, repository, words, source)
    if code := exit_code_of(wait_for_end(profile, giver)):
        complain(f"job {giver} on {source} failed: muster logs {giver}")
        return code
    return max(_copied(profile, giver, copies[0], node, revision) for node in targets)


def _copied(profile: Profile, giver: str, copy: Json, node: str, revision: str) -> int:
    """Copy from the working directory of `giver` to one node. Return the exit code."""
    name = f"{copy['commit']}/{revision}" if revision != copy["commit"] else copy["commit"]
    words = [PULL, copy["repository"], "--revision", name]
    words += ["--from-peer", str(copy["size_bytes"])]
    words += [word for pattern in copy["include"] for word in ("--include", pattern)]
    taker = _submitted(profile, copy["repository"], words, node)
    job = wait_for(profile, taker, ("running", "releasing", *ENDED))
    if job["state"] == "running":
        body: Json = {
            "path": f"{folder_of(copy['repository'])}/{copy['commit']}",
            "to_node": node,
            "to_job": taker,
            "to_path": f"{FROM_PEER}{taker}.{job['attempt']}",
        }
        answer = ask(profile, "POST", job_path(giver, "copies"), body=body)
        where = job_path(giver, "copies", str(answer["id"]))
        while answer["state"] == "copying":
            time.sleep(LOOK_S)
            answer = ask(profile, "GET", where)
        if answer["state"] != "copied":
            ask(profile, "POST", job_path(taker, "cancel"), body={"user": profile.user})
            complain(
                f"cannot copy from {answer['node_id']} to {node}: {answer['error']}; pull it from "
                "the hub: leave --from-node out"
            )
            return 1
    return _followed(profile, {taker: node})


@click.command(short_help="List the models that were pulled to nodes.")
@click.argument("node", required=False)
@click.option("--tenant", metavar="TENANT", help="List the copies of this tenant (operators only).")
@listed
def pulled(node: str | None, tenant: str | None, form: str, no_headers: bool) -> None:
    """List the models that your tenant has pulled to nodes, or to one node.

    LAST USE is the time since a job last began or stopped using the copy. An incomplete copy is
    still being pulled, or its pull was interrupted. To continue it, pull again.

    \b
    muster model pulled
    muster model pulled node-1 -o json
    """
    query = {"node_id": node, "tenant": tenant}
    nodes = ask_all(read_profile(), "/v1/pulled", "nodes", query)
    if print_value(nodes, form):
        return
    rows = [_row(each, copy) for each in nodes for copy in each["copies"]]
    print_table(COLUMNS, rows, not no_headers, form == "wide")
    for each in nodes:
        if each["error"]:
            complain(f"node {each['node_id']}: {each['error']}")
        if each["left_out"]:
            complain(f"node {each['node_id']} has {each['left_out']} more copies: remove some")
        if each["copies"]:
            bound = f" of {show_size(each['bound_bytes'])}" if each["bound_bytes"] else ""
            click.echo(f"\n{each['node_id']}: {show_size(each['size_bytes'])}{bound}", nl=False)
    if rows:
        click.echo()


def _row(node: Json, copy: Json) -> list[str]:
    state = "in use" if copy["in_use"] else "complete" if copy["complete"] else "incomplete"
    return [
        str(node["node_id"]),
        str(copy["repository"]),
        ",".join(each for each in copy["revisions"] if each != copy["commit"]) or "-",
        str(copy["commit"])[:COMMIT_SHOWN],
        str(copy["files"]),
        show_size(copy["size_bytes"]),
        age(copy["last_used_at"], utc_now()) if copy["last_used_at"] else "-",
        state,
        str(copy["path"]),
    ]


@click.command(short_help="Remove pulled models from nodes.")
@click.argument("repository", metavar="NAME")
@click.option("--commit", metavar="COMMIT", help="Remove only this copy.")
@click.option("--node", "nodes", multiple=True, metavar="NODE", help="Remove it from this node.")
@click.option("--all", "everywhere", is_flag=True, help="Remove it from all nodes.")
def unpull(repository: str, commit: str | None, nodes: tuple[str, ...], everywhere: bool) -> int:
    """Remove a model's pulled copies from nodes. Copies that a job or a model uses stay.

    \b
    muster model unpull Qwen/Qwen2.5-7B --node node-1
    muster model unpull Qwen/Qwen2.5-7B --all
    """
    if bool(nodes) == everywhere:
        raise click.UsageError("give --node NODE, or --all for all nodes")
    _check(repository)
    profile = read_profile()
    code = 0
    if everywhere:
        nodes, code = _holders(profile, repository)
    for node in nodes:
        path = f"/v1/pulled/{quote(node, safe='')}"
        query = {"repository": repository, "commit": commit}
        answer: dict[str, Any] = ask(profile, "DELETE", path, query, answer_s=UNPULL_S)
        for copy in answer["removed"]:
            size = show_size(copy["size_bytes"])
            click.echo(f"{node}: removed {repository}@{copy['commit']}, {size}")
        if answer["stays"] or not answer["removed"]:
            complain(f"node {node}: {answer['stays'] or f'has no copy of {repository}'}")
            code = 1
    return code


def _holders(profile: Profile, repository: str) -> tuple[tuple[str, ...], int]:
    """Return the nodes with a copy of a repository, and 1 if a node did not answer, else 0."""
    listed_nodes = ask_all(profile, "/v1/pulled", "nodes")
    silent = [each for each in listed_nodes if each["error"]]
    for each in silent:
        complain(f"node {each['node_id']} may have a copy: {each['error']}")
    found = [
        str(each["node_id"])
        for each in listed_nodes
        if each["left_out"] or any(copy["repository"] == repository for copy in each["copies"])
    ]
    if not found and not silent:
        complain(f"no node has a copy of {repository}")
    return tuple(sorted(found)), int(bool(silent))
