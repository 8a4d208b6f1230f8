"""Pages of the site that `docs/` lacks: README and its like, notebooks, settings, source files behind links.

MkDocs calls it as a hook. `python .ci/site.py FOLDER` writes all pages and a mkdocs.yml for another generator.
"""

import dataclasses
import json
import posixpath
import re
import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import raysl
from raysl.components import ALIASES, resolve
from raysl.config.docs import Described, describe
from raysl.config.dump import write_inline
from raysl.config.schema import ClusterConfig, TrainConfig
from raysl.sweeps.schema import SweepConfig

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

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
    "callback": "callbacks.*",
}
SETTINGS = """Each setting with its type, the range of its numbers, its default and its meaning, read from the classes
that hold them. A configuration departs from these defaults where its paper does: `raysl config NAME key=value ...`
prints the settings of a run. Durations are epochs (`10ep`), steps (`500st`) or a share of the run (`5%`). Lists and
groups are written as in YAML, between quotes: `'optim.decay_at=[30ep,60ep]'`."""
PAGES = {
    "settings": (
        "Settings of a run",
        {
            "backbone": "`backbone=NAME` picks one.",
            "source": "`data=NAME` picks where images come from.",
            "optimizer": "`optim=NAME` picks one.",
            "callback": "`'callbacks=[NAME]'` adds one. [What each does](../callbacks.md)",
        },
    ),
    "settings-methods": ("Settings of methods", {"method": "`method=NAME` picks one. [What each is](../methods.md)"}),
    "settings-benchmarks": (
        "Settings of benchmarks",
        {"benchmark": "`raysl benchmark` takes them without `benchmarks.` in front. [What each is](../benchmarks.md)"},
    ),
}
"""Pages of settings: their titles, and the slots on them with what is said of each."""

SWEEPS = """Settings of a [sweep](../sweeps.md). `raysl config sweep/NAME key=value ...` prints those of one."""

NEEDED = "needed"
"""In the place of a default."""


def on_files(files: "Files", config: "MkDocsConfig") -> "Files":
    """Add the pages that `docs/` lacks to those of MkDocs."""
    from mkdocs.structure.files import File

    for name, content in added_pages().items():
        files.append(File.generated(config, name, content=content))
    return files


def on_page_markdown(markdown: str, page: "Page", config: "MkDocsConfig", files: "Files") -> str:
    """Lead links out of `docs/` to the pages of their files."""
    return linked(markdown, page.file.src_uri)


def write_pages(folder: Path) -> None:
    """Write all pages and a configuration without hooks into a folder, for generators that have none."""
    shutil.copytree(ROOT / "docs", folder / "docs", dirs_exist_ok=True)
    for name, content in added_pages().items():
        (folder / "docs" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "docs" / name).write_text(content)
    for path in (folder / "docs").rglob("*.md"):
        path.write_text(linked(path.read_text(), path.relative_to(folder / "docs").as_posix()))
    settings = (ROOT / "mkdocs.yml").read_text()
    settings = re.sub(r"^hooks: .*\n", "", settings, flags=re.MULTILINE)
    settings = settings.replace("paths: [.]", f"paths: [{ROOT}]").replace("[.ci/", f"[{ROOT}/.ci/")
    (folder / "mkdocs.yml").write_text(settings)


def added_pages() -> dict[str, str]:
    """Make the pages of the repository's root, the notebooks, the settings, and each source file that is linked to."""
    pages = {page: re.sub(r"\]\(docs/", "](", (ROOT / name).read_text()) for name, page in FRONT.items()}
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        pages[f"notebooks/{path.stem}.md"] = notebook_page(path)
    pages |= {f"api/{name}.md": settings_page(name) for name in PAGES}
    texts = [path.read_text() for path in (ROOT / "docs").rglob("*.md")]
    for name in sorted({name for text in texts for name in SOURCE.findall(text)}):
        code = (ROOT / name).read_text()
        content = f"---\nsearch: {{exclude: true}}\n---\n# {name}\n\n````{KIND[Path(name).suffix]}\n{code}````\n"
        pages[f"source/{name}.md"] = content
    return pages


def linked(markdown: str, name: str) -> str:
    """Return a page, by its name in `docs/`, with links to notebooks and source files led to their pages."""
    folder = posixpath.dirname(name) or "."
    markdown = NOTEBOOK.sub(lambda link: f"]({posixpath.relpath(f'{link[1]}.md', folder)})", markdown)
    return SOURCE.sub(lambda link: f"]({posixpath.relpath(f'source/{link[1]}.md', folder)})", markdown)


def settings_page(name: str) -> str:
    """Write every setting with its type, range, default and doc line."""
    title, slots = PAGES[name]
    parts = [f"# {title}", SETTINGS]
    if name == "settings":
        run = [row for row in describe(raysl.load_config("simclr", ["name=run"])) if "." not in row.key]
        parts += [
            "## run",
            settings_table("", run),
            "## train",
            settings_table("train.", describe(TrainConfig())),
        ]
        parts += ["## cluster", settings_table("cluster.", describe(ClusterConfig()))]
    for slot, told in slots.items():
        parts += [*([f"## {NODES[slot].partition('.')[0]}"] if len(slots) > 1 else []), told, *slot_tables(slot)]
    if name == "settings":
        parts += ["## sweep", SWEEPS, settings_table("", describe(SweepConfig()))]
    return "\n\n".join(parts) + "\n"


def slot_tables(slot: str) -> Iterator[str]:
    """Write what all components of a slot share, and then the settings of each."""
    configs = {name: declared(resolve(slot, name).Config, name) for name in sorted(ALIASES[slot])}
    tables = {name: [row for row in describe(config) if row.key != "name"] for name, config in configs.items()}
    first, *others = tables.values()
    shared = [row for row in first if not row.key.startswith("views.") and all(row in rows for rows in others)]
    if shared:
        yield settings_table(f"{NODES[slot]}.", shared)
    for name, rows in tables.items():
        yield f"### {name}"
        yield settings_table(f"{NODES[slot].replace('*', name)}.", [row for row in rows if row not in shared])


def declared(kind: type[Any], name: str) -> Any:
    """Return a component's settings with their defaults, also where these have to be changed before they make sense."""
    config = object.__new__(kind)
    for field in dataclasses.fields(kind):
        is_made = field.default_factory is not dataclasses.MISSING
        default = field.default_factory() if is_made else field.default  # type: ignore[misc]
        object.__setattr__(config, field.name, NEEDED if default is dataclasses.MISSING else default)
    object.__setattr__(config, "name", name)
    return config


def settings_table(prefix: str, rows: Iterable[Described]) -> str:
    """Write settings as a table of Markdown."""
    cells = [[f"`{prefix}{row.key}`", row.kind, row.range, f"`{write_inline(row.value)}`", row.doc] for row in rows]
    lines = ["| " + " | ".join(text.replace("|", "\\|") for text in line) + " |" for line in cells]
    head = ["| setting | type | range | default | meaning |", "|---|---|---|---|---|"]
    return "\n".join([*head, *lines]) if lines else "No settings of its own."


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


if __name__ == "__main__":
    write_pages(Path(sys.argv[1]))
