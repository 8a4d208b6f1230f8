"""Configuration files: finding them by name, the files that they are based on, and reading YAML.

OmegaConf reads YAML here: `1e-3` is a number, a date is text.
"""

import copy
import hashlib
import json
import os
import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from glob import glob
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

import raysl
from raysl.components import ALIASES, nearest
from raysl.errors import ConfigError
from raysl.redact import bare_uri
from raysl.trained import cache_folder

CATALOG_FILE = "catalog.yaml"  # names datasets, not runs
SHORT = "imagenet/"  # folder of the configurations whose names need no folder
_NO_RUNS = ("cluster", "suite")  # files of Ray's cluster launcher, and suites of benchmarks
_VARIABLE = re.compile(r"\$([A-Za-z_]\w*)")


@dataclass(frozen=True)
class ConfigFile:
    """The content of a YAML file, without its `base`."""

    path: Path
    values: dict[str, Any]


class NoSuchConfig(ConfigError):
    """No configuration has this name.

    Attributes:
        near: the name that was probably meant, or None.
    """

    def __init__(self, name: str, asking: Path | None) -> None:
        self.near = None
        if network := _backbone_setting(name):
            way = f"it is a network, which is chosen beside a method: `raysl pretrain simclr {network}`"
            way += "; `raysl list configs` shows all"
        elif re.search(r"\.py:\w+$", name):
            way = f"a method of one's own is given as method.name={name}"
        elif asking is None and os.path.isfile(settings := os.path.join(os.path.expanduser(name), "run.yaml")):
            way = f"it is the folder of a run; give its settings, {settings!r}"
        else:
            names = [known.removeprefix(SHORT) for known in config_names()]
            last = {known.rpartition("/")[2]: known for known in names}
            self.near = nearest(name, names) or last.get(nearest(name, last) or "")
            way = f"did you mean {self.near!r}? " if self.near else ""
            way += "`raysl list configs` shows all; or give a path that ends in .yaml, or a folder that is there"
        origin = f"{asking}: base: " if asking is not None else ""
        super().__init__(f"{origin}no configuration {name!r}; {way}")


def _backbone_setting(name: str) -> str | None:
    """Return the settings that choose a network by its name, such as `resnet50`; None for other names."""
    if match := re.fullmatch(r"resnet[-_]?(10|14|18|26|34|50|101|152|200)", name, re.IGNORECASE):
        return f"backbone.depth={match[1]}"
    if name in ALIASES["backbone"]:
        return f"backbone={name}"
    if re.match(r"vit_|regnet", name):
        return f"backbone={name[:3] if name.startswith('vit') else 'regnet'}"
    if re.match(r"(convnext|densenet|efficientnet|mobilenet|resnext\d|swin|vgg\d|wide_resnet)", name):
        return f"backbone=torchvision backbone.model={name}"
    return None


def packaged_folder() -> Path:
    """Return the folder of raysl's configurations: inside the package, or beside it in a clone."""
    package = Path(raysl.__path__[0]).resolve()  # as the paths of loaded files, also behind a link
    inside = package / "configs"
    return inside if inside.is_dir() else package.parent / "configs"


def packaged_file(name: str) -> Path | None:
    """Return the file of a packaged configuration, or None; `simclr` is short for `imagenet/simclr`."""
    paths = (packaged_folder() / f"{folder}{name}.yaml" for folder in ("", SHORT))
    return next((path for path in paths if os.path.isfile(path)), None)


def run_name(path: Path) -> str:
    """Return the name of a run of a configuration's file: `simclr` of `imagenet/simclr`, `cifar10_simclr`, `mine`."""
    folder = packaged_folder()
    if not path.is_relative_to(folder):
        return path.stem
    return path.relative_to(folder).with_suffix("").as_posix().removeprefix(SHORT).replace("/", "_")


def config_names() -> list[str]:
    """Return the names of the packaged configurations, sorted: `cifar10/simclr`, `data/cifar10`."""
    folder = packaged_folder()
    paths = (path.relative_to(folder) for path in folder.rglob("*.yaml"))
    runs = (path for path in paths if path.name != CATALOG_FILE and path.parts[0] not in _NO_RUNS)
    return sorted(path.with_suffix("").as_posix() for path in runs)


def read_summary(path: Path) -> str:
    """Return the first comment line of a file, without its mark; empty without one."""
    match = re.match(r"\s*#+[ \t]*(.*)", _read_text(path))
    return match[1].strip() if match else ""


