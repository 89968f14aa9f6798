"""Requests to prune: remove what ended jobs left on nodes, and uploads that no job needs.

Pure. Tests: tests/integration/test_gateway_prune.py.
"""

from collections.abc import Container, Iterable
from typing import Final

from libs.common.errors import Refused
from libs.common.life import job_life
from libs.common.messages import PruneAsk
from libs.common.state.cluster import Cluster, Job
from libs.common.transport.uploads import Upload
from services.api_gateway.intents.fields import check_known, check_range, convert, names_of
from services.api_gateway.times import instant_ns

RANGES: Final = (("older_than_s", 0, 1 << 33), ("keep_bytes", 0, 1 << 62))
# An upload of this age or younger stays, because its job may be about to be submitted.
YOUNG_S: Final = 3_600
FIELDS: Final = names_of(PruneAsk)


def job_with_upload(jobs: Iterable[Job | None], sha256: str) -> str:
    """Return an active job that uses the upload, in words; empty if none of them does."""
    for job in jobs:
        if job is not None and job.spec.upload == sha256 and job.state not in job_life.ENDED:
            return f"job {job.job_id}"
    return ""


def model_with_upload(cluster: Cluster, tenant: str, sha256: str) -> str:
    """Return a deployed model that uses the upload, in words; empty if none does."""
    for model in cluster.models.values():
        if model.deployed and model.tenant == tenant and model.spec.upload == sha256:
            return f"model {model.name}"
    return ""


def old_uploads(
    uploads: Iterable[Upload], needed: Container[tuple[str, str]], ask: PruneAsk, now_ns: int
) -> list[Upload]:
    """Return the uploads to remove, oldest first, by the same bounds as the nodes' directories.

    Uploads that a job in `needed` uses, or that were sent within YOUNG_S, stay.
    """
    oldest_first = sorted(
        uploads,
        key=lambda each: (instant_ns(each.sent_at, "sent_at", now_ns), each.tenant, each.sha256),
    )
    kept_bytes = sum(upload.size_bytes for upload in oldest_first)
    removed = []
    for upload in oldest_first:
        age_s = (now_ns - instant_ns(upload.sent_at, "sent_at", now_ns)) // 1_000_000_000
        old = ask.older_than_s is not None and age_s >= ask.older_than_s
        too_much = ask.keep_bytes is not None and kept_bytes > ask.keep_bytes
        in_use = (upload.tenant, upload.sha256) in needed or age_s < YOUNG_S
        if in_use or not (old or too_much):
            continue
        removed.append(upload)
        kept_bytes -= upload.size_bytes
    return removed


def prune_request(body: object) -> PruneAsk:
    """Return the bounds of `POST /v1/prune`. Raises Refused."""
    if not isinstance(body, dict):
        raise Refused(
            "the request body is not a JSON object: send one with older_than_s or keep_bytes"
        )
    check_known(body, FIELDS, "field")
    ask = convert(body, PruneAsk)
    if ask.older_than_s is None and ask.keep_bytes is None:
        raise Refused(
            "the request has no bound: give older_than_s, keep_bytes or both (keep_bytes 0 removes "
            "all)"
        )
    for name, low, high in RANGES:
        check_range(name, getattr(ask, name) or 0, low, high)
    return ask
