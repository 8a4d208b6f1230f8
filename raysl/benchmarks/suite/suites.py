"""Suites: benchmarks on several datasets with one average, each a YAML file of names, images, metrics and settings."""

import difflib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raysl.benchmarks.suite.scores import Member
from raysl.config.arguments import words
from raysl.config.config_files import expand, packaged_folder, read_file
from raysl.config.dump import show
from raysl.data.source import DataConfig, make_source
from raysl.errors import ConfigError, log

FOLDER = "suite"
ROOT = "RAYSL_DATA"
_TOP = ("title", "base", "settings", "parts", "left_out")
_OF_THE_DATASET = ("title", "metric", "files", "data")
"""Keys of a part that a suite based on this one takes over; others are settings of the benchmark."""


@dataclass(frozen=True)
class Suite:
    """Benchmarks that belong together.

    Args:
        name: stem of the file; begins the names of the parts.
        settings: settings of the benchmark of each part, as plain values, by its name: `transfer_dtd`.
        members: title and metric of each part, by the same names.
        files: files that each part needs and where, in words; for those that say so.
        left_out: why datasets that belong to the suite are not among the parts, by their names.
    """

    name: str
    title: str
    settings: Mapping[str, Mapping[str, Any]]
    members: Mapping[str, Member]
    files: Mapping[str, str] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def notes(self) -> list[str]:
        """A line on each dataset that is not among the parts."""
        return [f"{key} is left out: {reason}" for key, reason in self.left_out.items()]

    def expand(self, override: str) -> list[str]:
        """Return the settings of parts that a word of a command means: `transfer.max_iter=50` sets that of each.

        >>> Suite("mine", "", {"mine_a": {}, "mine_b": {}}, {}).expand("mine.k=[5]")
        ['mine_a.k=[5]', 'mine_b.k=[5]']
        """
        head = f"{self.name}."
        if not override.startswith(head):
            return [override]
        return [f"{key}.{override.removeprefix(head)}" for key in self.settings]


def suite_names() -> list[str]:
    """Return the names of the packaged suites, sorted."""
    return sorted(path.stem for path in (packaged_folder() / FOLDER).glob("*.yaml"))


def load_suites(names: str | Sequence[str] | None, root: str | None, data: DataConfig) -> list[Suite]:
    """Load suites.

    Args:
        names: names of suites, or paths that end in .yaml; one of them, or several.
        root: folder of the datasets. Default: `data.root`, or else the variable RAYSL_DATA, or ~/data.
    """
    named = [] if names is None else [names] if isinstance(names, str) else words(names, "suite", "transfer")
    chosen = root or getattr(data, "root", None) or os.environ.get(ROOT) or "~/data"
    if named and "://" in chosen:
        raise ConfigError(f"root={chosen!r}: suites read datasets from a local folder; give --root FOLDER")
    folder = os.path.abspath(expand(chosen))
    suites = [_load(one, folder) for one in dict.fromkeys(named)]
    if twice := [suite.name for suite in suites if [other.name for other in suites].count(suite.name) > 1]:
        raise ConfigError(f"two suites are called {twice[0]!r}; rename the file of one")
    return suites


def download(suites: Sequence[Suite], data: DataConfig) -> None:
    """Download the datasets that torchvision has and that are not there; failures are logged.

    Args:
        data: settings of other images, for what a network expects of an image.
    """
    from raysl.benchmarks.suite.settings import other_data

    for suite in suites:
        for key, settings in suite.settings.items():
            for source in _torchvision_sources(settings.get("data")):
                try:
                    config = other_data(data, {**source, "download": True})
                    for name in ("train", "test"):
                        make_source(config).split(name)
                except ConfigError as error:
                    log.warning("%s: %s", key, error)


def _torchvision_sources(settings: Any) -> Iterator[Mapping[str, Any]]:
    if not isinstance(settings, Mapping):
        return
    if settings.get("name") == "torchvision":
        yield settings
    for inner in (settings.get("sources") or {}).values():
        yield from _torchvision_sources(inner)