def load_files(name_or_path: str) -> list[ConfigFile]:
    """Load a configuration's file and those that it is based on, each once, the lowest base first."""
    loaded: dict[Path, ConfigFile] = {}
    _collect(find(name_or_path, Path.cwd()), [], loaded)
    return list(loaded.values())


def find(name_or_path: str, folder: Path, asking: Path | None = None) -> Path:
    """Find the file of a name or path.

    Args:
        name_or_path: a path or URI that ends in .yaml, or a name.
        asking: the file that is based on it. A name is then that of a packaged configuration, else of a file beside
            `asking`; a name that begins with `./` or `../` is of a file beside it alone.
    """
    if is_file_name(name_or_path) and "://" in name_or_path:
        return _fetched(name_or_path, asking)
    if is_file_name(name_or_path):
        path = folder / expand(name_or_path)
        if not path.is_file():
            known = Path(name_or_path).with_suffix("").as_posix()
            hint = f"; a packaged one has the name {known!r}" if packaged_file(known) else ""
            what = f"{path} is a folder" if path.is_dir() else f"it should be {path}"
            raise ConfigError(f"no file {name_or_path!r}; {what}{hint}")
        return path.resolve()
    is_relative = name_or_path.startswith(("./", "../"))
    if not is_relative and (packaged := packaged_file(name_or_path)):
        return packaged.resolve()
    if asking is not None and (beside := folder / f"{name_or_path}.yaml").is_file():
        return beside.resolve()
    raise NoSuchConfig(name_or_path, asking)


def is_file_name(name_or_path: str) -> bool:
    """Return whether a name or path is that of a YAML file; a URI may have a query.

    >>> is_file_name("s3://bucket/mine.yaml?region=eu-west-1"), is_file_name("simclr")
    (True, False)
    """
    name = name_or_path.partition("?")[0] if "://" in name_or_path else name_or_path
    return name.endswith((".yaml", ".yml"))


def _fetched(uri: str, asking: Path | None) -> Path:
    """Return a local copy of the file at a URI, of the same name, made anew at each call.

    Args:
        uri: address that the user typed, or that a file names.
        asking: the file that is based on it, which anybody may have written; None if the user typed it.
    """
    from raysl.storage.addresses import cut
    from raysl.storage.foreign import known, problem
    from raysl.storage.whole import read_whole

    if asking is not None and (reason := problem(uri)):
        only = f"of a file only plain {known()} URIs are opened; copy it to a file"
        raise ConfigError(f"{asking}: base: {uri!r} {reason}: {only}")
    content = read_whole(uri)
    folder = cache_folder() / "configs" / hashlib.sha256(bare_uri(uri).encode()).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / cut(uri)[1]
    # another process may be reading the file
    unfinished = path.with_name(f"{path.name}.{os.getpid()}")
    unfinished.write_bytes(content)
    return unfinished.replace(path)


def base_names(bases: Any, origin: str) -> list[str]:
    """Return the entries of a `base:` key, which has one name or a list of them."""
    listed = [] if bases is None else [bases] if isinstance(bases, str) else bases
    if not isinstance(listed, list) or not all(isinstance(base, str) for base in listed):
        raise ConfigError(f"{origin}: base: {bases!r} is not a name; write one name or path, or a list of them")
    return listed


def expand(text: str) -> str:
    """Replace `~` and `$NAME` in a path or URI, unless a file with the literal name exists.

    Raises:
        ConfigError: if a local path names a variable that is not set.
    """
    path = os.path.expanduser(text)
    if "$" not in path or os.path.lexists(path):
        return path
    unset = [name for name in _VARIABLE.findall(path) if name not in os.environ]
    if unset and "://" not in path:
        raise ConfigError(f"{text!r}: the variable ${unset[0]} is not set; export it, or write the whole path")
    return _VARIABLE.sub(lambda match: os.environ.get(match[1], match[0]), path)


def read(text: str, origin: str) -> Any:
    """Parse a YAML text."""
    return _parse(f"value={text}", origin)["value"]


def read_dotlist(word: str) -> dict[str, Any]:
    """Parse `key=value`, a dotted key and a value in YAML, to a tree; a ` #` is part of a text without quotes.

    >>> read_dotlist("optim.lr=1e-3"), read_dotlist("data.path=cats #2")
    ({'optim': {'lr': 0.001}}, {'data': {'path': 'cats #2'}})
    """
    return copy.deepcopy(_parse_cached(_quote_hash(word) if "#" in word else word))


