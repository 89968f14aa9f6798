"""`--upload DIR`: sends a directory to the gateway, unless the gateway has it already.

The job then names the upload by its hash. `packing.py` packs it here, and
`libs/common/safety/unpacking.py` unpacks it on the node.
"""

import tempfile
from pathlib import Path
from typing import Any, Final

from libs.cli.faults import Declined
from libs.cli.gateway import ask, send
from libs.cli.terminal.output import complain
from libs.client.profile import Profile
from libs.client.timing import SEND_S

NOT_THERE: Final = 404


def with_upload(profile: Profile, job: dict[str, Any], dry_run: bool = False) -> dict[str, Any]:
    """Return the job with the hash of its upload, after sending the directory.

    A dry run only checks the directory. Raises Refused, and the errors of `gateway.send`.
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
            complain(f"skipped {name}: it is not a file, a folder or a link")
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
