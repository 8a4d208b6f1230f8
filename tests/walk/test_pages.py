"""Every block of README and docs, page by page in a fresh folder, as printed and in order."""

import os
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from tests.walk.blocks import PAGES, ROOT, Block, blocks_of, commands_of
from tests.walk.ends import Ends
from tests.walk.own import OWN
from tests.walk.programs import check_install
from tests.walk.reader import Reader
from tests.walk.things import Things

LONG = ("command-line.md", "parts.md", "sweeps.md", "zoo.md")
"""Pages that take some seconds: they draw the trials of sweeps, or train."""
pages = pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=page.stem, marks=pytest.mark.slow if page.name in LONG else pytest.mark.thorough)
        for page in PAGES
        if blocks_of(page)
    ],
)


@pytest.fixture(scope="module")
def things(tmp_path_factory: pytest.TempPathFactory) -> Things:
    return Things.make(tmp_path_factory.mktemp("things"))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)  # and back, wherever the reader goes
    monkeypatch.setattr(os, "environ", os.environ.copy())
    return tmp_path


@pages
def test_the_blocks_of_a_page_run_as_printed_one_after_the_other(
    page: Path, folder: Path, things: Things, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = Reader(page.name, folder, things)
    Ends(reader, monkeypatch)
    for block in blocks_of(page):
        try:
            reader.type(block)
        except Exception as error:
            raise AssertionError(f"{block.place}: {error!r}") from error
    assert reader.is_installed


@pytest.mark.parametrize(("number", "end"), [(0, ["raysl", "pretrain"]), (1, ["pytest"])])
def test_each_line_of_the_first_block_of_readme_does_its_set_up_alone(
    number: int, end: list[str], folder: Path, things: Things, monkeypatch: pytest.MonkeyPatch
) -> None:
    block = blocks_of(ROOT / "README.md")[0]
    assert len(block.lines) == 2
    reader = Reader("README.md", folder, things)
    Ends(reader, monkeypatch)
    reader.type(replace(block, text=block.lines[number]))
    assert reader.is_installed
    *_, last = commands_of(block.lines[number])
    assert [Path(last[0]).name, *last[1:]] == end


def test_a_file_of_a_name_is_one_file_on_all_pages() -> None:
    contents: dict[str, set[str]] = {}
    for block in (block for page in PAGES for block in blocks_of(page) if block.file):
        contents.setdefault(str(block.file), set()).add(block.text)
    assert len(contents) > 5
    assert [name for name, texts in contents.items() if len(texts) > 1] == []


def test_a_run_of_a_name_is_one_run_on_all_pages() -> None:
    makers: dict[str, set[str]] = {}
    for block in (block for page in PAGES for block in blocks_of(page)):
        for line in block.lines if block.language == "bash" else block.text.splitlines():
            for name in re.findall(r"""[\s"']name=(\w+)""", line):
                makers.setdefault(name, set()).add(" ".join(line.split()))
    assert {"mine", "from_python"} <= set(makers)
    assert {name: lines for name, lines in makers.items() if len(lines) > 1} == {}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_a_page_says_to_install_can_be_installed_as_readme_does(page: Path) -> None:
    prose = " ".join(page.read_text().split())
    for command in re.findall(r"`pip install ([^`]+)`", prose):
        check_install(shlex.split(command))


@pytest.mark.parametrize("words", ["raysl[s3]", "'raysl[s3]'", "-e '.[nothing]'", "left-pad", ""])
def test_what_cannot_be_installed_is_found(words: str) -> None:
    with pytest.raises(AssertionError):
        check_install(shlex.split(words))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("raysl pretrain optim.rl=1", "optim.rl"),
        ("raysl pretrain --epochs 3", "--epochs"),
        ("raysl benchmark --checkpoint runs/nobody knn", "no checkpoint at"),
        ("raysl pretrain simclr", "needs data.path="),
        ("raysl pretrain train.epochs=2\nraysl pretrain train.epochs=3", "add name="),
        ("raysl pretrain callbacks=[profiler]", "quotes"),
        ("raysl pretrain method.name=nobody.py:Mine", "nobody.py"),
        ("raysl pretrain name=other method.weights=runs/nobody", "does not exist"),
        ("ray up cluster.yaml", "get-auth-token"),
        ("ray dashboard cluster.yaml\nraysl doctor", "does not return"),
        ("python -m perf stepp", "stepp"),
        ("jupyterr lab", "jupyterr"),
        (".venv/bin/pip install -e .", "does not exist by now"),
    ],
)
def test_what_would_fail_as_printed_is_found(
    text: str, message: str, folder: Path, things: Things, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = Reader("page.md", folder, things)
    Ends(reader, monkeypatch)
    with pytest.raises(Exception, match=re.escape(message)):
        reader.type(Block("page.md:1", "bash", text))


def test_a_name_that_no_block_of_the_page_has_defined_is_found(folder: Path, things: Things) -> None:
    with pytest.raises(NameError):
        Reader("page.md", folder, things).type(Block("page.md:1", "python", "raysl.load_config('simclr')"))


def test_what_the_reader_is_said_to_have_is_on_the_page() -> None:
    texts = {page.name: page.read_text() for page in PAGES}
    assert [(page, name) for page, names in OWN.items() for name in names if name not in texts[page]] == []
