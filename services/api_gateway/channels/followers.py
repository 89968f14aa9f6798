"""Bounds the clients that follow at one gateway, by tenant and by job. Beyond the bound the gateway
answers 429.

A follower is an open answer that ends when its client leaves: output, an attachment, events, a
watch, a channel into a job. It takes a place before its answer begins, and returns it when the
answer is over. Tests: tests/attack/test_followers.py.
"""

import logging
from collections import Counter
from typing import Final

from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from services.api_gateway.access.key_watch import KeyCheck, KeyRefused
from services.api_gateway.problems import Problem

RETRY_AFTER_S: Final = 10

logger = logging.getLogger(__name__)


class Followers:
    """The followers of one gateway. A follower of no job counts for its tenant only."""

    def __init__(self, per_tenant: int, per_job: int) -> None:
        self.per_tenant = per_tenant
        self.per_job = per_job
        self.by_tenant: Counter[str] = Counter()
        self.by_job: Counter[str] = Counter()

    def take(self, tenant: str, job_id: str = "") -> "Place":
        """Return a place for a new follower.

        Raises Problem 429 if the tenant or the job has its maximum.
        """
        if self.by_tenant[tenant] >= self.per_tenant:
            text = (
                f"tenant {tenant} has {self.per_tenant} followers and channels open at this "
                "gateway, the maximum"
            )
            raise Problem(
                429, f"{text}: close one, or use another gateway", retry_after_s=RETRY_AFTER_S
            )
        if job_id and self.by_job[job_id] >= self.per_job:
            text = (
                f"job {job_id} has {self.per_job} followers and channels open at this gateway, "
                "the maximum"
            )
            raise Problem(
                429, f"{text}: close one, or use another gateway", retry_after_s=RETRY_AFTER_S
            )
        return Place(self, tenant, job_id)


class Place:
    """The place of one follower. Further calls of `leave` do nothing."""

    def __init__(self, followers: Followers, tenant: str, job_id: str) -> None:
        self.followers = followers
        self.tenant = tenant
        self.job_id = job_id
        self.held = True
        followers.by_tenant[tenant] += 1
        followers.by_job[job_id] += 1

    def leave(self) -> None:
        if not self.held:
            return
        self.held = False
        for counts, name in (
            (self.followers.by_tenant, self.tenant),
            (self.followers.by_job, self.job_id),
        ):
            counts[name] -= 1
            if not counts[name]:
                del counts[name]


class Following(StreamingResponse):
    """A streamed answer that holds a place until it ends, also by an error.

    It breaks off when the key of its request is not accepted any more. A regular end would tell the
    client that the job or list that it follows has ended.
    """

    place: Place

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        check = KeyCheck(scope["app"].state.gateway, scope["key"], scope["principal"])

        async def checked(message: Message) -> None:
            check.check()
            await send(message)

        try:
            await super().__call__(scope, receive, checked)
        except KeyRefused as refused:
            logger.info("%s was broken off: %s", scope["path"][:200], refused)
        finally:
            self.place.leave()


def following(place: Place, answer: Following) -> Following:
    answer.place = place
    return answer
