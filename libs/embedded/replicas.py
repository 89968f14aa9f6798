"""Changes on how many servers the streams are stored, by the process beside one server.

Only the number of replicas changes; the rest of a stream's configuration is sent back as the server
told it. A stream with one replica keeps one. Test: tests/integration/test_bus_growth.py.
"""

import json
from typing import Any, Final

from libs.common.errors import Unavailable
from libs.common.transport.bus import Bus

NAMES: Final = "$JS.API.STREAM.NAMES"
INFO: Final = "$JS.API.STREAM.INFO"
UPDATE: Final = "$JS.API.STREAM.UPDATE"
ANSWER_S: Final = 5.0
COUNTS: Final = (3, 5)


async def set_replicas(bus: Bus, count: int) -> str:
    """Store every stream on `count` servers. Return why that failed; empty if it did not.

    A repetition continues where an earlier call failed.
    """
    if count not in COUNTS:
        return f"the log is stored on 3 or 5 servers, not on {count}: ask for one of these numbers"
    try:
        for name in (await _asked(bus, NAMES)).get("streams") or ():
            config = (await _asked(bus, f"{INFO}.{name}"))["config"]
            if config["num_replicas"] not in (1, count):
                config["num_replicas"] = count
                await _asked(bus, f"{UPDATE}.{name}", config)
    except (Unavailable, ValueError, KeyError) as error:
        return f"not every stream has {count} replicas yet ({error})"
    return ""


async def _asked(bus: Bus, subject: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    data = b"" if body is None else json.dumps(body).encode()
    answer: dict[str, Any] = json.loads(await bus.request(subject, data, ANSWER_S))
    if error := answer.get("error"):
        raise Unavailable(f"{subject}: {error.get('description', error)}")
    return answer
