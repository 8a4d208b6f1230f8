"""A reader who types the blocks of one page, one after the other, in a folder of its own.

Python is executed and commands of raysl are parsed and their settings resolved by the command line itself; what would
take a cluster, a GPU, a bucket or minutes is cut short behind that, see `tests.walk.ends`.
"""

import os
import re
import shutil
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import Any

from raysl.checkpoint.backbone import load_checkpoint
from raysl.components import resolve
from raysl.config.dump import to_dict
from raysl.config.load import load_config
from raysl.config.schema import RunConfig
from raysl.errors import ConfigError
from raysl.trained import is_trained
from tests.walk.blocks import ROOT, Block, commands_of, unquoted_patterns
from tests.walk.own import EVERYWHERE, FILE, IMAGES, OWN, SWEEP
from tests.walk.programs import PROGRAMS
from tests.walk.things import Things

CLONE = ("configs", "cluster.yaml", "docs", "jobs", "notebooks", "perf", "pyproject.toml", "raysl", "tests")
LOCAL_SOURCES = ("image_folder", "parquet", "photos", "digits", "synthetic")


class Reader:
    """A walk through a page.

    Args:
        page: its name.
        folder: an empty one.
        things: what a reader has, ready to be copied.
    """

    def __init__(self, page: str, folder: Path, things: Things) -> None:
        self.page, self.things, self.place = page, things, page
        self.names: dict[str, Any] = {"__name__": "__main__"}
        self.runs: dict[str, RunConfig] = {}
        self.sweeps: set[str] = set()
        self.has_token = False
        self.is_installed = page not in ("README.md", "CONTRIBUTING.md")
        self.venvs: set[Path] = set()
        os.chdir(folder)
        self.clone(folder)
        for name, kind in {**({} if page == "README.md" else EVERYWHERE), **OWN.get(page, {})}.items():
            self.bring(folder / name, kind)

    def clone(self, folder: Path) -> None:
        """Make a clone of raysl."""
        folder.mkdir(exist_ok=True)
        for name in CLONE:
            (folder / name).symlink_to(ROOT / name)

    def bring(self, path: Path, kind: str | tuple[str, ...]) -> None:
        """Put down what the reader has."""
        if isinstance(kind, tuple):
            self.made_run(path, load_config(kind[0], [self.things.in_place_of_the_readers(word) for word in kind[1:]]))
        elif kind == IMAGES:
            path.symlink_to(self.things.images / "train")
        elif kind == SWEEP:
            self.made_sweep(path)
        elif kind == FILE:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"")
        else:
            shutil.copytree(self.things.arrays, path)

    def type(self, block: Block) -> None:
        """Save a block, or run it."""
        self.place = block.place
        text = self.things.in_place_of_the_readers(block.text)
        if block.file:
            Path(block.file).write_text(text)
        elif block.language == "python":
            exec(compile(text, block.place, "exec"), self.names)
        elif block.language == "yaml":
            self.things.check_yaml(text)
        else:
            lines = Block(block.place, block.language, text).lines
            for number, line in enumerate(lines, 1):
                assert not unquoted_patterns(line), f"put quotes around {unquoted_patterns(line)}"
                assert " #" not in line, "zsh, at its prompt, takes a comment for arguments"
                for words in commands_of(line):
                    self.command(words, is_last=number == len(lines))

    def command(self, words: list[str], is_last: bool = True) -> None:
        """Run one command of a shell."""
        environment = list(takewhile(re.compile("[A-Z_]+=").match, words))
        path, *arguments = words[len(environment) :]
        name = Path(path).name if Path(path).parts[1:2] == ("bin",) else path
        assert name == path or Path(path).absolute().parents[1] in self.venvs, f"{path} does not exist by now"
        PROGRAMS[name](self, arguments, environment, is_last)

    def made_run(self, path: Path, config: RunConfig) -> None:
        """Note a run of these settings, with a checkpoint and a log of a small network in its folder."""
        known = self.runs.get(str(path))
        assert known is None or to_dict(known) == to_dict(config), (
            f"another block of {self.page} makes {path.name} with other settings, so this one is refused; add name="
        )
        self.runs[str(path)] = config
        if not path.exists():
            shutil.copytree(self.things.run, path)

    def made_sweep(self, path: Path) -> None:
        """Note a sweep, with a leaderboard in its folder."""
        self.sweeps.add(str(path))
        shutil.copytree(self.things.sweep, path, dirs_exist_ok=True)

    def run_of(self, uri: str) -> RunConfig:
        """Return the settings of a run or a checkpoint that the reader has by now."""
        if is_trained(uri):
            return load_checkpoint(uri).config
        path = str(Path(uri).absolute())
        assert path in self.runs, f"no block of {self.page} makes {uri}, and tests/walk/own.py does not list it"
        return self.runs[path]

    def check_places(self, config: RunConfig) -> None:
        """Check that local paths in settings are of files or runs that the reader has by now, and images are named."""
        if config.data.name in LOCAL_SOURCES:
            source = resolve("source", config.data.name)(config.data)
            with suppress(*([ConfigError] if self.things.are_elsewhere(config.data) else [])):
                assert source.required("train").num_samples
        for value in _texts({**to_dict(config), "storage": ""}):
            path, _, name = value.partition(":")
            if Path(path).is_absolute() and Path(path).is_relative_to(Path.cwd()) and "/" not in name:
                assert Path(path).exists() or _is_pattern(path), f"{value} does not exist by now"


def _texts(value: Any) -> list[str]:
    if isinstance(value, dict | list | tuple):
        return [text for part in (value.values() if isinstance(value, dict) else value) for text in _texts(part)]
    return [value] if isinstance(value, str) else []


def _is_pattern(path: str) -> bool:
    return "{" in path
