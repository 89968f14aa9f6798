"""`--upload DIR`: a job's directory becomes the hash under which the gateway keeps it; it is sent
unless it is there already.

Twin ends: `packing.py` here, `libs/common/safety/unpacking.py` on the node.
"""

import tempfile
from pathlib import Path
from typing import Any, Final

from libs.cli.faults import Declined
from libs.cli.gateway import ask, send
from libs.cli.profile import Profile
from libs.cli.terminal.output import complain

NOT_THERE: Final = 404
# Of all of it: the gateway answers when it is kept.
SEND_S: Final = 600.0


def brought(profile: Profile, job: dict[str, Any], dry_run: bool = False) -> dict[str, Any]:
    """The job as the gateway takes it, its directory sent; in a dry run only looked at.

    Raises Refused, and what `gateway.send` does.
    """
    if not job.get("upload"):
        return job
    from libs.cli.formats.packing import pack
    from libs.common.settings import configuration
    from libs.common.transport.uploads import Bounds

    bounds = configuration.resolve().settings
    with tempfile.TemporaryFile() as archive:
        packed = pack(
            Path(job["upload"]), archive, Bounds(bounds.upload_bytes, bounds.upload_files)
        )
        for name in packed.left_out:
            complain(f"{name} is no file, folder or link: it is left out")
        if dry_run:
            return {name: value for name, value in job.items() if name != "upload"}
        path = f"/v1/uploads/{packed.sha256}"
        try:
            ask(profile, "GET", path)
        except Declined as error:
            if error.status != NOT_THERE:
                raise
            archive.seek(0)
            send(profile, "PUT", path, payload=archive, answer_s=SEND_S)
    return {**job, "upload": packed.sha256}
