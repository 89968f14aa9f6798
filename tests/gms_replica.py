"""A stand-in for an engine with `--load-format gms` that serves as examples/model_server.py does.

With GMS_SOCKET_DIR it maps the weights of each of its devices, or loads and publishes them if it is
the first one there. Otherwise it reads the files for itself. It prints a line of JSON: whether its
weights are `shared`, whether it `loaded` them, and their SHA-256 on each device. `--load-s` is how
long loading takes.
"""

import argparse
import hashlib
import json
import mmap
import os
import runpy
import sys
import time
from pathlib import Path

from tests.gms_client import Gms


def read(weights: str) -> bytes:
    files = sorted(path for path in Path(weights).glob("**/*") if path.is_file())
    return b"".join(path.read_bytes() for path in files)


def load(gms: Gms, weights: str, load_s: float) -> None:
    """Write the weights into memory of the device and publish them; the lock ends."""
    data = read(weights)
    time.sleep(load_s)
    made, _ = gms.ask("allocate_request", size=len(data), tag="weights")
    name = made["allocation_id"]
    _, rights = gms.ask("export_allocation_request", allocation_id=name)
    with mmap.mmap(rights[0], made["aligned_size"]) as memory:
        memory[: len(data)] = data
    os.close(rights[0])
    gms.ask("metadata_put_request", key="weights", offset_bytes=0, allocation_id=name, value=b"")
    gms.ask("commit_request")


def shared(path: str, weights: str, load_s: float) -> tuple[Gms, mmap.mmap, bool, str]:
    """Return the lock, the mapping, whether this process loaded it, and its SHA-256."""
    gms, loaded = Gms(path), False
    answer, _ = gms.ask("handshake_request", lock_type="rw_or_ro", timeout_ms=None)
    if answer["granted_lock_type"] == "rw":
        load(gms, weights, load_s)
        gms, loaded = Gms(path), True
        gms.lock("ro")
    (found,) = gms.ask("list_allocations_request")[0]["allocations"]
    _, rights = gms.ask("export_allocation_request", allocation_id=found["allocation_id"])
    memory = mmap.mmap(rights[0], found["aligned_size"], prot=mmap.PROT_READ)
    os.close(rights[0])
    return gms, memory, loaded, hashlib.sha256(memory[: found["size"]]).hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--load-s", type=float, default=0.0)
    given, rest = parser.parse_known_args()
    folder, held = os.environ.get("GMS_SOCKET_DIR", ""), []
    for uuid in os.environ["MUSTER_GPUS"].split(",") if folder else ():
        path = f"{folder}/gms_{uuid}_weights.sock"
        held.append(shared(path, given.weights, given.load_s))
    own = hashlib.sha256(read(given.weights)).hexdigest() if not held else ""
    said = {
        "shared": bool(held),
        "loaded": any(each[2] for each in held),
        "digests": [each[3] for each in held] or [own],
        "pid": os.getpid(),
        "gpus": os.environ["MUSTER_GPUS"],
        "sockets": folder,
    }
    print(json.dumps(said), flush=True)
    examples = Path(__file__).parents[1] / "examples"
    sys.path.insert(0, str(examples))
    sys.argv[1:] = rest
    runpy.run_path(str(examples / "model_server.py"), run_name="__main__")


if __name__ == "__main__":
    main()
