"""Requests to copy files from node to node.

Pure. Tests: tests/integration/test_copies_cluster.py.
"""

from typing import Final

import msgspec

from libs.common.errors import Refused
from services.api_gateway.intents.fields import check_known, check_range, convert, names_of

ATTEMPT_MAX: Final = 1 << 53


class CopyBody(msgspec.Struct, frozen=True, kw_only=True):
    """The file or folder to copy, and its target.

    `path` is relative to the working directory of the job in the URL. `node_id`: its node (empty:
    the first). `attempt`: 0 is the current one. `to_path` is relative to the working directory of
    `to_job` on the node `to_node`: a folder that exists, or the new name.
    """

    to_node: str
    to_job: str
    path: str = ""
    node_id: str = ""
    attempt: int = 0
    to_path: str = ""


FIELDS: Final = names_of(CopyBody)


def copy_request(body: object) -> CopyBody:
    """Return the body of `POST /v1/jobs/{ref}/copies`. Raises Refused."""
    if not isinstance(body, dict):
        raise Refused("the request body is not a JSON object: send one with to_node and to_job")
    check_known(body, FIELDS, "field")
    asked = convert(body, CopyBody)
    check_range("attempt", asked.attempt, 0, ATTEMPT_MAX)
    return asked
