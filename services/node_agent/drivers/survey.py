"""One line of JSON about this machine's own devices: what is there, and why a vendor has none.

`python -m services.node_agent.drivers.survey`, for those who may not import the agent's code (`libs/embedded/local_gpus.py`).
"""

import asyncio
import json
import os

from services.node_agent.drivers.local import ANSWER_S, LocalDriver


async def survey() -> dict[str, object]:
    driver = LocalDriver(float(os.environ.get("MUSTER_DRIVER_ANSWER_MS", ANSWER_S * 1_000)) / 1_000)
    try:
        gpus = await driver.inventory()
    finally:
        await driver.close()
    return {"gpus": [{"vendor": gpu.vendor, "model": gpu.model} for gpu in gpus], "missing": driver.missing}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(survey())))
