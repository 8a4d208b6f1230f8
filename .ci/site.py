"""Pages of the site that `docs/` lacks: README and its like, notebooks, settings, source files behind links."""

import json
import posixpath
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import raysl
from raysl.components import ALIASES, resolve
from raysl.config.docs import describe
from raysl.config.dump import write_inline
from raysl.config.schema import TrainConfig

ROOT = Path(__file__).resolve().parents[1]
SOURCE = re.compile(r"\]\(\.\./((?:raysl|jobs|configs)/[\w./-]+|cluster\.yaml)\)")
NOTEBOOK = re.compile(r"\]\((?:\.\./)?(notebooks/\w+)\.ipynb\)")
FRONT = {"README.md": "index.md", "CONTRIBUTING.md": "CONTRIBUTING.md", "CHANGELOG.md": "CHANGELOG.md"}
KIND = {".py": "python", ".yaml": "yaml"}
NODES = {
    "method": "method",
    "backbone": "backbone",
    "source": "data",
    "optimizer": "optim",
    "benchmark": "benchmarks.*",
}
SETTINGS = """Every setting with its default, read from the classes that hold them. A configuration departs from these
where its paper does: `raysl config NAME key=value ...` prints the settings of a run, with those of its views.
[Callbacks](../callbacks.md) have theirs on their own page."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the repository's root, the notebooks, the settings, and each source file that is linked to."""
    for name, page in FRONT.items():
        content = re.sub(r"\]\(docs/", "](", (ROOT / name).read_text())
        files.append(File.generated(config, page, content=content))
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=notebook_page(path)))
    files.append(File.generated(config, "api/settings.md", content=settings_page()))
    pages = [
        Path(config.docs_dir, file.src_uri).read_text() for file in files.documentation_pages() if file.abs_src_path
    ]
    for name in sorted({name for text in pages for name in SOURCE.findall(text)}):
        code = (ROOT / name).read_text()
        content = f"---\nsearch: {{exclude: true}}\n---\n# {name}\n\n````{KIND[Path(name).suffix]}\n{code}````\n"
        files.append(File.generated(config, f"source/{name}.md", content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links out of `docs/` to the pages of their files."""
    folder = posixpath.dirname(page.file.src_uri) or "."
    markdown = NOTEBOOK.sub(lambda link: f"]({posixpath.relpath(f'{link[1]}.md', folder)})", markdown)
    return SOURCE.sub(lambda link: f"]({posixpath.relpath(f'source/{link[1]}.md', folder)})", markdown)


def settings_page() -> str:
    """Write every setting with its default and its doc line."""
    rows = describe(raysl.load_config("simclr", ["name=run"]))
    parts = ["# Settings", SETTINGS, "## run", settings_table(row for row in rows if "." not in row[0])]
    parts += ["## train", settings_table(("train." + key, *row) for key, *row in describe(TrainConfig()))]
    for slot, node in NODES.items():
        configs = {name: resolve(slot, name).Config(name=name) for name in sorted(ALIASES[slot])}
        tables = {
            name: [(f"{node}.{key}", *row) for key, *row in describe(config) if not key.startswith(("name", "views."))]
            for name, config in configs.items()
        }
        shared = set.intersection(*({key for key, *_ in rows} for rows in tables.values()))
        first = next(iter(tables.values()))
        parts += [f"## {node}", settings_table(row for row in first if row[0] in shared)]
        for name, rows in tables.items():
            parts += [f"### {name}", settings_table(row for row in rows if row[0] not in shared)]
    return "\n\n".join(parts) + "\n"


def settings_table(rows: Iterable[tuple[str, Any, str]]) -> str:
    """Write settings as a table of Markdown."""
    lines = [f"| `{key}` | `{write_inline(value)}` | {doc.replace('|', chr(92) + '|')} |" for key, value, doc in rows]
    return "\n".join(["| setting | default | |", "|---|---|---|", *lines]) if lines else "No settings of its own."


def notebook_page(path: Path) -> str:
    """A notebook as a page: its text, its code, and what each cell has shown."""
    parts = []
    for cell in json.loads(path.read_text())["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            source = re.sub(r"\]\(\.\./docs/", "](../", source)
            parts.append(re.sub(r"\]\((\w+)\.ipynb\)", r"](\1.md)", source))
        else:
            parts += [f"````python\n{source}\n````", *map(shown, cell["outputs"])]
    return "\n\n".join(parts) + "\n"


def shown(output: dict[str, Any]) -> str:
    """The best form of an output that a page can have: a picture, a table, text."""
    data = output.get("data", {})
    if "image/png" in data:
        return f'<img alt="output of the cell above" src="data:image/png;base64,{"".join(data["image/png"]).strip()}">'
    if "text/html" in data:
        return "<div>" + re.sub(r"\n\s*", "", "".join(data["text/html"])) + "</div>"
    text = "".join(output.get("text", data.get("text/plain", "")))
    return f"````text\n{text.rstrip()}\n````"
