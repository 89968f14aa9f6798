"""Starts `python -m services.audit VERB` for the verbs that work on this machine's archive and log.

`muster audit`, `muster backup` and `muster restore` use it. The process gets the caller's terminal,
and the verb ends with its exit code.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from libs.client.profile import Profile, read_profile
from libs.common.errors import Refused

# The archive of an embedded cluster, below its state directory.
ARCHIVE: Final = Path("services/audit")
# The key of the audit service: the check reads the same subjects.
SEED: Final = Path("keys/audit.seed")
SHAPE: Final = "cluster.json"
KEYS: Final = Path("keys")
# The trimmer signs the snapshot behind which the log is whole.
TRIMMER: Final = KEYS / "trimmer.pub"
AUTHORITY: Final = KEYS / "trusted.pem"


def call(verb: str, *flags: str, **options: str | None) -> int:
    """Run a command on the archive that the profile or the environment names."""
    return run(_of_profile(read_profile()), verb, *flags, **options)


def run(variables: dict[str, str], verb: str, *flags: str, **options: str | None) -> int:
    """Run a command with these variables; the caller's own MUSTER_* variables override them."""
    given = [
        part
        for name, value in options.items()
        if value
        for part in (f"--{name.replace('_', '-')}", value)
    ]
    # -P: Python must not import a `services` package from the current directory.
    line = [sys.executable, "-P", "-m", "services.audit", verb, *flags, *given]
    code = subprocess.run(line, env={**variables, **os.environ}, check=False).returncode
    return code if code >= 0 else 128 - code


def _of_profile(profile: Profile) -> dict[str, str]:
    """Return the variables that name the archive and the log.

    The caller's own MUSTER_* variables override them. Raises Refused if no archive is known.
    """
    state = Path(profile.state)
    if not profile.state and not {"MUSTER_STATE", "MUSTER_AUDIT_URL"} & set(os.environ):
        raise Refused(
            "no archive is known on this machine: set MUSTER_STATE to a state directory, set "
            "MUSTER_AUDIT_URL, or start a cluster with: muster up"
        )
    archive = state / ARCHIVE
    variables = {
        "MUSTER_STATE": str(archive if archive.is_dir() else state),
        "MUSTER_NATS": profile.nats,
        "MUSTER_NKEY_SEED_FILE": _if_file(state / SEED),
        "MUSTER_TRIMMER_KEY_FILE": _if_file(state / TRIMMER),
        "MUSTER_NATS_CA_FILE": _if_file(state / AUTHORITY) if _is_tls(profile.nats) else "",
        "MUSTER_CLUSTER_ID": cluster_id(state / SHAPE),
    }
    return {name: value for name, value in variables.items() if value}


def _if_file(path: Path) -> str:
    return str(path) if path.is_file() else ""


def _is_tls(nats: str) -> bool:
    return nats.startswith("tls://")


def cluster_id(path: Path) -> str:
    """Return the cluster id that `muster up` wrote, or an empty text without such a file."""
    try:
        return str(json.loads(path.read_bytes())["cluster_id"])
    except (OSError, ValueError, LookupError, TypeError):
        return ""


def of_backup(state: Path) -> dict[str, str]:
    """Return the variables for a backup of the cluster in this state directory."""
    from libs.embedded import shape

    known = shape.load(state)
    if known is None:
        raise Refused(f"there is no cluster in {state}: name its state directory with --state")
    variables = {
        "MUSTER_STATE": str(state / ARCHIVE),
        "MUSTER_NATS": known.nats,
        "MUSTER_NKEY_SEED_FILE": str(state / KEYS / "backup.seed"),
        "MUSTER_NATS_CA_FILE": _if_file(state / AUTHORITY) if _is_tls(known.nats) else "",
        "MUSTER_CLUSTER_ID": known.cluster_id,
    }
    return {name: value for name, value in variables.items() if value}
