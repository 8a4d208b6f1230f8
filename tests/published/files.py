"""The files of published facts: reading them, comparing them with a recipe, and their departures as tables."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from raysl.config.config_files import SHORT, config_names, find, read_file
from tests.marked import replaced
from tests.published.initial import Drawn
from tests.published.measure import REQUIRED, measured
from tests.published.recipe import IMAGES, Recipe

FOLDER = Path(__file__).parent
PAGE = FOLDER.parents[1] / "docs" / "recipes.md"
BEGIN, END = "<!-- departures: written by `python -m tests.published` -->", "<!-- end of departures -->"
STAGES = tuple(f"continue/dino_v3_{stage}" for stage in ("distill", "gram", "high_res"))
"""Configurations of a paper that begin with trained weights."""


@dataclass(frozen=True)
class Published:
    """What `tests/published/NAME.yaml` says."""

    name: str
    sources: Mapping[str, str]
    facts: Mapping[str, tuple[Any, str]]
    departures: Mapping[str, tuple[Any, str]]
    images: int = IMAGES
    build: tuple[str, ...] = ()

    @classmethod
    def read(cls, name: str) -> "Published":
        """The file of a recipe.

        Raises:
            ValueError: if it lacks something, or names a source that it does not list.
        """
        tree = read_file(FOLDER / f"{name}.yaml")
        if unknown := set(tree) - {"sources", "facts", "departures", "images", "build"}:
            raise ValueError(f"{name}: no such part: {sorted(unknown)}")
        facts = {key: tuple(pair) for key, pair in tree["facts"].items()}
        departures = {key: tuple(pair) for key, pair in (tree.get("departures") or {}).items()}
        for key, pair in (facts | departures).items():
            if len(pair) != 2 or not isinstance(pair[1], str):
                raise ValueError(f"{name}: {key}: {pair} is no [value, source] or [value, why]")
        if unlisted := {source for _, source in facts.values()} - set(tree["sources"]):
            raise ValueError(f"{name}: facts of sources that are not listed: {sorted(unlisted)}")
        images, build = tree.get("images", IMAGES), tuple(tree.get("build", ()))
        return cls(name, tree["sources"], facts, departures, images, build)

    def problems(self) -> list[str]:
        """A line for each fact that is not ours, and each departure that is none."""
        return compared(self, measured(Recipe(self.name, self.images, self.build)))


def compared(published: Published, ours: Mapping[str, Any]) -> list[str]:
    """A line for each fact that is not ours, and each departure that is none.

    Args:
        published: the file.
        ours: our value of each fact.
    """
    lines = [f"{name}: every file states it" for name in REQUIRED if name not in published.facts]
    for group in ("layers.", "init."):
        # A frozen teacher's layers are those of another run.
        is_there = any(name.startswith(group) and value and name != "layers.teacher" for name, value in ours.items())
        if is_there and not any(name.startswith(group) for name in published.facts):
            lines.append(f"{group}*: every file states how heads are built, and how weights are drawn")
    for name, (theirs, source) in published.facts.items():
        if name not in ours:
            lines.append(f"{name}: no such fact of this recipe; see `python -m tests.published {published.name}`")
        elif same(ours[name], theirs) and name in published.departures:
            lines.append(f"{name}: we have {text(theirs)} as {source} has; take the departure out")
        elif not same(ours[name], theirs) and name not in published.departures:
            lines.append(f"{name}: {source} has {text(theirs)}, we have {text(ours[name])}")
        elif name in published.departures and not same(ours[name], listed := published.departures[name][0]):
            lines.append(f"{name}: the departure says {text(listed)}, we have {text(ours[name])}")
    lines += [f"{name}: a departure from no fact" for name in published.departures if name not in published.facts]
    return lines


def same(ours: Any, theirs: Any) -> bool:
    """Whether a value of ours is a published one: numbers to a thousandth of the largest of a list's."""
    if isinstance(ours, Drawn):
        return theirs in ours
    if isinstance(ours, list) and ours and not isinstance(theirs, list | dict):
        return all(same(one, theirs) for one in ours)
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        if all(_is_number(value) for value in (*ours, *theirs)):
            most = 5e-4 * max(map(abs, theirs), default=0)
            return all(abs(one - other) <= 1e-3 * abs(other) + most for one, other in zip(ours, theirs, strict=True))
        return all(same(one, other) for one, other in zip(ours, theirs, strict=True))
    if isinstance(ours, dict) and isinstance(theirs, dict) and set(ours) == set(theirs):
        return all(same(ours[key], theirs[key]) for key in ours)
    if _is_number(ours) and _is_number(theirs):
        return bool(abs(ours - theirs) <= 1e-3 * abs(theirs))
    return bool(ours == theirs)


def text(value: Any) -> str:
    """A value in few characters."""
    if isinstance(value, list) and value and all(one == value[0] for one in value[1:]) and _is_number(value[0]):
        return f"{text(value[0])}, {len(value)} times" if len(value) > 5 else "[" + ", ".join(map(text, value)) + "]"
    if isinstance(value, list):
        return "[" + ", ".join(map(text, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {text(one)}" for key, one in value.items()) + "}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def recipes() -> list[str]:
    """Names of the configurations that need a file: those of ImageNet from the start, and `STAGES`."""
    names = {name.removeprefix(SHORT) for name in config_names() if name.startswith(SHORT)}
    return sorted({*names, *STAGES})


def table() -> str:
    """The departures of all recipes, in Markdown."""
    rows = ["| recipe | what | ours | theirs | why |", "|---|---|---|---|---|"]
    for name in recipes():
        published = Published.read(name)
        for key, (ours, why) in published.departures.items():
            theirs, source = published.facts[key]
            cells = (f"{name}", f"{key}", text(ours), f"{text(theirs)} ({published.sources[source]})", why)
            rows.append("| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |")
    return "\n".join(rows) + "\n"


def in_words() -> str:
    """What else the headers of the recipes tell of, in Markdown."""
    rows = ["| recipe | what else differs |", "|---|---|"]
    for name in recipes():
        header = find(name, Path.cwd()).read_text(encoding="utf-8").partition("\n# Differs: ")[2]
        lines = header.splitlines()
        more = takewhile(lambda line: line.startswith("# ") and not re.match(r"# [A-Z]\w+: ", line), lines[1:])
        if lines:
            rows.append(f"| {name} | " + " ".join([lines[0], *(line[2:] for line in more)]) + " |")
    return "\n".join(rows) + "\n"


def with_table(page: str) -> str:
    """The page with the tables between its marks.

    Raises:
        ValueError: if it has no marks.
    """
    return replaced(page, BEGIN, END, f"\n\n{table()}\n{in_words()}\n")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