def _load(name_or_path: str, root: str) -> Suite:
    path = _find(name_or_path)
    tree = _read(path, ())
    name, title = path.stem, tree.get("title", path.stem)
    common, parts, left_out = (tree.get(key) or {} for key in ("settings", "parts", "left_out"))
    size = len(parts) + len(left_out)
    settings: dict[str, dict[str, Any]] = {}
    members: dict[str, Member] = {}
    files: dict[str, str] = {}
    for short, part in parts.items():
        key = f"{name}_{short}"
        rest = {word: value for word, value in part.items() if word not in ("title", "metric", "files")}
        settings[key] = _replace_root({**common, **rest}, root)
        if not isinstance(settings[key].get("name"), str):
            raise ConfigError(f"{path}: parts.{short}: the name of a benchmark is missing; write `name: logistic`")
        if not isinstance(part.get("metric"), str):
            raise ConfigError(f"{path}: parts.{short}: write `metric:`, the number that counts, such as top1")
        members[key] = Member(name, str(title), str(part.get("title", short)), part["metric"], size)
        if "files" in part:
            files[key] = str(_replace_root(part["files"], root))
    reasons = {f"{name}_{short}": " ".join(str(reason).split()) for short, reason in left_out.items()}
    return Suite(name, str(title), settings, members, files, reasons)


def _find(name_or_path: str, folder: Path | None = None) -> Path:
    """Find the file of a suite."""
    if name_or_path.endswith((".yaml", ".yml")):
        path = (folder or Path.cwd()) / expand(name_or_path)
        if not path.is_file():
            raise ConfigError(f"no file {name_or_path!r} of a suite; it should be {path}")
        return path.resolve()
    known = suite_names()
    if name_or_path not in known:
        near = difflib.get_close_matches(name_or_path, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}."
        raise ConfigError(
            f"no suite {name_or_path!r}; {hint} A suite of one's own is given by its path, which ends in .yaml"
        )
    return packaged_folder() / FOLDER / f"{name_or_path}.yaml"


def _read(path: Path, above: tuple[Path, ...]) -> dict[str, Any]:
    """Read the tree of a suite, with the datasets of the one that it is based on."""
    tree = read_file(path)
    if not isinstance(tree, dict) or not isinstance(tree.get("parts", {}), dict):
        raise ConfigError(f"{path} is not a suite; write `parts: {{dtd: {{name: logistic, metric: top1, data: ...}}}}`")
    if unknown := [key for key in tree if key not in _TOP]:
        raise ConfigError(f"{path}: a suite has no {unknown[0]!r}; it has {', '.join(_TOP)}")
    for key in ("settings", "left_out"):
        if not isinstance(tree.get(key) or {}, dict):
            raise ConfigError(f"{path}: {key}: {show(tree[key])} is not a mapping of names to values")
    parts = tree.get("parts") or {}
    for short, part in parts.items():
        if not isinstance(part, dict):
            advice = "write {name: logistic, metric: top1, data: ...}"
            raise ConfigError(f"{path}: parts.{short}: {show(part)} is not a part; {advice}")
    if tree.get("base") is None:
        return {**tree, "parts": parts}
    if path in above:
        raise ConfigError(f"{path}: base: the suite is based on itself")
    base = _read(_find(str(tree["base"]), path.parent), (*above, path))
    inherited = {
        short: {key: part[key] for key in _OF_THE_DATASET if key in part} for short, part in base["parts"].items()
    }
    left_out = {**(base.get("left_out") or {}), **(tree.get("left_out") or {})}
    merged = {short: {**inherited.get(short, {}), **parts.get(short, {})} for short in {**inherited, **parts}}
    merged = {short: part for short, part in merged.items() if short not in left_out}
    # settings of the base belong to its own benchmarks, so only its datasets are inherited
    return {**base, "settings": None, **tree, "parts": merged, "left_out": left_out}


def _replace_root(value: Any, root: str) -> Any:
    """Replace `{root}` in settings."""
    if isinstance(value, str):
        return value.replace("{root}", root)
    if isinstance(value, dict):
        return {key: _replace_root(item, root) for key, item in value.items()}
    return [_replace_root(item, root) for item in value] if isinstance(value, list) else value


def with_hint(reason: str, files: str) -> str:
    """Return why a dataset cannot be measured, and which files it needs.

    >>> with_hint("no folder '/d/dtd'; give data.path=", "dtd/ in /d, or --download")
    "no folder '/d/dtd'; it needs dtd/ in /d, or --download"
    """
    return f"{reason.partition(';')[0]}; it needs {files}" if files else reason
