"""A translated configuration of VISSL: settings of raysl, and a line for each of its keys."""

import dataclasses
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from raysl.components import ALIASES, resolve
from raysl.config.build import from_dict
from raysl.config.docs import describe
from raysl.config.dump import escape, write_inline
from raysl.config.fields import put
from raysl.config.layers import COMPONENTS
from raysl.config.schema import RunConfig
from raysl.translation.vissl_settings import VisslSettings, leaves

Kind = Literal["same", "differs", "not needed", "missing"]
HEADINGS: dict[Kind, str] = {
    "differs": "Differs in meaning",
    "missing": "No counterpart",
    "not needed": "Nothing to set in raysl",
}
NODES = ("method", "backbone", "optim")
"""Parts of the settings whose defaults are listed."""
IDLE = {
    "backbone.in_channels",
    "backbone.norm_groups",
    "backbone.num_stages",
    "optim.cosine_from",
    "optim.decay_factor",
    "optim.exclude_norm_and_bias",
    "optim.patch_lr_scale",
    "optim.power",
    "optim.restart_factor",
    "optim.restart_growth",
    "optim.restart_peak",
    "optim.restart_wave",
    "optim.stretch",
    "optim.weight_decay_schedule",
}
"""Settings that change nothing unless another one asks for it."""


@dataclass(frozen=True)
class Line:
    """One key of a configuration of VISSL.

    Args:
        value: value there, or VISSL's default.
        is_given: whether the files have it.
        kind: how its meaning here compares.
        settings: raysl's settings for it.
        note: the difference, or the reason why there is nothing to set.
    """

    key: str
    value: Any
    is_given: bool
    kind: Kind
    settings: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""

    @property
    def words(self) -> str:
        """Raysl's settings as on the command line."""
        return " ".join(f"{key}={write_inline(value).strip(chr(39))}" for key, value in self.settings.items())


class Translation:
    """Collects the lines of a translation."""

    def __init__(self, vissl: VisslSettings, name: str) -> None:
        self.vissl = vissl
        self.name = name
        self.settings: dict[str, Any] = {}
        self.lines: list[Line] = []
        self.commands: list[str] = []
        self.command = f"raysl convert-config {name}.yaml"

    def maps(self, key: str, settings: Mapping[str, Any], note: str = "", value: Any = None) -> None:
        """A key has a counterpart; with a note, one that differs in meaning."""
        self.settings.update(settings)
        self._add(key, "differs" if note else "same", settings, note, value)

    def drops(self, keys: str, *, below: str = "", value: Any = None) -> None:
        """Keys, separated by blanks, for which there is nothing to set; `below` is the beginning of all of them."""
        for key in keys.split():
            if self._is_given(below + key) and not any(_covers(line.key, below + key) for line in self.lines):
                self._add(below + key, "not needed", {}, "", value)

    def lacks(self, key: str, note: str = "", value: Any = None) -> None:
        """A key has no counterpart."""
        self._add(key, "missing", {}, note, value)

    def choose(self, chosen: Mapping[str, Any]) -> None:
        """Let settings that the user gives hold; of a part that they replace, what the new one lacks is left out."""
        dropped: list[str] = []
        for node, slot in COMPONENTS.items():
            name = chosen.get(f"{node}.name")
            if name in ALIASES[slot]:
                config, beginning = resolve(slot, str(name)).Config, f"{node}."
                lost = [
                    key
                    for key in self.settings
                    if key.startswith(beginning) and not _knows(config, key.removeprefix(beginning).split("."))
                ]
                for key in lost:
                    del self.settings[key]
                dropped += lost
        before, self.settings = self.settings, {**self.settings, **chosen}
        replaced = [key for key, value in before.items() if value != self.settings[key]]
        self.lines = [_without(line, [*dropped, *replaced]) for line in self.lines]

    def _is_given(self, key: str) -> bool:
        return any(_covers(key, leaf) for leaf, _ in leaves(self.vissl.tree))

    def _add(self, key: str, kind: Kind, settings: Mapping[str, Any], note: str, value: Any = None) -> None:
        value = self.vissl.any(key) if value is None else value
        self.lines.append(Line(key, value, self._is_given(key), kind, dict(settings), note))

    def finish(self) -> None:
        """Add a line for every key that nothing was said of, and put lines in the order of the files."""
        order: dict[str, int] = {}
        said = [line.key for line in self.lines]
        for position, (leaf, value) in enumerate(leaves(self.vissl.tree)):
            covering = [key for key in said if _covers(key, leaf)]
            for key in covering:
                order.setdefault(key, position)
            if not covering:
                self.lines.append(Line(leaf, value, True, "missing"))
                order[leaf] = position
        # keys of which VISSL's default was taken are in no file, and come last
        self.lines.sort(key=lambda line: order.get(line.key, len(order) + 10_000))

    def tree(self) -> dict[str, Any]:
        """Return raysl's settings as a tree."""
        tree: dict[str, Any] = {}
        for key, value in sorted(self.settings.items(), key=lambda item: _place(item[0])):
            tree = put(tree, tuple(key.split(".")), value)
        return tree

    def config(self) -> RunConfig:
        """Return the settings that the result is, checked."""
        return from_dict({"name": self.name, **self.tree()})

    def defaults(self) -> list[str]:
        """Return settings at raysl's default that shape the result and that VISSL's file does not have."""
        rows = [row for row in describe(self.config()) if row.key.partition(".")[0] in NODES and row.key not in IDLE]
        return [
            f"{row.key}={write_inline(row.value)}"
            for row in rows
            if row.value and row.value != [1.0, 1.0] and not any(_covers(name, row.key) for name in self.settings)
        ]

    def text(self) -> str:
        """Return the YAML, with the lists of what needs a look as comments."""
        head = [f"Translated from VISSL: {self.command}"]
        body = list(_wrapped(head))
        for kind, heading in HEADINGS.items():
            chosen = [line for line in self.lines if line.kind == kind]
            body += _section(heading, [_told(line) for line in chosen], kind == "not needed")
        body += _section("At raysl's default, since the file says nothing of it", self.defaults(), True)
        body += _section("The same in other words", self.commands, False)
        return "".join(f"{line}\n" for line in body) + _group(escape(self.tree()))


