"""`make release`: build, compare, install, try, list, audit; then the files are in dist/."""

import argparse
import shutil
import sys
import tarfile
import tempfile
import tomllib
from pathlib import Path
from typing import Final

from libs.common.errors import Refused
from libs.release import audit, building, licences, trial

ROOT: Final = Path(__file__).parents[2]


def main(arguments: list[str]) -> int:
    """Make the release and return the exit status: 0, or 1 with the reason on stderr."""
    options = _options(arguments)
    with tempfile.TemporaryDirectory(prefix="muster-release-") as work:
        try:
            _release(options, Path(work))
        except Refused as refused:
            print(f"no release: {refused}", file=sys.stderr)
            return 1
    return 0


def _release(options: argparse.Namespace, work: Path) -> None:
    version = _checked(options)
    built, archive = _built(options.revision, work)
    into = Path(options.into)
    shutil.rmtree(into, ignore_errors=True)
    into.mkdir(parents=True)
    kept = [Path(shutil.copy(path, into)) for path in (built, archive)]
    python = trial.installed(built, work / "environment")
    if not options.no_trial:
        _tried(python, archive, work)
    kept += _papers(python, options, into)
    (into / "SHA256SUMS").write_text(building.sums(kept))
    print(f"muster {version} is in {into}:\n{building.sums(kept)}", end="")


def _checked(options: argparse.Namespace) -> str:
    """Return the version. Raises Refused for changes without a commit and a missing section."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    version = str(project["version"])
    if not options.draft:
        if changed := building.changes(ROOT):
            raise Refused(f"these changes are in no commit; commit them first:\n{changed}")
        if not building.dated((ROOT / "CHANGELOG.md").read_text(), version):
            raise Refused(f"CHANGELOG.md has no section `## {version} (YYYY-MM-DD)`: add it")
    return version


def _built(revision: str, work: Path) -> tuple[Path, Path]:
    """Build wheel and sdist twice, in different folders. Raises Refused if they differ."""
    rounds = []
    for name in ("first", "second"):
        place = work / name
        epoch = building.sources(ROOT, revision, place / "sources")
        archive = building.sdist(place / "sources", place / "sdist", epoch)
        built = building.wheel(archive, place / "work", place / "wheel", epoch)
        rounds.append((built, archive))
    for one, other in zip(*rounds, strict=True):
        if one.read_bytes() != other.read_bytes():
            raise Refused(f"two builds of {one.name} differ: compare {one} and {other}")
    print("wheel and sdist: two builds are equal byte for byte")
    return rounds[0]


def _tried(python: Path, archive: Path, work: Path) -> None:
    """Follow the tour with the installed wheel and the examples of the sdist."""
    with tarfile.open(archive) as tar:
        tar.extractall(work / "unpacked", filter="data")
    (source,) = (work / "unpacked").iterdir()
    folder = work / "empty"
    folder.mkdir()
    examples = shutil.copytree(source / "examples", work / "examples")
    trial.Trial(python, folder).tour(examples / "model_server.py")
    print("installed into an empty environment: `muster up`, the tour and `muster down` work")


def _papers(python: Path, options: argparse.Namespace, into: Path) -> list[Path]:
    """Write the bill of materials, the licences and the audit. Raises Refused for bad ones."""
    bill = into / "sbom.cdx.json"
    audit.bill_of_materials(python, ROOT / "pyproject.toml", bill)
    rows = licences.installed(python)
    page = into / "LICENCES.md"
    page.write_text(licences.page(rows, "muster-gpu"))
    if bad := licences.unknown(rows):
        names = ", ".join(f"{row.name} ({row.licence})" for row in bad)
        raise Refused(f"no allowed licence: {names}; see ALLOWED in libs/release/licences.py")
    report = into / "pip-audit.json"
    found = audit.audited(python, report, options.osv_url)
    if found.vulnerable:
        raise Refused("vulnerable dependencies: " + "; ".join(found.vulnerable))
    if found.unaudited and not options.unaudited:
        raise Refused(
            f"pip-audit could not look up {len(found.unaudited)} packages, for example "
            f"{found.unaudited[0]}: give --osv-url, or --unaudited to publish without the audit"
        )
    state = f"{len(found.unaudited)} packages NOT looked up" if found.unaudited else "clean"
    print(f"{len(rows)} packages, all under allowed licences; pip-audit: {state}")
    return [bill, page, report]


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m libs.release", description=main.__doc__)
    parser.add_argument("--revision", default="HEAD", help="Revision to release.")
    parser.add_argument("--into", default="dist", help="Folder of the files. It is emptied first.")
    parser.add_argument("--osv-url", default="", help="OSV service for pip-audit (default: PyPI).")
    parser.add_argument("--unaudited", action="store_true", help="Allow packages without audit.")
    parser.add_argument("--draft", action="store_true", help="Skip checks of commit, changelog.")
    parser.add_argument("--no-trial", action="store_true", help="Do not start a cluster.")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
