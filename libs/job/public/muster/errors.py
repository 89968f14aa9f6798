"""The errors of the client; docs/howto/use-the-python-client.md is for users."""

from libs.client.errors import (
    ApiError,
    Conflict,
    Forbidden,
    FunctionFailed,
    Gone,
    InvalidRequest,
    JobFailed,
    NotFound,
    PythonMismatch,
    RateLimited,
    TimedOut,
    TooEarly,
    Unauthorized,
    Unavailable,
)
from libs.common.errors import MusterError

__all__ = [
    "ApiError",
    "Conflict",
    "Forbidden",
    "FunctionFailed",
    "Gone",
    "InvalidRequest",
    "JobFailed",
    "MusterError",
    "NotFound",
    "PythonMismatch",
    "RateLimited",
    "TimedOut",
    "TooEarly",
    "Unauthorized",
    "Unavailable",
]
