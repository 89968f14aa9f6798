"""`make rdma`: boot the guest, run the transport's contract over real verbs, print figures.

Where the guest cannot run, this says why and fails nothing.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.guest.build import CannotRun, built

REPOSITORY: Final = Path(__file__).parents[2]
# An emulated guest on a machine that is busy otherwise needs minutes to boot alone.
GUEST_S: Final = 1800
# The sources are copied first: thousands of small reads through QEMU are slow.
JOB: Final = """mkdir /tmp/sources && cd /repository
tar cf - --exclude=__pycache__ libs/__init__.py libs/job tests/__init__.py tests/guest \\
  tests/contract tests/attack/__init__.py tests/attack/test_transport.py \
  libs/common services/__init__.py services/node_agent tests/integration/links_world.py \
  tests/integration/copies_world.py tests/integration/test_links_over_rdma.py \
  | tar xf - -C /tmp/sources
cp -r /exchange/packages/. /tmp/sources
cd /tmp/sources
export PYTHONPATH=/tmp/sources PYTHONUNBUFFERED=1
ibv_devices
python3 -m tests.guest.figures
python3 -m pytest -c /dev/null --rootdir /tmp/sources --noconftest -p no:cacheprovider -rs -q \\
  {words}
"""
SUITE: Final = (
    "tests/contract/test_transport.py tests/attack/test_transport.py "
    "tests/integration/test_links_over_rdma.py"
)
# Packages of agents that the guest takes from this machine's environment. They are compiled for
# its Python, which must have the same version as the guest's.
PACKAGES: Final = ("msgspec", "nkeys", "nacl", "_cffi_backend")


def main() -> int:
    """Run the guest; return the exit status of its tests."""
    try:
        guest = built()
    except CannotRun as error:
        print(f"make rdma does not run here: {error}")
        return 0
    job = JOB.format(words=os.environ.get("MUSTER_GUEST_TESTS") or SUITE)
    with tempfile.TemporaryDirectory() as folder:
        exchange = Path(folder)
        (exchange / "job.sh").write_text(job)
        _packages(exchange / "packages")
        began = _boot(guest, exchange)
        output, rc = exchange / "output", exchange / "rc"
        if not rc.exists():
            _show(exchange / "console")
            if not output.exists():
                print(f"make rdma does not run here: {began}")
                return 0
            _show(output)
            print(f"make rdma did not finish: {began}")
            return 1
        sys.stdout.write(output.read_text(errors="replace"))
        return int(rc.read_text())


def _packages(folder: Path) -> None:
    """Copy the packages that agents need."""
    folder.mkdir()
    for name in PACKAGES:
        found = importlib.util.find_spec(name)
        if found is None or found.origin is None:
            continue
        origin = Path(found.origin)
        if found.submodule_search_locations is None:
            shutil.copy(origin, folder)
        else:
            shutil.copytree(origin.parent, folder / name, ignore=shutil.ignore_patterns("*.pyc"))


def _boot(guest: Path, exchange: Path) -> str:
    """Run the guest until it powers off; return why it did not, if so."""
    qemu = shutil.which("qemu-system-x86_64")
    if qemu is None:
        return "qemu-system-x86_64 is gone: remove the guest's folder to build it again"
    shares = {
        "root": (guest / "root", "on"),
        "repository": (REPOSITORY, "on"),
        "exchange": (exchange, "off"),
    }
    command = [qemu, "-accel", "tcg,thread=multi", "-cpu", "max", "-machine", "q35", "-m", "768"]
    command += ["-smp", "2", "-nodefaults", "-no-reboot", "-display", "none"]
    command += ["-serial", f"file:{exchange / 'console'}", "-kernel", str(guest / "vmlinuz")]
    command += ["-initrd", str(guest / "initrd.gz")]
    command += ["-append", "console=ttyS0 quiet panic=-1 mitigations=off no_timer_check"]
    for name, (path, only) in shares.items():
        words = f"local,id={name},path={path},security_model=none,readonly={only},multidevs=remap"
        command += ["-fsdev", words, "-device", f"virtio-9p-pci,fsdev={name},mount_tag={name}"]
    try:
        done = subprocess.run(command, timeout=GUEST_S, capture_output=True, text=True, check=False)
    except subprocess.TimeoutExpired:
        return f"the guest did not end within {GUEST_S} s"
    return done.stderr.strip()[-300:] or "the guest ended without running the tests"


def _show(console: Path) -> None:
    if console.exists():
        print("\n".join(console.read_text(errors="replace").splitlines()[-40:]))


if __name__ == "__main__":
    sys.exit(main())
