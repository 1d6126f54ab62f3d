"""Check the built site: `python docs/tools/check_site.py [FOLDER]`, part of `make docs`.

No page loads anything from another host, every file that a page loads is there, and no link leads to a missing page.
"""

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from html import unescape
from os.path import normpath
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADING = {("script", "src"), ("img", "src"), ("source", "src"), ("source", "srcset"), ("iframe", "src")}
LOADING |= {("video", "src"), ("audio", "src"), ("embed", "src"), ("object", "data"), ("image", "href")}
LOADING_LINKS = {"stylesheet", "icon", "preload", "prefetch", "preconnect", "dns-prefetch", "manifest", "modulepreload"}

TAG = re.compile(r"<([a-z][\w-]*)\b([^>]*)>")
ATTRIBUTE = re.compile(r"""\b(id|name|src|srcset|href|data|rel|style)=(?:"([^"]*)"|([^\s">]+))""")


@dataclass
class _References:
    """What a page loads, what it links to, and the anchors that it has."""

    loads: list[str]
    links: list[str]
    ids: set[str]


def problems(site: Path) -> Iterator[str]:
    """One line for each reference that leaves the site or leads to nothing."""
    pages = {path: _references(path) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        place = path.relative_to(site)
        for target in page.loads:
            if urlsplit(target).netloc:
                yield f"{place}: loads '{target}' from another host"
            elif not target.startswith("data:") and not _file(site, path, target).is_file():
                yield f"{place}: loads '{target}', which is not there"
        for target in page.links:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc or path.name == "404.html":
                continue
            file = _file(site, path, target)
            if not file.is_file():
                yield f"{place}: links to '{target}', which is not there"
            elif parts.fragment and file in pages and unquote(parts.fragment) not in pages[file].ids:
                yield f"{place}: links to '{target}', which has no such anchor"
    for path in sorted(site.rglob("*.css")):
        for target in re.findall(
            r"(?:url\(\s*['\"]?|@import\s+['\"])((?:https?:)?//[^'\")]+)", path.read_text("utf-8")
        ):
            yield f"{path.relative_to(site)}: loads '{target}' from another host"


def _references(path: Path) -> _References:
    """Of the page as MkDocs writes it, whose attributes are quoted where they need to be."""
    page = _References([], [], set())
    for tag, text in TAG.findall(path.read_text(encoding="utf-8")):
        values = {name: unescape(quoted or bare) for name, quoted, bare in ATTRIBUTE.findall(text)}
        page.ids |= {values[name] for name in ("id", "name") if name in values}
        page.loads += [values[name] for element, name in LOADING if element == tag and name in values]
        if tag == "link" and set(values.get("rel", "").split()) & LOADING_LINKS:
            page.loads.append(values.get("href", ""))
        if tag == "a" and "href" in values:
            page.links.append(values["href"])
        page.loads += re.findall(r"url\(([^)]+)\)", values.get("style", ""))
    return page


@cache
def _address(folder: Path) -> Path:
    return folder / "index.html" if folder.is_dir() else folder


def _file(site: Path, page: Path, target: str) -> Path:
    """The file that a relative address leads to."""
    address = unquote(urlsplit(target).path)
    if not address:
        return page
    root = site if address.startswith("/") else page.parent
    return _address(Path(normpath(root / address.lstrip("/"))))


def main() -> int:
    site = Path(sys.argv[1] if len(sys.argv) > 1 else "site").resolve()
    found = list(problems(site))
    print("\n".join(found) if found else f"{len(list(site.rglob('*.html')))} pages, all links lead somewhere")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
