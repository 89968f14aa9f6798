"""`python -m libs.docs`: write the generated pages into docs/ of the working directory."""

import sys
from pathlib import Path

from libs.docs.pages import PAGES


def main() -> int:
    """Write and print the pages that changed. Return 1 if there is no docs/."""
    docs = Path("docs")
    if not docs.is_dir():
        print("there is no directory docs/: run this in the project's root", file=sys.stderr)
        return 1
    for name, page in PAGES.items():
        path, text = docs / name, page()
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
