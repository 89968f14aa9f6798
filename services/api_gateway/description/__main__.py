"""`python -m services.api_gateway.description`: write the generated files that changed."""

import sys
from pathlib import Path

from services.api_gateway.description.files import generated
from services.api_gateway.http.client_models import description


def main() -> int:
    """Write the files and print their names. Return 1 if this is not the project's root."""
    root = Path()
    if not (root / "pyproject.toml").is_file():
        print("there is no pyproject.toml: run this in the project's root", file=sys.stderr)
        return 1
    for name, content in generated(root, description()).items():
        path = root / name
        if not path.exists() or path.read_bytes() != content:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
