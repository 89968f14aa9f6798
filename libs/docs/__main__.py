"""`python -m libs.docs`: write every generated page of docs/ below the directory where it is
called.
"""

import sys
from pathlib import Path

from libs.docs.pages import PAGES


def main() -> int:
    """Write what has changed and name it. Exit code 1 where there is no docs/."""
    docs = Path("docs")
    if not docs.is_dir():
        print("there is no docs/ here: call this from the project's root", file=sys.stderr)
        return 1
    for name, page in PAGES.items():
        path, text = docs / name, page()
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
