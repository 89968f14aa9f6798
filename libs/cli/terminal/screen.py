"""A full screen that is redrawn: alternate screen, keys without Enter, terminal restored after it.

It uses ANSI sequences and termios directly, which start faster than a terminal library and do not
flicker on slow connections.
"""

import os
import select
import shutil
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

ENTER: Final = "\x1b[?1049h\x1b[?25l"
LEAVE: Final = "\x1b[?25h\x1b[?1049l"
HOME: Final = "\x1b[H"
TO_LINE_END: Final = "\x1b[K"
TO_SCREEN_END: Final = "\x1b[J"
QUIT_KEYS: Final = (b"q", b"Q", b"\x03", b"\x04", b"")


def redraw(picture: Callable[[int, int], list[str]], every_s: float) -> None:
    """Redraw `picture(columns, lines)` until q, Ctrl-C or the end of input."""
    with _own_screen():
        while True:
            columns, lines = shutil.get_terminal_size()
            shown = picture(columns, lines)[:lines]
            sys.stdout.write(
                HOME + "\r\n".join(line + TO_LINE_END for line in shown) + TO_SCREEN_END
            )
            sys.stdout.flush()
            if _quit_within(every_s):
                return


def _quit_within(seconds: float) -> bool:
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        ready, _, _ = select.select([0], [], [], left)
        if ready and os.read(0, 1) in QUIT_KEYS:
            return True
    return False


@contextmanager
def _own_screen() -> Iterator[None]:
    before = termios.tcgetattr(0)
    try:
        tty.setcbreak(0)
        sys.stdout.write(ENTER)
        yield
    except KeyboardInterrupt:
        pass
    finally:
        sys.stdout.write(LEAVE)
        sys.stdout.flush()
        termios.tcsetattr(0, termios.TCSADRAIN, before)
