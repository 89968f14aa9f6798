"""Problems of requests that the edge refuses before a route gets them."""

from libs.common.open_share import BUSY_S, TENANT_FULL
from services.api_gateway.openai import errors
from services.api_gateway.problems import Problem


def starting(seq: int) -> Problem:
    """Return the problem of a gateway that has not folded the whole log yet."""
    text = f"the gateway is starting and still reads the log (at commit {seq})"
    return Problem(503, f"{text}: try again in a moment")


def unauthorised(configured: bool, has_key: bool) -> Problem:
    """Return the problem of a request without a valid key."""
    if not configured:
        text = (
            "this gateway has no key file: set MUSTER_API_KEYS_FILE to a file with the SHA-256 of "
            "each accepted key"
        )
    elif not has_key:
        text = f"{errors.NO_KEY}: send the header 'Authorization: Bearer <key>'"
    else:
        text = "this key is unknown, revoked or expired: ask an administrator for another"
    return Problem(401, text)


def too_many(tenant: str) -> Problem:
    """Return the problem of a request beyond its tenant's share of open requests."""
    text = (
        f"{whose(tenant)} at this gateway are as many as one tenant may have open now: "
        "wait until some have ended, or use another gateway"
    )
    return Problem(429, text, retry_after_s=BUSY_S)


def too_much(tenant: str, refused: str) -> Problem:
    """Return the problem of a body for which its tenant, or the gateway, has no memory left."""
    if refused == TENANT_FULL:
        text = (
            f"{whose(tenant)} need as much of this gateway's memory for bodies as those of one "
            "tenant may now: wait until some have ended, or send less at once"
        )
        return Problem(429, text, retry_after_s=BUSY_S)
    text = (
        "the bodies and answers of all open requests need all memory that this gateway has for "
        "them: try again in a moment, or raise MUSTER_MODEL_BODIES_BYTES"
    )
    return Problem(503, text, retry_after_s=BUSY_S)


def whose(tenant: str) -> str:
    """Return the words for the open requests of a tenant; "" stands for those without a key."""
    return f"the requests of tenant {tenant}" if tenant else "the requests without a key"