def _group(node: dict[str, Any]) -> str:
    """Write a group with a line for each setting; a list that is too long for one has a line for each entry."""
    rows = []
    for name, value in node.items():
        inline = f"{name}: {write_inline(value)}"
        if isinstance(value, dict):
            rows.append(f"{name}:\n{textwrap.indent(_group(value), '  ')}")
        elif isinstance(value, list) and len(inline) > 100:
            rows += [f"{name}:\n", *(f"  - {write_inline(item)}\n" for item in value)]
        else:
            rows.append(f"{inline}\n")
    return "".join(rows)


def _knows(config: type[Any], parts: list[str]) -> bool:
    """Whether a class of settings has a setting, perhaps inside of others such as `views`."""
    fields = {field.name: field for field in dataclasses.fields(config)}
    if parts[0] not in fields:
        return False
    factory = fields[parts[0]].default_factory
    inner = fields[parts[0]].default if factory is dataclasses.MISSING else factory()
    return len(parts) == 1 or not dataclasses.is_dataclass(inner) or _knows(type(inner), parts[1:])


def _without(line: Line, replaced: Iterable[str]) -> Line:
    """Return a line without settings that were replaced; one that loses all of them sets nothing."""
    kept = {key: value for key, value in line.settings.items() if key not in replaced}
    return dataclasses.replace(line, settings=kept, kind="not needed" if line.settings and not kept else line.kind)


def _place(key: str) -> int:
    nodes = ("name", "seed", "storage", "method", "backbone", "data", "optim", "train", "benchmarks")
    node = key.partition(".")[0]
    return nodes.index(node) if node in nodes else len(nodes)


def _covers(key: str, leaf: str) -> bool:
    """Whether a key is that of a setting or of a group around it."""
    return leaf == key or leaf.startswith((f"{key}.", f"{key}["))


def _told(line: Line) -> str:
    value = "" if isinstance(line.value, dict | list) and len(str(line.value)) > 60 else f": {write_inline(line.value)}"
    if line.kind == "not needed":
        return f"{line.key} ({line.value})" if line.key.endswith("]") else line.key
    origin = "" if line.is_given else " (its default)"
    target = f" -> {line.words}" if line.settings else ""
    return f"{line.key}{value}{origin}{target}{f'; {line.note}' if line.note else ''}"


def _section(heading: str, items: Iterable[str], is_one_line: bool) -> list[str]:
    listed = list(dict.fromkeys(items))
    if not listed:
        return []
    return list(_wrapped([f"{heading}:", *([", ".join(listed)] if is_one_line else listed)]))


def _wrapped(items: list[str]) -> Iterator[str]:
    # a line break in a value would end the comment, and YAML would read the rest as settings
    first, *others = ["".join(letter if letter.isprintable() else "?" for letter in item) for item in items]
    yield f"# {first}"
    for item in others:
        yield from textwrap.wrap(
            item, 118, initial_indent="# - ", subsequent_indent="#   ", break_on_hyphens=False, break_long_words=False
        )
