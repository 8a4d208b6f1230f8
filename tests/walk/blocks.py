"""The fenced blocks of a page, and the commands in those of a shell."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
RUN = ("bash", "python", "yaml")
"""Languages of blocks that a reader runs or saves; all others are output to look at."""
_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
_GLOBS = frozenset("[]{}*?!")


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Args:
        place: `README.md:12`, its page and first line.
        language: behind its fence.
        text: what is between the fences.
    """

    place: str
    language: str
    text: str

    @property
    def file(self) -> str | None:
        """The name of a file in its first line, `# mine.py`: the block is to be saved under that name."""
        name = re.match(r"# ([\w.-]+\.(?:py|yaml))\n", self.text)
        return name[1] if name and self.language in ("python", "yaml") else None

    @property
    def lines(self) -> list[str]:
        """The lines of a shell, those that go on behind a backslash as one."""
        joined = re.sub(r"\\\n\s*", "", self.text)
        # a quoted value may span lines, as a list of configurations does
        parts = re.findall(r"(?:[^'\n]|'[^']*')+", joined)
        return [part for part in parts if part.strip() and not part.lstrip().startswith("#")]


def blocks_of(page: Path) -> list[Block]:
    """Return the blocks of a page that are run or saved, in their order."""
    text = page.read_text()
    return [
        Block(f"{page.name}:{text[: fence.start()].count(chr(10)) + 2}", fence[2], dedent(fence[3]))
        for fence in _FENCE.finditer(text)
        if fence[2] in RUN
    ]


def commands_of(line: str) -> Iterator[list[str]]:
    """Split a line of a shell into the words of its commands, at `&&`, `|` and `;`."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;")
    lexer.whitespace_split, lexer.commenters = True, "#"
    words: list[str] = []
    for word in [*lexer, "&&"]:
        if set(word) <= set("|&;"):
            yield words
            words = []
        else:
            words.append(word)


def unquoted_patterns(line: str) -> list[str]:
    """Return the words that a shell may take for patterns of file names, which zsh refuses where no file fits."""
    bare = re.sub(r"'[^']*'|\"[^\"]*\"", "", line)
    return [word for word in bare.split() if _GLOBS & set(word)]
