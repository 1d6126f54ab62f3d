"""What MkDocs does besides rendering Markdown: links into the source, pages of the source, sections, formulas.

Pages are written for GitHub, where every relative link works. On the site a link out of docs/ needs a target:

    ../../CONTRIBUTING.md                                       the site's page of this file
    ../../src/stratafl/algorithms/flayer.py                     the file in the repository, or its copy on the site
    ../../src/stratafl/algorithms/flayer.py#LayerRate           the line that defines it, looked up at every build
    `algorithms/flayer.py:LayerRate`                            in code: the same link

Markers on their own line are replaced by what is generated: `<!-- commands -->`, `<!-- api stratafl -->`.
"""

import ast
import logging
import posixpath
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from command_page import commands_page
from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
ROOT_PAGES = {  # pages of the site that lie outside docs/
    "README.md": "index.md",
    "ARCHITECTURE.md": "design/architecture.md",
    "CONTRIBUTING.md": "design/contributing.md",
    "CHANGELOG.md": "design/changelog.md",
}
USED_FIRST = ("fit", "load", "compare", "tune", "advise")
NOT_SEARCHED = ("notebook/", "results/short/", "results/headline/")  # evidence, which other pages link to
FOUND_FIRST = ("start/", "guide/")
SECTIONS = ("start", "tutorials", "understand", "guide", "methods", "results", "reference", "design")
LANGUAGES = {".py": "python", ".toml": "toml", ".yaml": "yaml", ".yml": "yaml", ".json": "json", ".sh": "bash"}
MAX_SOURCE_BYTES = 300_000
LINK = re.compile(r"(?<!\\)\]\(([^()\s]+)((?:\s+\"[^\"]*\")?)\)")
HTML_LINK = re.compile(r"(<(?:img|a|source)\b[^>]*?\b(?:src|srcset|href)=\")([^\"]+)(\")")
CODE_PLACE = re.compile(r"(?<![\[`])`((?:[\w.-]+/)+[\w.-]+\.py)(?::([A-Za-z_][\w.]*))?`(?![\]`])")
FENCE = re.compile(r"^( *)(`{3,}|~{3,})[^\n]*\n.*?^\1\2`*[ ]*$", re.MULTILINE | re.DOTALL)
CODE_SPAN = re.compile(r"(`+)(?!`)(.+?)(?<!`)\1(?!`)")
MATH = re.compile(r"<(span|div) class=\"arithmatex\">(.*?)</\1>", re.DOTALL)
MARKER = re.compile(r"^<!-- (commands|api ([\w.]+)) -->$", re.MULTILINE)
log = logging.getLogger("mkdocs.hooks.site")


# Sections


def on_config(config):
    """Add to every section the pages of its folder that the navigation does not name."""
    named = set(_pages(config["nav"]))
    for section in config["nav"]:
        ((title, entries),) = section.items()
        if not isinstance(entries, list):
            continue
        entries[:] = [entry for entry in entries if not isinstance(entry, str) or _exists(entry)]
        folder = next((posixpath.dirname(page) for page in _pages(entries)), None) or _folder(title)
        rest = [page for page in _folder_pages(folder) if page not in named]
        entries += _by_kind(rest) if folder == "methods" else rest
    config["nav"] = [section for section in config["nav"] if next(iter(section.values()))]
    return config


def _pages(entries):
    for entry in entries:
        value = next(iter(entry.values())) if isinstance(entry, dict) else entry
        yield from [value] if isinstance(value, str) else _pages(value)


def _exists(page):
    return (DOCS / page).exists() or page in ROOT_PAGES.values() or page in {f"{name}/README.md" for name in SECTIONS}


def _folder(title):
    return {"How to": "guide"}.get(title, title.lower())


def _folder_pages(folder):
    """Pages of a folder and of the root that belong to it, README first, others by their titles."""
    files = {f"{folder}/{path.name}": path for path in (DOCS / folder).glob("*.md")}
    files |= {page: ROOT / name for name, page in ROOT_PAGES.items() if posixpath.dirname(page) == folder}
    return sorted(
        files, key=lambda page: (not page.endswith("README.md"), page in ROOT_PAGES.values(), _title(files[page]))
    )


