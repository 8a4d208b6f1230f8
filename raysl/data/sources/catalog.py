"""Catalogs: names of datasets, and the settings of the sources that read them."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from typing_extensions import override

from raysl.components import ALIASES
from raysl.config.config_files import CATALOG_FILE, packaged_folder, read_file
from raysl.config.dump import show
from raysl.config.fields import component_class, list_settings
from raysl.config.load import node_from_dict
from raysl.data.source import ConfigError, DataConfig, Source, Split, check_inner, make_source
from raysl.errors import did_you_mean

OWN_CATALOG = "RAYSL_CATALOG"
ROOT = "RAYSL_DATA"
_KEY = "data"


class Catalog(Source):
    """A dataset by its name in a catalog: the packaged one, or your own file in the variable RAYSL_CATALOG.

    A catalog has the locations of images and labels. The settings of the pipeline (image size, normalisation and so on)
    and `label_type` belong to this node and are refused in a catalog.
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(DataConfig):
        """The name of the dataset."""

        name: str = "catalog"
        dataset: str | None = None
        """Name of the dataset, such as imagenet1k; `configs/catalog.yaml` lists them."""

    @override
    def split(self, name: str) -> Split | None:
        source, file = self._inner
        try:
            return source.optional(name)
        except ConfigError as error:
            raise ConfigError(f"{error} (dataset {self.config.dataset!r} of {file})") from error

    @cached_property
    def _inner(self) -> tuple[Source, Path]:
        if self.config.dataset is None:
            raise ConfigError("catalog needs data.dataset=, the name of a dataset, such as imagenet1k")
        config, file = dataset_config(self.config.dataset)
        check_inner(config, f"{file}: {self.config.dataset}")
        return make_source(config), file


def catalog_files() -> list[Path]:
    """Return the catalogs: the user's, in the variable RAYSL_CATALOG, before the packaged one."""
    users = os.environ.get(OWN_CATALOG)
    packaged = packaged_folder() / CATALOG_FILE
    return [packaged] if not users else [Path(users).expanduser().absolute(), packaged]


def entries() -> dict[str, tuple[Any, Path]]:
    """Read the settings and the file of all datasets of the catalogs, by name; the first with a name counts."""
    datasets: dict[str, tuple[Any, Path]] = {}
    for file in catalog_files():
        for name, settings in _read(file).items():
            datasets.setdefault(name, (settings, file))
    return datasets


def dataset_config(name: str) -> tuple[DataConfig, Path]:
    """Return the settings of a dataset's source, and the catalog that has them.

    `{root}` in a text stands for the folder of all datasets: the variable RAYSL_DATA, by default `~/data`.
    """
    known = entries()
    if name not in known:
        files = " and ".join(str(file) for file in catalog_files())
        hint = did_you_mean(name, known) or f"known: {', '.join(sorted(known))}"
        raise ConfigError(f"no dataset {name!r} in {files}; {hint.rstrip()}")
    settings, file = known[name]
    _check_circle(name, known, ())
    _check_keys(settings, f"{file}: {name}")
    try:
        return node_from_dict(DataConfig, _replace_root(settings), _KEY), file
    except ConfigError as error:
        lines = str(error).replace(f"{_KEY}.", "").splitlines()  # an entry is not a node of a run's settings
        raise ConfigError("\n".join(f"{file}: {name}: {line}" for line in lines)) from error


def _read(file: Path) -> dict[str, Any]:
    if not file.is_file():
        raise ConfigError(f"no catalog {str(file)!r}; the variable {OWN_CATALOG} names it")
    tree = read_file(file) or {}
    if not isinstance(tree, dict):
        raise ConfigError(f"{file} holds no datasets; write lines such as `mine: {{name: image_folder, path: ...}}`")
    return tree


def _check_circle(name: str, known: Mapping[str, tuple[Any, Path]], above: tuple[str, ...]) -> None:
    if name in above:
        round_trip = " -> ".join((*above[above.index(name) :], name))
        raise ConfigError(f"{known[name][1]}: {round_trip} is a circle; give {name} a source that has images")
    for inner in _iterate_names(known[name][0]):
        if inner in known:
            _check_circle(inner, known, (*above, name))


def _iterate_names(settings: Any) -> Iterator[str]:
    if not isinstance(settings, dict):
        return
    if settings.get("name") in ("catalog", ALIASES["source"]["catalog"]) and isinstance(settings.get("dataset"), str):
        yield settings["dataset"]
    for value in settings.values():
        yield from _iterate_names(value)


def _check_keys(settings: Any, where: str) -> None:
    """Refuse an entry that names no source, and settings that its source does not have.

    Errors of `node_from_dict` would suggest settings of a run instead.
    """
    settings = {"name": settings} if isinstance(settings, str) else settings
    if not isinstance(settings, dict):
        raise ConfigError(f"{where}: {show(settings)} is not a source; write {{name: image_folder, path: ...}}")
    if not isinstance(settings.get("name"), str):
        names = ", ".join(sorted(ALIASES["source"]))
        raise ConfigError(f"{where}: the name of a source is missing; write {{name: NAME, ...}} with one of {names}")
    try:
        known = list(list_settings(component_class(DataConfig, settings["name"])))
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error
    for key, value in settings.items():
        if key not in known:
            hint = did_you_mean(str(key), known)
            raise ConfigError(f"{where}: {settings['name']} has no setting {key!r}; {hint}it has {', '.join(known)}")
        for inner, source in value.items() if key == "sources" and isinstance(value, dict) else ():
            _check_keys(source, f"{where}: sources.{inner}")


def _replace_root(value: Any) -> Any:
    if isinstance(value, str):
        return value.replace("{root}", os.environ.get(ROOT) or os.path.expanduser("~/data"))
    if isinstance(value, dict):
        return {key: _replace_root(item) for key, item in value.items()}
    return [_replace_root(item) for item in value] if isinstance(value, list) else value
