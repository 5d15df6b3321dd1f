"""Hooks of mkdocs that make one site of pages from all over the repository.

Links are written as a code-hosting site follows them, relative to the file that they are in. Here they lead to pages of
the site: Markdown becomes a page wherever it lies, a file of code and a folder get a page that shows them.
"""

import json
import posixpath
import re
from pathlib import Path
from urllib.parse import urldefrag

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
HOME = "README.md"
LINK = re.compile(r"(?<=\]\()[^)\s]+(?=\))")
OTHER = InclusionLevel.NOT_IN_NAV
NOTEBOOK = ".ipynb"
NOT_SEARCHED = "---\nsearch: {exclude: true}\n---\n"
AS_THEY_ARE = (".md", ".png", ".svg")
LANGUAGES = {".cpp": "cpp", ".cu": "cpp", ".cuh": "cpp", ".h": "cpp", ".py": "python", ".toml": "toml", ".yaml": "yaml"}

_places: dict[str, str] = {}  # where a page's Markdown lies in the repository


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what pages lead to, and what that leads to."""
    waiting = [HOME]
    for file in files:
        if file.src_uri.endswith(NOTEBOOK):
            waiting.append(f"docs/{file.src_uri}")
        _places[file.src_uri] = f"docs/{file.src_uri}"
        if file.is_documentation_page():
            waiting += _targets(_places[file.src_uri], file.content_string)
    while waiting:
        place = waiting.pop()
        if _uri(place) not in _places:
            _places[_uri(place)] = place
            file = _file(place, config)
            files.append(file)
            if file.is_documentation_page():
                waiting += _targets(place, file.content_string)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links to pages of the site."""
    here = _places[page.file.src_uri]
    if here.startswith("benchmarks/"):
        page.meta["search"] = {"boost": 0.3}  # behind the documentation

    def led(match: re.Match[str]) -> str:
        place, anchor = _place(here, match[0])
        if place is None:
            return match[0]
        uri = posixpath.relpath(_uri(place), posixpath.dirname(page.file.src_uri) or ".")
        return f"{uri}#{anchor}" if anchor else uri

    return LINK.sub(led, markdown)


def _file(place: str, config: MkDocsConfig) -> File:
    path = ROOT / place
    if path.is_dir():
        names = sorted(each.name for each in path.iterdir() if each.is_file() and each.suffix in LANGUAGES)
        base = posixpath.basename(place)
        text = f"{NOT_SEARCHED}# {place}\n\n" + "\n".join(f"* [{name}]({base}/{name})" for name in names)
        return File.generated(config, _uri(place), content=text, inclusion=OTHER)
    if path.suffix in AS_THEY_ARE:
        return File.generated(config, _uri(place), abs_src_path=str(path))
    if path.suffix == NOTEBOOK:
        return File.generated(config, _uri(place), content=_notebook(path))
    code = path.read_text(encoding="utf-8")
    text = f"{NOT_SEARCHED}# {place}\n\n```` {LANGUAGES.get(path.suffix, 'text')}\n{code}````\n"
    return File.generated(config, _uri(place), content=text, inclusion=OTHER)


def _notebook(path: Path) -> str:
    """A notebook as Markdown, with what its cells print."""
    parts = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", []):
            shown = "".join(output.get("text") or output.get("data", {}).get("text/plain", []))
            parts += [f"```text\n{shown.rstrip()}\n```"] if shown else []
    return "\n\n".join(parts)


def _targets(here: str, text: str) -> list[str]:
    return [place for link in LINK.findall(text) if (place := _place(here, link)[0]) is not None]


def _place(here: str, link: str) -> tuple[str | None, str]:
    """The file or folder of the repository that a link leads to, if it does, and the part of it."""
    path, anchor = urldefrag(link)
    if not path or ":" in path:
        return None, anchor
    place = posixpath.normpath(posixpath.join(posixpath.dirname(here), path))
    return (place if (ROOT / place).exists() and not place.startswith("..") else None), anchor


def _uri(place: str) -> str:
    if place == HOME:
        return "index.md"
    if place.endswith((*AS_THEY_ARE, NOTEBOOK)):
        return place.removeprefix("docs/").replace(NOTEBOOK, ".md")
    return f"{place}.md"


class Examples(griffe.Extension):
    """Docstrings say `Example:` of one example; griffe knows the section as `Examples:` only."""

    def on_object(self, *, obj: griffe.Object, **kwargs: object) -> None:
        """Rename the section."""
        if obj.docstring:
            obj.docstring.value = re.sub(r"(?m)^Example:$", "Examples:", obj.docstring.value)
