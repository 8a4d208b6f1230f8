"""What the reference does to docstrings, which are plain text with backticks, before they are read as Markdown."""

import re
from typing import Any

import griffe


class Examples(griffe.Extension):
    """Fences `>>>` examples, and keeps two shapes side by side, `[B] [0, 1]`, from being read as a link."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Change the docstring of a module, class, function or attribute."""
        if obj.docstring is not None:
            parts = re.split(r"(^ *>>> .*(?:\n *\S.*)*)", obj.docstring.value, flags=re.MULTILINE)
            obj.docstring.value = "".join(fenced(part) if n % 2 else unlinked(part) for n, part in enumerate(parts))


def fenced(example: str) -> str:
    """Put an example between fences as deep as itself."""
    indent = example[: example.index(">")]
    return f"{indent}```pycon\n{example}\n{indent}```"


def unlinked(text: str) -> str:
    """Escape the bracket of a second shape outside of backticks."""
    code = re.split(r"(`[^`]*`)", text)
    return "".join(part if n % 2 else re.sub(r"\]( ?)\[", r"]\1\\[", part) for n, part in enumerate(code))
