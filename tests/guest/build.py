"""Build the guest: kernel, initial file system and root folder, from Debian packages by name.

Everything lies in one folder outside of the repository (`MUSTER_GUEST`, else
~/.cache/muster/rdma-guest) and is kept. The recipe is docs/transport.md, "Real verbs".
"""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

TOOLS: Final = ("qemu-system-x86_64", "mmdebstrap", "cpio", "depmod")
TOOL_PACKAGES: Final = ("qemu-system-x86", "mmdebstrap", "cpio", "kmod")
KERNEL: Final = "linux-image-amd64"
SUITE: Final = "bookworm"
ROOT_PACKAGES: Final = (
    "python3",
    "python3-pyverbs",
    "python3-pytest",
    "python3-xxhash",
    "python3-zstandard",
    "ibverbs-utils",
    "ibverbs-providers",
    "perftest",
    "rdma-core",
    "iproute2",
    "kmod",
)
# Modules of the initial file system: the disk is a folder of the host (9p over virtio).
EARLY: Final = ("virtio_pci", "9pnet_virtio", "9p")
LATER: Final = (
    "crc32_generic",
    "crc32c_generic",
    "rdma_rxe",
    "ib_uverbs",
    "rdma_ucm",
    "dummy",
    "sch_netem",
    "veth",
)
BUILD_S: Final = 900
READY: Final = "ready"
INIT: Final = """#!/bin/busybox sh
/bin/busybox mkdir -p /proc /sys /dev /root
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sys /sys
/bin/busybox mount -t devtmpfs dev /dev
for module in $(/bin/busybox cat /early); do /bin/busybox insmod $module; done
/bin/busybox mount -t 9p -o trans=virtio,version=9p2000.L,ro,msize=262144,cache=loose root /root
exec /bin/busybox switch_root /root /guest-init
"""


class CannotRun(Exception):
    """This machine cannot build or run the guest; the text says why."""


def folder() -> Path:
    """Return where the guest is kept."""
    kept = os.environ.get("MUSTER_GUEST")
    return Path(kept) if kept else Path.home() / ".cache/muster/rdma-guest"


def built() -> Path:
    """Return the folder of the guest; build it first if it is not there. Raises CannotRun."""
    target = folder()
    if (target / READY).exists():
        return target
    _tools()
    print(f"building the guest in {target} (once, some minutes)", flush=True)
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    release = _kernel(target)
    _root(target, release)
    _initrd(target, release)
    (target / READY).write_text(release)
    return target


def _tools() -> None:
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if not missing:
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise CannotRun(
            f"{', '.join(missing)} not found: install {' '.join(TOOL_PACKAGES)} "
            "(as root on Debian or Ubuntu this happens by itself)"
        )
    _run("apt-get", "update")
    _run("apt-get", "install", "-y", "--no-install-recommends", *TOOL_PACKAGES)


def _kernel(target: Path) -> str:
    """Unpack kernel and busybox; return the kernel's release."""
    downloads = target / "packages"
    downloads.mkdir()
    depends = _run("apt-cache", "depends", "--important", KERNEL)
    image = next(
        (line.split()[-1] for line in depends.splitlines() if "Depends: linux-image-" in line), ""
    )
    if not image:
        raise CannotRun(f"apt-cache knows no kernel by the name {KERNEL}: run apt-get update")
    _run("apt-get", "download", image, "busybox-static", cwd=downloads)
    unpacked = target / "unpacked"
    for package in downloads.glob("*.deb"):
        _run("dpkg-deb", "-x", str(package), str(unpacked))
    release = next((unpacked / "lib/modules").iterdir()).name
    shutil.copy(unpacked / f"boot/vmlinuz-{release}", target / "vmlinuz")
    _run("depmod", "-b", str(unpacked), release)
    return release


def _root(target: Path, release: str) -> None:
    root = target / "root"
    _run(
        "mmdebstrap",
        "--variant=minbase",
        "--mode=root",
        f"--include={','.join(ROOT_PACKAGES)}",
        SUITE,
        str(root),
    )
    for module in _closure(target, release, LATER):
        place = root / module.relative_to(target / "unpacked")
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(module, place)
    modules = target / f"unpacked/lib/modules/{release}"
    for table in ("modules.order", "modules.builtin"):
        shutil.copy(modules / table, root / f"lib/modules/{release}" / table)
    _run("depmod", "-b", str(root), release)
    for name in ("repository", "exchange"):
        (root / name).mkdir()
    script = root / "guest-init"
    script.write_text((Path(__file__).parent / "init.sh").read_text())
    script.chmod(0o755)


def _initrd(target: Path, release: str) -> None:
    tree = target / "initrd"
    (tree / "bin").mkdir(parents=True)
    shutil.copy(target / "unpacked/bin/busybox", tree / "bin/busybox")
    names = []
    for module in _closure(target, release, EARLY):
        shutil.copy(module, tree / module.name)
        names.append(f"/{module.name}")
    (tree / "early").write_text("\n".join(names))
    (tree / "init").write_text(INIT)
    (tree / "init").chmod(0o755)
    with (target / "initrd.gz").open("wb") as output:
        subprocess.run(
            "find . | cpio --quiet -o -H newc | gzip -1",
            shell=True,
            cwd=tree,
            stdout=output,
            check=True,
            timeout=BUILD_S,
        )


def _closure(target: Path, release: str, names: tuple[str, ...]) -> list[Path]:
    """Return the files of modules and of all that they need, in the order to load them."""
    found: dict[Path, None] = {}
    for name in names:
        said = _run(
            "modprobe",
            "-d",
            str(target / "unpacked"),
            "-S",
            release,
            "--show-depends",
            "--ignore-install",
            name,
        )
        for line in said.splitlines():
            if line.startswith("insmod "):
                found[Path(line.split()[1])] = None
    return list(found)


def _run(*command: str, cwd: Path | None = None) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=BUILD_S, cwd=cwd
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotRun(f"{command[0]}: {error}") from error
    if done.returncode:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["no reason given"]
        raise CannotRun(f"{' '.join(command[:3])} failed: {last[0]}")
    return done.stdout
