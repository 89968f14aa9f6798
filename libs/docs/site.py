"""Hooks of MkDocs for `make site`: what the pages need beside Markdown.

Pages link to files of the project that are no pages: examples, ARCHITECTURE.md, sources. Each of
these gets a page of its own below `project/`, so that the site works without the project and
without a network. Pages that the navigation in mkdocs.yml does not name are added to its sections.
Tests: tests/site/test_site.py.
"""

import os
import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from libs.docs.state_drawing import drawn

if TYPE_CHECKING:  # only who builds the site has installed it
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

LINK: Final = re.compile(r"(\]\()([^()\s#]{1,200})(#[^()\s]{0,200})?(\))")
CODE: Final = re.compile(r"(^```.*?^```$|`[^`\n]+`)", re.DOTALL | re.MULTILINE)
MERMAID: Final = re.compile(r"```mermaid\n([^`]*)```\n")
FOLDER: Final = "project"
# Ending -> the language that colours the file.
LANGUAGES: Final = {".py": "python", ".sh": "sh", ".yml": "yaml", ".yaml": "yaml", ".toml": "toml"}
# Where pages go that mkdocs.yml does not name: by their folder or name, else to the last one.
SECTIONS: Final = {
    "howto": "How-to guides",
    "decisions": "Decisions",
    "explain": "Explanations",
    **dict.fromkeys(("diagnose.md", "monitoring.md", "spans.md", "trace.md"), "Operate"),
}
OTHERS: Final = "Reference"


def on_config(config: "MkDocsConfig") -> "MkDocsConfig":
    """Add the pages that the navigation does not name."""
    docs, nav = Path(config.docs_dir), list(config.nav or [])
    named = set(_named(nav))
    for path in sorted(docs.rglob("*.md")):
        name = path.relative_to(docs).as_posix()
        if name not in named:
            section = SECTIONS.get(name.split("/")[0], OTHERS)
            _section(nav, section).append(name)
    config.nav = nav
    return config


def _named(nav: Any) -> list[str]:  # noqa: ANN401  lists and mappings of any depth
    if isinstance(nav, str):
        return [nav]
    below = nav.values() if isinstance(nav, dict) else nav
    return [name for each in below for name in _named(each)]


def _section(nav: list[Any], title: str) -> list[Any]:
    for each in nav:
        if isinstance(each, dict) and title in each:
            found: list[Any] = each[title]
            return found
    nav.append({title: []})
    return _section(nav, title)


def on_files(files: "Files", config: "MkDocsConfig") -> "Files":
    """Add a page for each file of the project that a page links to, and those that these name."""
    from mkdocs.structure.files import File

    docs = Path(config.docs_dir)
    root, waiting, seen = docs.parent, sorted(docs.rglob("*.md")), {""}
    while waiting:
        page = waiting.pop()
        for target in _outside(page.read_text(), page.parent, docs):
            name = page_of(target, root)
            if name in seen:
                continue
            seen.add(name)
            files.append(File.generated(config, name, content=_shown(target, root)))
            if target.suffix == ".md":
                waiting.append(target)
    return files


def on_page_markdown(markdown: str, page: "Page", config: "MkDocsConfig", files: "Files") -> str:
    """Draw the diagrams, and lead links out of docs/ to the pages that were added for them."""
    docs = Path(config.docs_dir)
    source = page.file.src_uri
    at = docs / source
    if source.startswith(f"{FOLDER}/"):
        at = docs.parent / source.removeprefix(f"{FOLDER}/")
    drawing = MERMAID.sub(lambda found: f"<figure>\n{drawn(found[1])}\n</figure>\n\n", markdown)
    parts = CODE.split(drawing)
    return "".join(
        part if number % 2 else _led(part, at.parent, docs, source)
        for number, part in enumerate(parts)
    )


def _led(text: str, folder: Path, docs: Path, source: str) -> str:
    def led(found: re.Match[str]) -> str:
        target = _target(found[2], folder)
        if target is None:
            return found[0]
        name = (
            target.relative_to(docs).as_posix()
            if target.is_relative_to(docs)
            else page_of(target, docs.parent)
        )
        link = posixpath.relpath(name, posixpath.dirname(source) or ".")
        return f"{found[1]}{link}{found[3] or ''}{found[4]}"

    return LINK.sub(led, text)


def _target(link: str, folder: Path) -> Path | None:
    """Return the file of a relative link; None for addresses."""
    return None if "://" in link else Path(os.path.normpath(folder / link))


def _outside(text: str, folder: Path, docs: Path) -> list[Path]:
    """Return the files outside docs/ to which a page links."""
    prose = CODE.sub("", text)
    found = [_target(each[2], folder) for each in LINK.finditer(prose)]
    return [each for each in found if each and each.exists() and not each.is_relative_to(docs)]


def page_of(target: Path, root: Path) -> str:
    """Return the name of the page that shows a file or folder of the project."""
    name = target.relative_to(root).as_posix()
    if target.is_dir():
        return f"{FOLDER}/{name}/index.md"
    return f"{FOLDER}/{name}" if target.suffix == ".md" else f"{FOLDER}/{name}.md"


def _shown(target: Path, root: Path) -> str:
    name = target.relative_to(root).as_posix()
    if target.suffix == ".md":
        return target.read_text()
    if target.is_dir():
        below = [each for each in sorted(target.iterdir()) if each.is_file()]
        return "\n\n".join([f"# {name}", *(_listing(each, f"## {each.name}") for each in below)])
    return _listing(target, f"# {name}")


def _listing(path: Path, title: str) -> str:
    language = LANGUAGES.get(path.suffix, "text")
    return f"{title}\n\n````{language}\n{path.read_text(errors='replace')}\n````\n"
