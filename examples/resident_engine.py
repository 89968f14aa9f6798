"""A stand-in for an engine that starts slowly: it reads weights, compiles, then serves as
model_server.py does.

The weights are read in full from `MUSTER_MODEL_WEIGHTS` if the node keeps them in memory, else from
`--weights`, at most `--disk-mib-s` (a stand-in for a disk or a network store). The compilation
works for `--compile-s` seconds and leaves its product in `TRITON_CACHE_DIR`; with the product there
it takes no time. All other flags are those of model_server.py.

    muster deploy tiny --wait -- python3 examples/resident_engine.py --weights /models/tiny \
        --compile-s 5 --port {port}
    muster model keep tiny --tier artefact
    muster model keep tiny --tier host --weights /models/tiny
"""

import argparse
import hashlib
import json
import os
import sys
import time
from pathlib import Path

import model_server

PRODUCT = "kernel.bin"
PRODUCT_BYTES = 4 << 20
PIECE_BYTES = 8 << 20


def load(weights: str, disk_mib_s: int) -> tuple[bytearray, str]:
    """Read all weight files; return them, and the SHA-256 of the first piece of each."""
    resident = os.environ.get("MUSTER_MODEL_WEIGHTS", "")
    top, rate = (resident, 0) if resident else (weights, disk_mib_s << 20)
    held, digest, began = bytearray(), hashlib.sha256(), time.monotonic()
    # Folders of the node may be closed to a listing, so the names come from the index if there is
    # one.
    for path in names(top or "/nonexistent"):
        with open(path, "rb", buffering=0) as stream:
            first = True
            while piece := stream.read(PIECE_BYTES):
                held += piece
                if first:
                    digest.update(piece)
                    first = False
                if rate:
                    time.sleep(max(0.0, len(held) / rate - (time.monotonic() - began)))
    return held, digest.hexdigest()


def names(top: str) -> list[Path]:
    """Return the weight files: those of index.json, as for sharded checkpoints, or all."""
    index = Path(top) / "index.json"
    if index.exists():
        return [Path(top) / name for name in json.loads(index.read_text())]
    return sorted(path for path in Path(top).glob("**/*") if path.is_file())


def compiled(seconds: float, weights: str) -> str:
    """Return the SHA-256 of the compiled product, made now unless the cache has it."""
    folder = Path(os.environ.get("TRITON_CACHE_DIR", "/nonexistent"))
    product = folder / PRODUCT
    if product.exists():
        return hashlib.sha256(product.read_bytes()).hexdigest()
    seed, until = weights.encode(), time.monotonic() + seconds
    while time.monotonic() < until:
        hashlib.pbkdf2_hmac("sha256", seed, b"compile", 1_000)
    made = hashlib.sha256(seed).digest() * (PRODUCT_BYTES // hashlib.sha256().digest_size)
    if folder.is_dir():
        product.write_bytes(made)
    return hashlib.sha256(made).hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--weights", default="")
    parser.add_argument("--disk-mib-s", type=int, default=0)
    parser.add_argument("--compile-s", type=float, default=0.0)
    given, rest = parser.parse_known_args()
    began = time.monotonic()
    held, digest = load(given.weights, given.disk_mib_s) if given.weights else (bytearray(), "")
    loaded = time.monotonic()
    product = compiled(given.compile_s, digest)
    done = time.monotonic()
    said = {
        "weights_bytes": len(held),
        "load_s": round(loaded - began, 3),
        "compile_s": round(done - loaded, 3),
        "product": product,
    }
    print(json.dumps(said), flush=True)
    sys.argv[1:] = rest
    model_server.main()


if __name__ == "__main__":
    main()
