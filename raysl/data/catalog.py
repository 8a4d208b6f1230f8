"""The catalog: names of datasets, and the settings of the sources that read them."""

import difflib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raysl.config.build import node_from_dict
from raysl.config.files import CATALOG_FILE, packaged_folder
from raysl.config.schema import ConfigError, DataConfig
from raysl.config.text import read_file

OWN_CATALOG = "RAYSL_CATALOG"
ROOT = "RAYSL_DATA"


@dataclass(frozen=True)
class Entry:
    """A dataset of a catalog.

    Args:
        settings: of its source, plain, with the `name` of the source.
        file: the catalog that it stands in.
    """

    settings: dict[str, Any]
    file: Path


def catalog_files() -> list[Path]:
    """The user's own catalog, which the variable RAYSL_CATALOG names, before the packaged one."""
    own = os.environ.get(OWN_CATALOG)
    packaged = packaged_folder() / CATALOG_FILE
    return [packaged] if not own else [Path(own).expanduser().absolute(), packaged]


def entries() -> dict[str, Entry]:
    """All datasets by name. One that stands in several catalogs is taken from the first.

    Raises:
        ConfigError: if a catalog is missing, or is no YAML of names and settings.
    """
    found: dict[str, Entry] = {}
    for file in catalog_files():
        for name, settings in _read(file).items():
            found.setdefault(name, Entry(settings, file))
    return found


def dataset_config(name: str) -> tuple[DataConfig, Path]:
    """Settings of a dataset's source, and the catalog that they stand in.

    `{root}` in a text stands for the folder of all datasets: the variable RAYSL_DATA, by default `~/data`.

    Raises:
        ConfigError: if no catalog names the dataset, or its settings are wrong.
    """
    known = entries()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=3)
        hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"known: {', '.join(sorted(known))}"
        files = " and ".join(str(file) for file in catalog_files())
        raise ConfigError(f"no dataset {name!r} in {files}; {hint}")
    entry = known[name]
    try:
        return node_from_dict(DataConfig, _rooted(entry.settings), name), entry.file
    except ConfigError as error:
        raise ConfigError("\n".join(f"{entry.file}: {line}" for line in str(error).splitlines())) from error


def _read(file: Path) -> dict[str, Any]:
    if not file.is_file():
        raise ConfigError(f"no catalog {str(file)!r}; the variable {OWN_CATALOG} names it")
    tree = read_file(file) or {}
    if not isinstance(tree, dict):
        raise ConfigError(f"{file} holds no datasets; write lines such as `mine: {{name: image_folder, path: ...}}`")
    return tree


def _rooted(value: Any) -> Any:
    """Settings with `{root}` replaced."""
    if isinstance(value, str):
        return value.replace("{root}", os.environ.get(ROOT) or os.path.expanduser("~/data"))
    if isinstance(value, dict):
        return {key: _rooted(item) for key, item in value.items()}
    return [_rooted(item) for item in value] if isinstance(value, list) else value
