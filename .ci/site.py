"""What the site has beside the pages of `docs/`: the README as its front page, and source files that pages link to."""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
SOURCE = re.compile(r"\]\(\.\./((?:raysl|jobs|configs)/[\w./-]+|cluster\.yaml)\)")
KIND = {".py": "python", ".yaml": "yaml"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the front page and a page for each source file that is linked to."""
    front = re.sub(r"\]\(docs/", "](", (ROOT / "README.md").read_text())
    files.append(File.generated(config, "index.md", content=front))
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
    return SOURCE.sub(lambda link: f"]({posixpath.relpath(f'source/{link[1]}.md', folder)})", markdown)
