"""What the site has beside the pages of `docs/`: the README, the notebooks, and source files that pages link to."""

import json
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
SOURCE = re.compile(r"\]\(\.\./((?:raysl|jobs|configs)/[\w./-]+|cluster\.yaml)\)")
NOTEBOOK = re.compile(r"\]\((?:\.\./)?(notebooks/\w+)\.ipynb\)")
KIND = {".py": "python", ".yaml": "yaml"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the front page, the notebooks, and a page for each source file that is linked to."""
    front = re.sub(r"\]\(docs/", "](", (ROOT / "README.md").read_text())
    files.append(File.generated(config, "index.md", content=front))
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=notebook_page(path)))
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
