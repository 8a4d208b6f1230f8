"""Configuration files: where names are looked up, the chain of files that a file is based on, and YAML, as OmegaConf
reads it: `1e-3` is a number, a date is text."""

import copy
import difflib
import os
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

import raysl
from raysl.errors import ConfigError

CATALOG_FILE = "catalog.yaml"  # names datasets, not runs
_VARIABLE = re.compile(r"\$([A-Za-z_]\w*)")


@dataclass(frozen=True)
class ConfigFile:
    """What one YAML file holds, without its `base`."""

    path: Path
    values: dict[str, Any]


def packaged_folder() -> Path:
    """The folder of the configurations that come with raysl: inside the package, or beside it in a clone."""
    package = Path(raysl.__path__[0])
    inside = package / "configs"
    return inside if inside.is_dir() else package.parent / "configs"


def config_names() -> list[str]:
    """Names of the packaged configurations, sorted: `simclr`, `data/cifar10`."""
    folder = packaged_folder()
    paths = (path for path in folder.rglob("*.yaml") if path.name != CATALOG_FILE)
    return sorted(path.relative_to(folder).with_suffix("").as_posix() for path in paths)


def summary_of(path: Path) -> str:
    """First comment line at the head of a file, without its mark; empty where there is none."""
    match = re.match(r"\s*#+[ \t]*(.*)", _text_of(path))
    return match[1].strip() if match else ""


def files_of(name_or_path: str) -> list[ConfigFile]:
    """A configuration's file after all that it is based on, each once, the lowest first.

    Raises:
        ConfigError: if a name or a file does not exist, is no YAML tree, or is based on itself.
    """
    done: dict[Path, ConfigFile] = {}
    _collect(find(name_or_path, Path.cwd()), [], done)
    return list(done.values())


def find(name_or_path: str, folder: Path, asking: Path | None = None) -> Path:
    """The file behind a name or path.

    Args:
        name_or_path: a path that ends in .yaml, or a name.
        folder: what a path is relative to.
        asking: the file that is based on it. A name is then looked up beside it first.

    Raises:
        ConfigError: if there is none.
    """
    if name_or_path.endswith((".yaml", ".yml")):
        path = folder / expanded(name_or_path)
        if not path.is_file():
            known = Path(name_or_path).with_suffix("").as_posix()
            hint = f"; the packaged one is called {known!r}" if known in config_names() else ""
            raise ConfigError(f"no file {name_or_path!r}; it is looked for at {path}{hint}")
        return path.resolve()
    places = [packaged_folder() / f"{name_or_path}.yaml"]
    if asking is not None:
        places.insert(0, folder / f"{name_or_path}.yaml")
    found = [place.resolve() for place in places if place.is_file()]
    others = [place for place in found if place != asking]
    if found:
        return (others or found)[0]
    raise ConfigError(_no_such_config(name_or_path, asking))


def base_names(bases: Any, origin: str) -> list[str]:
    """The entries of a `base:` key, which holds one name or a list of them.

    Raises:
        ConfigError: if it holds anything else.
    """
    listed = [] if bases is None else [bases] if isinstance(bases, str) else bases
    if not isinstance(listed, list) or not all(isinstance(base, str) for base in listed):
        raise ConfigError(f"{origin}: base: {bases!r} is no name; write one name or path, or a list of them")
    return listed


def expanded(text: str) -> str:
    """A path or URI with `~` and `$NAME` replaced; what lies at the path as it is written is taken as it is.

    Raises:
        ConfigError: if a local path names a variable that is not set.
    """
    path = os.path.expanduser(text)
    if "$" not in path or os.path.lexists(path):
        return path
    unset = [name for name in _VARIABLE.findall(path) if name not in os.environ]
    if unset and "://" not in path:
        raise ConfigError(f"{text!r}: the variable ${unset[0]} is not set; export it, or write the path out")
    return _VARIABLE.sub(lambda match: os.environ.get(match[1], match[0]), path)


def read(text: str, origin: str) -> Any:
    """The value that a YAML text holds.

    Raises:
        ConfigError: if it is not YAML; the message has `origin`, the line and the cause.
    """
    return read_dotlist(f"value={text}", origin)["value"]


def read_dotlist(word: str, origin: str | None = None) -> dict[str, Any]:
    """The tree that `key=value` describes: a dotted key and a value in YAML.

    Raises:
        ConfigError: if that is not YAML; the message has `origin`, which is the word itself by default.
    """
    try:
        tree = OmegaConf.to_container(OmegaConf.from_dotlist([word]))
    except (yaml.YAMLError, OmegaConfBaseException, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" line {mark.line + 1}" if mark is not None and "\n" in word else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ConfigError(f"{word if origin is None else origin}{where}: not YAML: {problem}") from error
    assert isinstance(tree, dict)
    return {str(key): value for key, value in tree.items()}


def read_file(path: Path) -> Any:
    """The value that a YAML file holds.

    Raises:
        ConfigError: if it cannot be read, is not UTF-8, or is not YAML.
    """
    return copy.deepcopy(_parsed(_text_of(path), str(path)))


@lru_cache(maxsize=64)  # a sweep loads the same files for each trial, and parsing takes milliseconds
def _parsed(text: str, origin: str) -> Any:
    return read(text, origin)


def _text_of(path: Path) -> str:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line, byte = content[: error.start].count(b"\n") + 1, content[error.start]
        raise ConfigError(f"{path} line {line}: not UTF-8 (byte {byte:#04x}); save it as UTF-8") from error


def _no_such_config(name: str, asking: Path | None) -> str:
    names = config_names()
    last = {known.rpartition("/")[2]: known for known in names}
    near = difflib.get_close_matches(name, names, n=1) or [last[n] for n in difflib.get_close_matches(name, last, n=1)]
    hint = f"did you mean {near[0]!r}? " if near else ""
    origin = f"{asking}: base: " if asking is not None else ""
    known = f"Known: {', '.join(names) or 'none'}; or give a path that ends in .yaml"
    return f"{origin}no configuration {name!r}; {hint}{known}"


def _collect(path: Path, above: list[Path], done: dict[Path, ConfigFile]) -> None:
    if path in above:
        circle = " -> ".join(str(p) for p in [*above[above.index(path) :], path])
        raise ConfigError(f"base: {circle} is a circle; remove one base")
    if path in done:
        return
    values = read_file(path)
    if values is None:
        values = {}
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: holds no settings; write lines such as `method: simclr`")
    bases = values.pop("base", None)
    for base in base_names(bases, str(path)):
        _collect(find(base, path.parent, path), [*above, path], done)
    done[path] = ConfigFile(path, values)