def _quote_hash(word: str) -> str:
    """Quote the value of `key=value` where YAML would take the end of an unquoted text for a comment."""
    key, _, text = word.partition("=")
    tokens, end, has_comment = [], 0, False
    try:
        for token in yaml.scan(text):
            has_comment |= "#" in text[end : token.start_mark.index]
            end = max(end, token.end_mark.index)
            tokens.append(token)
    except yaml.YAMLError:  # whoever parses it says so
        return word
    if not has_comment:
        return word
    # beside the start and the end of the stream
    if all(isinstance(token, yaml.ScalarToken) and token.plain for token in tokens[1:-1]):
        return f"{key}={json.dumps(text.strip())}"
    raise ConfigError(f"{word}: ' #' begins a comment in YAML; leave it out, or put the text in quotes: {key}='...'")


def _parse(word: str, origin: str | None = None) -> dict[str, Any]:
    try:
        tree = OmegaConf.to_container(OmegaConf.from_dotlist([word]))
    except RecursionError as error:
        raise ConfigError(
            f"{word[:80] if origin is None else origin}: nested too deeply, or an alias of itself"
        ) from error
    except (yaml.YAMLError, OmegaConfBaseException, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" line {mark.line + 1}" if mark is not None and "\n" in word else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ConfigError(f"{word if origin is None else origin}{where}: not YAML: {problem}") from error
    assert isinstance(tree, dict)
    return {str(key): value for key, value in tree.items()}


# a word is read more than once while it is loaded, and by each trial of a sweep
_parse_cached = lru_cache(maxsize=1024)(_parse)


def read_file(path: Path) -> Any:
    """Read a YAML file."""
    # a copy, as callers take entries out of the tree and the cache keeps it
    return copy.deepcopy(_read_cached(_read_text(path), str(path)))


# a sweep loads the same files for each trial, and parsing takes milliseconds
_read_cached = lru_cache(maxsize=256)(read)


def _read_text(path: Path) -> str:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line, byte = content[: error.start].count(b"\n") + 1, content[error.start]
        raise ConfigError(f"{path} line {line}: not UTF-8 (byte {byte:#04x}); save it as UTF-8") from error


def _collect(path: Path, above: list[Path], loaded: dict[Path, ConfigFile]) -> None:
    if path in above:
        circle = " -> ".join(str(p) for p in [*above[above.index(path) :], path])
        raise ConfigError(f"base: {circle} is a circle; remove one base")
    if path in loaded:
        return
    values = read_file(path)
    if values is None:
        values = {}
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: has no settings; write lines such as `method: simclr`")
    bases = values.pop("base", None)
    for base in base_names(bases, str(path)):
        _collect(find(base, path.parent, path), [*above, path], loaded)
    loaded[path] = ConfigFile(path, values)


def matching_configs(patterns: list[str]) -> list[str]:
    """Return the configurations of runs behind names, files and patterns, each once, as they are first named.

    Args:
        patterns: packaged names, .yaml files, `digits/*`, `mine/*.yaml`; what follows a ! is taken out again.
    """
    known = [name for name in config_names() if not name.startswith(("data/", "sweep/"))]
    named: list[str] = []
    for pattern in patterns:
        is_out, wanted = pattern.startswith("!"), pattern.removeprefix("!")
        matches = [name for name in known if _matches(name, wanted)]
        if not matches and wanted.endswith((".yaml", ".yml")):
            matches = files_of(expand(wanted)) or [wanted]
        if not matches:
            near = nearest(wanted, known)
            hint = f"did you mean {near!r}? " if near else ""
            raise ConfigError(f"configs: no configuration {wanted!r}; {hint}`raysl list configs` shows all")
        named = [name for name in named if name not in matches] if is_out else list(dict.fromkeys([*named, *matches]))
    if patterns and not named:
        raise ConfigError(f"configs: [{', '.join(patterns)}] leaves no configuration; take out fewer")
    return named


def files_of(pattern: str) -> list[str]:
    """Return the file of this path, else the files that fit the pattern, sorted."""
    return [pattern] if Path(pattern).is_file() else sorted(glob(pattern))


def _matches(name: str, pattern: str) -> bool:
    """Whether a name fits a pattern, of which a * does not cross a slash; `simclr` is that of `imagenet/simclr`."""
    if "/" not in pattern:
        name = name.removeprefix(SHORT)
    return name.count("/") == pattern.count("/") and fnmatchcase(name, pattern)
