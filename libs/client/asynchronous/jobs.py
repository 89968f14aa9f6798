"""Jobs: submit, read, list, wait, cancel, explain; output, facts and files.

Tests: tests/integration/test_client_cluster.py.
"""

import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec import structs

from libs.client import batches, calls, fields
from libs.client.asynchronous import events, output, uploads
from libs.client.asynchronous.connection import AsyncConnection
from libs.client.asynchronous.job import AsyncJob
from libs.client.asynchronous.pauses import pause
from libs.client.errors import (
    ApiError,
    InvalidRequest,
    RateLimited,
    TimedOut,
    Unavailable,
    asked_pause_s,
)
from libs.client.models.jobs import JobShown, WhatIf, Why
from libs.client.models.log import Event
from libs.client.models.specs import BatchAnswer, DryRun
from libs.client.progress import Progress
from libs.client.timing import PROGRESS_S, Patience
from libs.common.life.job_life import ENDED

PAGE_ROWS: Final = 200
FILE_BYTES_MAX: Final = 1 << 30


class AsyncJobs:
    """The jobs of the cluster that the key may see."""

    def __init__(self, connection: AsyncConnection) -> None:
        self.connection = connection

    async def submit(
        self,
        command: str | Sequence[str] = (),
        *,
        gpus: float | None = None,
        nodes: int | str | None = None,
        name: str | None = None,
        array: str | None = None,
        image: str | None = None,
        upload: str | Path | None = None,
        workdir: str | Path | None = None,
        env: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        time_limit: int | str | None = None,
        priority: int | None = None,
        after: str | Sequence[str] | None = None,
        idempotency_key: str | None = None,
        **more: object,
    ) -> AsyncJob:
        """Submit a job and return it.

        `command` is a list of words, or one text that is split as a shell does; an image may have
        its own. `gpus` below 1 is a part of a GPU. `nodes` above 1 makes a gang; "2..8" an elastic
        one. `array="0-99%4"` runs 100 elements, 4 at a time. `upload` is a directory to send along.
        `more` are all other fields of `POST /v1/jobs` by their names, for example `memory`,
        `secrets` and `queue`.

        A lost answer is repeated with the same idempotency key, so the job is submitted once.
        Raises InvalidRequest with the wrong field, and every other ApiError.
        """
        body = fields.job_body(
            command=command,
            gpus=gpus,
            nodes=nodes,
            given={
                "name": name,
                "array": array,
                "image": image,
                "workdir": None if workdir is None else str(workdir),
                "env": env,
                "labels": labels,
                "time_limit": time_limit,
                "priority": priority,
                "after": after,
                **more,
            },
        )
        if upload is not None:
            body["upload"] = await uploads.sent(self.connection, upload)
        key = idempotency_key or uuid.uuid4().hex
        call = calls.changing("POST", calls.path_of("jobs"), self.connection.by_user(body), key=key)
        return AsyncJob(self, await self.connection.ask(call, JobShown))

    async def remove_upload(self, sha256: str) -> None:
        """Remove the upload whose archive has this SHA-256.

        Raises NotFound, and Conflict if an active job or a deployed model uses it. Conflict is also
        raised while another request stores or uses the upload; then try again.
        """
        path = calls.path_of("uploads", sha256)
        await self.connection.send(calls.changing("DELETE", path))

    async def submit_all(
        self,
        jobs: Sequence[Mapping[str, Any]],
        *,
        all_or_nothing: bool = False,
        idempotency_key: str | None = None,
    ) -> "list[AsyncJob | ApiError]":
        """Submit several jobs with few requests; return each job, or why it was refused, in order.

        Each of `jobs` has the arguments of `submit` by their names; `upload` is the hash of an
        archive. Jobs are submitted or refused by themselves. With `all_or_nothing` all are
        submitted, or the first refusal is raised; then at most 100 are allowed.

        Raises ApiError if the first request fails. If a later one does, the rest is not submitted,
        and each job of it has that error. To repeat all, use the same `idempotency_key`.
        """
        bodies = [self._batched(job) for job in jobs]
        key = idempotency_key or uuid.uuid4().hex
        found: list[AsyncJob | ApiError] = []
        for number, part in enumerate([bodies] if all_or_nothing else batches.split(bodies)):
            body = {"jobs": part, "all_or_nothing": all_or_nothing}
            call = calls.changing("POST", batches.PATH, body, key=f"{key}-{number}")
            try:
                answer = await self.connection.ask(call, BatchAnswer)
            except ApiError as error:
                if not found:
                    raise
                return [*found, *[error] * (len(bodies) - len(found))]
            found += [
                batches.refusal(structs.asdict(each.problem))
                if each.problem is not None
                else AsyncJob(self, each.job or JobShown())
                for each in answer.jobs
            ]
        return found

    def _batched(self, job: Mapping[str, Any]) -> dict[str, object]:
        given = dict(job)
        return self.connection.by_user(
            fields.job_body(command=given.pop("command", ()), given=given)
        )

    async def check(self, command: str | Sequence[str], **more: object) -> DryRun:
        """Check a job and return what would be recorded, without submitting it.

        Raises InvalidRequest with the wrong field.
        """
        call = calls.changing(
            "POST",
            calls.path_of("jobs"),
            fields.job_body(command=command, given=more),
            repeatable=True,
            query={"dry_run": True},
        )
        return await self.connection.ask(call, DryRun)

    async def whatif(
        self,
        command: str | Sequence[str] = "true",
        *,
        add_nodes: Mapping[str, object] | None = None,
        **more: object,
    ) -> WhatIf:
        """Return whether a job would start now and where, or why not; nothing is recorded."""
        body = fields.job_body(command=command, given={"add_nodes": add_nodes, **more})
        call = calls.changing("POST", calls.path_of("whatif"), body, repeatable=True)
        return await self.connection.ask(call, WhatIf)

    async def get(self, ref: str) -> AsyncJob:
        """Return the job of an id, a unique prefix of one, or a name. Raises NotFound."""
        call = calls.reading(calls.job_path(ref))
        return AsyncJob(self, await self.connection.ask(call, JobShown))

    async def list(
        self,
        *,
        all: bool = False,
        state: str | Sequence[str] | None = None,
        label: Mapping[str, str] | None = None,
        limit: int | None = None,
        **more: object,
    ) -> AsyncIterator[AsyncJob]:
        """Return the jobs by submission, page after page, at most `limit`.

        `all`: also those that have ended. `more` are `since`, `user`, `tenant`, `name`, `kind`,
        `elements`.
        """
        query = {
            "all": all or None,
            "state": ",".join(state) if isinstance(state, list | tuple) else state,
            "label": [f"{name}={value}" for name, value in (label or {}).items()],
            "limit": PAGE_ROWS if limit is None else max(1, min(PAGE_ROWS, limit)),
            **more,
        }
        left, after = limit, None
        while True:
            call = calls.reading(calls.path_of("jobs"), {**query, "after": after})
            data = await self.connection.send(call)
            rows, after = calls.member(data, "jobs", tuple[JobShown, ...], call.what)
            for row in rows if left is None else rows[:left]:
                yield AsyncJob(self, row)
            left = None if left is None else left - len(rows)
            if after is None or (left is not None and left <= 0):
                return

    async def wait(
        self,
        ref: str,
        timeout_s: float | None = None,
        on_change: Callable[[AsyncJob], object] | None = None,
        progress: bool = False,
    ) -> AsyncJob:
        """Wait until the job has ended, and return it, also while the gateway is away for a while.

        `on_change` is called with the job at each change of its state; `progress` writes the state
        on stderr. Raises TimedOut after `timeout_s`.
        """
        shown = Progress(sys.stderr) if progress else None
        try:
            return await self._waited(ref, timeout_s, on_change, shown)
        finally:
            if shown is not None:
                shown.end()

    async def _waited(
        self,
        ref: str,
        timeout_s: float | None,
        on_change: Callable[[AsyncJob], object] | None,
        progress: Progress | None,
    ) -> AsyncJob:
        until = None if timeout_s is None else time.monotonic() + timeout_s
        state = ""
        job = await self.get(ref)
        patience = Patience(self.connection.timing.away_s)
        while True:
            if progress is not None:
                progress.show(job.shown)
            if job.state != state:
                state = job.state
                if on_change is not None:
                    on_change(job)
            if state in ENDED:
                return job
            if until is not None and time.monotonic() >= until:
                raise TimedOut(f"job {job.id} is still {state} after {timeout_s:g} s")
            try:
                leaves = "" if on_change is None and progress is None else state
                job = await self._poll(job.id, until, leaves, progress is not None)
                patience.reset()
            except (Unavailable, RateLimited) as error:
                await self._again(patience, error, until)

    async def _poll(
        self, job_id: str, until: float | None, state: str, shows_progress: bool
    ) -> AsyncJob:
        """Return the job when it has left `state` (has ended, without one), or after a while."""
        async with self.connection.long_poll() as longest_s:
            left_s = longest_s if until is None else until - time.monotonic()
            least_s = min(longest_s, PROGRESS_S) if shows_progress else longest_s
            within_s = max(0.0, min(least_s, left_s))
            call = calls.reading(
                calls.job_path(job_id, "wait"),
                {"timeout_s": f"{within_s:.3f}", "state": state},
                timeout_s=within_s + self.connection.timing.timeout_s,
            )
            shown = calls.decoded(await self.connection.once(call), JobShown, call.what)
        return AsyncJob(self, shown)

    async def _again(self, patience: Patience, error: ApiError, until: float | None) -> None:
        """Pause before the next try, at most until the wait is over.

        Raises the error if the gateway was away for too long.
        """
        now_s = time.monotonic()
        pause_s = patience.pause_s(now_s, asked_pause_s(error))
        if pause_s is None:
            raise error
        await pause(pause_s if until is None else max(0.0, min(pause_s, until - now_s)))

    async def cancel(
        self, ref: str, grace_s: float | None = None, signal: str | int | None = None
    ) -> AsyncJob:
        """End a job: `signal` (SIGTERM), and SIGKILL after `grace_s` (the job's own).

        Raises Conflict if the job has ended.
        """
        body = {"grace_s": grace_s, "signal": signal}
        return await self._change(ref, "cancel", body)

    async def kill(self, ref: str) -> AsyncJob:
        """End a job at once, with SIGKILL. Raises Conflict if the job has ended."""
        return await self._change(ref, "kill", {})

    async def hold(self, ref: str) -> AsyncJob:
        """Keep a waiting job from starting."""
        return await self._change(ref, "hold", {})

    async def release(self, ref: str) -> AsyncJob:
        """Let a held job start."""
        return await self._change(ref, "release", {})

    async def _change(self, ref: str, verb: str, body: Mapping[str, object]) -> AsyncJob:
        signed = self.connection.by_user(body)
        call = calls.changing("POST", calls.job_path(ref, verb), signed, repeatable=True)
        return AsyncJob(self, await self.connection.ask(call, JobShown))

    async def why(self, ref: str) -> Why:
        """Explain why a job waits: blockers, order, remedies."""
        return await self.connection.ask(calls.reading(calls.job_path(ref, "why")), Why)

    def logs(
        self,
        ref: str,
        *,
        follow: bool = False,
        stream: str | None = None,
        rank: int = 0,
        attempt: int | None = None,
        tail_bytes: int = 0,
    ) -> AsyncIterator[str]:
        """Return the lines of the output of one rank, stdout before stderr.

        `tail_bytes`: begin that many bytes before the present end of each stream.

        With `follow` the lines of both streams come as they are written, until the job has ended,
        over broken connections and restarts of the job.
        """
        fields.check_stream(stream)
        if follow and attempt is None:
            return output.followed(self.connection, ref, rank=rank, stream=stream)
        query = {"rank": rank, "attempt": attempt, "tail_bytes": tail_bytes or None}
        return output.lines(self.connection, ref, stream, query)

    def events(
        self,
        ref: str | None = None,
        *,
        follow: bool = False,
        node: str | None = None,
        kind: str | None = None,
        since: str | None = None,
        after: int = 0,
    ) -> AsyncIterator[Event]:
        """Return the facts about a job, or about everything without `ref`, in order.

        `after` is the sequence of a commit. With `follow` new facts come as they are recorded; the
        facts about one job end with its end.
        """
        query = {"job": ref, "node": node, "kind": kind, "since": since}
        if follow:
            return events.followed(self.connection, query, after)
        return events.listed(self.connection, query, after)

    async def file(self, ref: str, path: str, rank: int = 0, bytes_max: int | None = None) -> bytes:
        """Return a file of the job's working directory on the node of `rank`.

        Raises NotFound, TooEarly before the job has been placed, and InvalidRequest if the file has
        more than `bytes_max` bytes (1 GiB).
        """
        bound = FILE_BYTES_MAX if bytes_max is None else bytes_max
        node_id = await self._node_of(ref, rank) if rank else None
        call = calls.reading(calls.job_path(ref, "files"), {"path": path, "node_id": node_id})
        found = await self.connection.read(call, bound)
        if len(found) > bound:
            raise InvalidRequest(
                f"path: {path} of job {ref} has more than {bound} bytes: raise bytes_max, or copy "
                "it with muster cp",
                field="path",
            )
        return found

    async def _node_of(self, ref: str, rank: int) -> str:
        nodes = (await self.get(ref)).shown.node_ids
        if rank >= len(nodes):
            raise InvalidRequest(f"rank: {rank} is out of bounds: job {ref} has {len(nodes)} nodes")
        return nodes[rank]
