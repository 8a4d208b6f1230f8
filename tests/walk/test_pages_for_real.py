"""The lines of some pages on images of a reader's own, with nothing cut short but the size of their runs."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from raysl.cli.arguments import LOW_RESOURCE
from tests.jobs.test_submit_lines import SMALL_RUN
from tests.walk.blocks import ROOT, Block, blocks_of, commands_of
from tests.walk.reader import Reader
from tests.walk.things import Things

SMALL = {
    "pretrain": (*LOW_RESOURCE, "benchmarks=[low_shot]", "train.online_knn_every=null"),
    "benchmark": ("data.limit=100",),
}
"""Settings behind those of a line; of several values of a setting the last one counts."""


def runs(text: str) -> bool:
    """Whether a block has nothing to do with clusters, installing, or training of a network for ImageNet."""
    return "ray up" not in text and "ray job" not in text and "-m venv" not in text


def argv(words: list[str], things: Things) -> list[str]:
    """Return what a process is started with for a command of raysl, made small."""
    assert words[0] == "raysl"
    small = SMALL_RUN if words[1:3] == ["pretrain", "simclr"] else SMALL.get(words[1], ())
    return [sys.executable, "-m", *(things.in_place_of_the_readers(word) for word in words), *small]


@pytest.mark.slow
@pytest.mark.parametrize("page", ["README.md", "docs/callbacks.md", "docs/recipes.md"])
def test_the_lines_of_a_page_run_one_after_the_other(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    things = Things.make(tmp_path / "things", copies=10)
    Reader("README.md", tmp_path, things)
    quickstart = Block(page, "bash", "raysl pretrain")
    for block in [quickstart, *(block for block in blocks_of(ROOT / page) if runs(block.text))]:
        if block.file:
            (tmp_path / block.file).write_text(block.text)
        elif block.language == "bash":
            for words in (words for line in block.lines for words in commands_of(line)):
                done(argv(words, things), tmp_path)
        elif block.language == "python":
            text = re.sub(r'"train\.epochs=\d+"', '"train.epochs=2"', things.in_place_of_the_readers(block.text))
            done([sys.executable, "-c", text], tmp_path)


def done(words: list[str], folder: Path) -> None:
    """Run a command to its end, in a folder."""
    ended = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, f"{words[2:]}\n{ended.stdout}{ended.stderr}"