def _title(path):
    match = re.search(r"^# (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return match[1].lower() if match else path.stem


def _by_kind(pages):
    """Pages of methods in groups, as the index of methods lists them; others follow."""
    index = (DOCS / "methods/README.md").read_text(encoding="utf-8")
    groups, rest = [], dict.fromkeys(pages)
    for part in re.split(r"^## ", index, flags=re.MULTILINE)[1:]:
        title, _, text = part.partition("\n")
        linked = [f"methods/{name}" for name in re.findall(r"\]\(([\w-]+\.md)", text)]
        members = [page for page in dict.fromkeys(linked) if page in rest]
        for page in members:
            del rest[page]
        if members:
            groups.append({title.strip(): members})
    return groups + list(rest)


# Pages from outside docs/


def on_files(files: Files, config):
    """Add the pages of the root, and unless there is a repository to link to, of every source file that is linked."""
    for name, page in ROOT_PAGES.items():
        if name != "README.md" and files.get_file_from_path(page) is None:
            files.append(File.generated(config, page, content=(ROOT / name).read_text(encoding="utf-8")))
    folders = {*SECTIONS, *(posixpath.dirname(file.src_uri) for file in files.documentation_pages())} - {""}
    for folder in sorted(folders):
        if files.get_file_from_path(f"{folder}/README.md") is None:
            files.append(File.generated(config, f"{folder}/README.md", content=_index(folder)))
    if config.repo_url:
        return files
    texts = [(file.src_uri, file.content_string) for file in files.documentation_pages()]
    linked = {target for uri, text in texts for target in _targets(uri, text) if (ROOT / target).exists()}
    for target in sorted(linked):
        files.append(File.generated(config, _source_page(target), content=_source_text(ROOT / target, target)))
    return files


def _index(folder):
    """A list of the pages of a folder that has no README."""
    pages = sorted((_title(path), path.name) for path in (DOCS / folder).glob("*.md"))
    name = posixpath.basename(folder).replace("-", " ").capitalize()
    return f"# {name}\n\n" + "".join(f"- [{title[:1].upper()}{title[1:]}]({page})\n" for title, page in pages)


def _targets(uri, text):
    """Files outside docs/ that this page links to."""
    prose = FENCE.sub("", text)
    for match in LINK.finditer(prose):
        path, _ = _outside(uri, match[1])
        if path and path not in ROOT_PAGES:
            yield path
    for match in CODE_PLACE.finditer(prose):
        if path := _code_path(match[1]):
            yield path


def _source_page(target):
    return f"source/{target}.md"


def _source_text(path, target):
    head = f"---\nsearch: {{exclude: true}}\nhide: [navigation, toc]\ntitle: {target}\n---\n\n# `{target}`\n\n"
    if path.is_dir():
        return head + "\n".join(f"- `{child.name}{'/' * child.is_dir()}`" for child in sorted(path.iterdir()))
    if path.stat().st_size > MAX_SOURCE_BYTES:
        return head + f"This file has {path.stat().st_size:,} bytes. You find it in the source tree.\n"
    text = path.read_text(encoding="utf-8")
    return head + f'``````````{{ .{LANGUAGES.get(path.suffix, "text")} linenums="1" }}\n{text.rstrip()}\n``````````\n'


# Links


def on_page_markdown(markdown, page, config, files):
    """Links out of docs/ lead to the site's pages or to the repository; markers become what is generated."""
    uri = page.file.src_uri
    if uri.startswith("source/"):
        return markdown
    if uri.startswith((*NOT_SEARCHED, *FOUND_FIRST)):
        page.meta["search"] = {"exclude": True} if uri.startswith(NOT_SEARCHED) else {"boost": 2}
    markdown = MARKER.sub(_generated, markdown)
    parts, end = [], 0
    for fence in FENCE.finditer(markdown):
        parts += [_linked(markdown[end : fence.start()], uri, config), fence[0]]
        end = fence.end()
    return "".join([*parts, _linked(markdown[end:], uri, config)])


def _linked(text, uri, config):
    """The text with its links; code that shows a link stays."""
    parts, end = [], 0
    for span in CODE_SPAN.finditer(text):
        if "](" in span[0]:
            parts += [_with_links(text[end : span.start()], uri, config), span[0]]
            end = span.end()
    return "".join([*parts, _with_links(text[end:], uri, config)])


def _with_links(text, uri, config):
    text = LINK.sub(lambda match: f"]({_link(uri, match[1], config)}{match[2]})", text)
    text = HTML_LINK.sub(lambda match: f"{match[1]}{_html_link(uri, match[2])}{match[3]}", text)
    return CODE_PLACE.sub(lambda match: _code_link(uri, match, config), text)


def _html_link(uri, target):
    """MkDocs leaves links of raw HTML alone, but a page moves into a folder of its name."""
    inside = posixpath.normpath(posixpath.join(posixpath.dirname(uri), target))
    if re.match(r"[a-z]+:|[#/]|\{", target) or target.endswith(".md"):
        return target
    if not (DOCS / inside.partition("#")[0]).exists():
        log.warning("%s shows '%s', which does not exist", uri, target)
    is_index = posixpath.basename(uri) in ("index.md", "README.md")
    return target if is_index else f"../{target}"


def _link(uri, target, config):
    path, anchor = _outside(uri, target)
    if path is None:
        return _within(uri, target)
    if path in ROOT_PAGES:
        return _relative(uri, ROOT_PAGES[path]) + (f"#{anchor}" if anchor else "")
    return _source_link(uri, path, anchor, config)


def _within(uri, target):
    """A folder of docs/ is its index."""
    if re.match(r"[a-z]+:|[#/]", target):
        return target
    inside = posixpath.normpath(posixpath.join(_written_in(uri), target))
    if uri in ROOT_PAGES.values():
        inside = posixpath.relpath(inside, "docs") if inside.startswith("docs/") else inside
        target = _relative(uri, inside)
    folder = DOCS / inside
    if "#" not in target and folder.is_dir() and any(folder.glob("*.md")):
        return _relative(uri, f"{inside}/README.md")
    return target


def _written_in(uri):
    """The folder of a page's own file, from docs/; for pages of the root, from the root."""
    return "" if uri in ROOT_PAGES.values() and uri != "index.md" else posixpath.dirname(uri)


def _outside(uri, target):
    """The path from the root and the anchor of a link that leaves docs/, else None."""
    if re.match(r"[a-z]+:|[#/]", target):
        return None, ""
    path, _, anchor = target.partition("#")
    if uri in ROOT_PAGES.values() and uri != "index.md":
        full = posixpath.normpath(path)
    else:
        full = posixpath.normpath(posixpath.join("docs", posixpath.dirname(uri), path))
    inside = full.startswith("docs/") and not full.startswith("docs/tools/")
    return (None, "") if inside or full.startswith("..") else (full, anchor)


def _relative(uri, page):
    return posixpath.relpath(page, posixpath.dirname(uri) or ".")


def _source_link(uri, path, anchor, config):
    file = ROOT / path
    if not file.exists():
        log.warning("%s links to '%s', which does not exist", uri, path)
        return "#"
    line = _line(uri, file, anchor) if anchor else None
    if config.repo_url:
        kind = "tree" if file.is_dir() else "blob"
        return f"{config.repo_url.rstrip('/')}/{kind}/{config.extra['branch']}/{path}" + (f"#L{line}" if line else "")
    return _relative(uri, _source_page(path)) + (f"#__codelineno-0-{line}" if line else "")


def _line(uri, file, anchor):
    """The line of a definition, or of `L57`."""
    if re.fullmatch(r"L\d+", anchor):
        return int(anchor[1:])
    if file.suffix == ".py" and (line := definitions(file).get(anchor)):
        return line
    log.warning("%s links to '%s' in %s, which does not define it", uri, anchor, file.relative_to(ROOT))
    return None


def _code_path(path):
    return next((p for p in (path, f"src/stratafl/{path}") if (ROOT / p).is_file()), None)


def _code_link(uri, match, config):
    path = _code_path(match[1])
    if path is None:
        return match[0]
    return f"[{match[0]}]({_source_link(uri, path, match[2] or '', config)})"


@cache
def definitions(file: Path) -> dict[str, int]:
    """The lines of a module's names, and of `Class.name` for what its classes define."""
    lines: dict[str, int] = {}

    def add(nodes, prefix):
        for node in nodes:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                lines.setdefault(prefix + node.name, node.lineno)
            if isinstance(node, ast.ClassDef):
                add(node.body, f"{prefix}{node.name}.")
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            for target in targets:
                if isinstance(target, ast.Name):
                    lines.setdefault(prefix + target.id, node.lineno)

    add(ast.parse(file.read_text(encoding="utf-8")).body, "")
    return lines


# Generated text


def _generated(match):
    return commands_page() if match[1] == "commands" else _api(match[2])


def _api(module):
    """The public names of a module: functions first, then what they return."""
    if find_spec(module) is None:
        return f"`{module}` is not part of this version.\n"
    loaded = __import__(module, fromlist=["__all__"])
    names = [name for name in loaded.__all__ if not name.startswith("__")]
    functions = [name for name in names if not isinstance(getattr(loaded, name), type)]
    functions.sort(key=lambda name: USED_FIRST.index(name) if name in USED_FIRST else len(USED_FIRST))
    ordered = [*functions, *(name for name in names if name not in functions)]
    return "\n\n".join(f"::: {module}.{name}" for name in ordered) + "\n"


# Formulas


def on_page_content(html: str, page, config, files):
    """Formulas become MathML, which browsers draw without a script."""
    if page.file.src_uri.startswith("source/"):
        page.present_anchor_ids |= set(re.findall(r'id="(__codelineno-[\d-]+)"', html))  # MkDocs does not see these
    return MATH.sub(lambda match: _math(match[1], match[2].strip(), page), html)


def _math(tag, text, page):
    import html as entities

    latex = re.sub(r"^\\[(\[]|\\[)\]]$", "", entities.unescape(text)).strip()
    try:
        return convert(latex, display="block" if tag == "div" else "inline")
    except Exception as error:
        log.warning("%s: the formula '%s' cannot be drawn: %r", page.file.src_uri, latex, error)
        return f"<code>{entities.escape(latex)}</code>"
