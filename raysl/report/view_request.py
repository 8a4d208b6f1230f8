"""From the words of `raysl report views` to the views that they ask for."""

import difflib
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_type_hints

from raysl.components import resolve
from raysl.config.files import config_names
from raysl.config.layers import parse_overrides
from raysl.config.load import load_config, node_from_dict
from raysl.config.ranges import Seed
from raysl.config.schema import DataConfig
from raysl.config.values import convert
from raysl.data.source import Split
from raysl.errors import ConfigError
from raysl.transforms.recipes import RECIPES
from raysl.transforms.view import ViewRecipe

PREFIX = "recipe:"
PHOTOS = {"name": "photos", "size": 96}
"""What a recipe is shown on unless told otherwise: the largest crops there are without a download."""
GROUPS = ("recipe", "data", "seed")
"""What can be set of a recipe."""


@dataclass(frozen=True)
class ViewRequest:
    """What is asked for."""

    name: str
    """Of the configuration or the recipe."""
    what: str
    """Kind and name of what makes the views: `method simclr`, `recipe swav`."""
    about: str
    """First line of its documentation."""
    recipe: ViewRecipe
    data: DataConfig
    split: Split
    """The training images."""
    seed: int


def requested(name: str, overrides: Sequence[str]) -> ViewRequest:
    """The views that a name and settings ask for.

    Args:
        name: a packaged configuration or a .yaml file: the views of its method on its data. Else, or with the prefix
            `recipe:`, or where a setting starts with `recipe.`: a recipe of `raysl.transforms.recipes`.
        overrides: `key=value` settings: any of a configuration's, or `recipe.*`, `data.*` and `seed`.

    Raises:
        ConfigError: if there is no such name, setting or data, or the views cannot be made.
    """
    is_config = name.endswith((".yaml", ".yml")) or name in config_names()
    has_arguments = any(override.startswith("recipe.") for override in overrides)
    if name.startswith(PREFIX):
        return _of_recipe(name.removeprefix(PREFIX), overrides)
    if is_config and has_arguments and name not in RECIPES:
        rule = "its views are settings of its method, method.*"
        raise ConfigError(f"recipe.* is for recipes, and {name!r} is a configuration; {rule}")
    if is_config and not has_arguments:
        return _of_config(name, overrides)
    return _of_recipe(name, overrides)


def _of_config(name: str, overrides: Sequence[str]) -> ViewRequest:
    config = load_config(name, overrides)
    method = resolve("method", config.method.name)
    try:
        recipe = method.views(config.method)
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"method.views: {error}") from error
    what, about = f"method {config.method.name}", _first_line(method)
    return ViewRequest(config.name, what, about, recipe, config.data, _train(config.data), config.seed)


def _of_recipe(name: str, overrides: Sequence[str]) -> ViewRequest:
    if name not in RECIPES:
        raise ConfigError(_unknown(name))
    tree = parse_overrides(overrides)
    for key in tree:
        if key not in GROUPS:
            raise ConfigError(f"{key}: no setting of a recipe; those are recipe.*, data.* and seed")
    settings = tree.get("data", {})
    data = node_from_dict(DataConfig, settings if "name" in settings else PHOTOS | settings, "data")
    seed = convert(Seed, tree.get("seed", 0), "seed", 0, _no_node)
    recipe, about = _built(name, tree.get("recipe", {})), _first_line(RECIPES[name])
    return ViewRequest(name, f"recipe {name}", about, recipe, data, _train(data), seed)


def _built(name: str, settings: object) -> ViewRecipe:
    """A recipe with settings from YAML."""
    if not isinstance(settings, Mapping):
        raise ConfigError(f"recipe: {settings!r} is no group of settings; write {PREFIX}{settings} for its name")
    kinds = get_type_hints(RECIPES[name], include_extras=True)
    del kinds["return"]
    arguments: dict[str, Any] = {}
    for key, value in settings.items():
        if key not in kinds:
            raise ConfigError(f"recipe.{key}: no setting of {name}, which has {', '.join(kinds)}")
        try:
            arguments[key] = convert(kinds[key], value, f"recipe.{key}", None, _no_node)
        except TypeError as error:
            raise ConfigError(f"recipe.{key}: can be set in Python only") from error
    try:
        return RECIPES[name](**arguments)
    except ValueError as error:
        raise ConfigError(f"recipe {name}: {error}") from error


def _no_node(kind: type[Any], value: Any, key: str, default: Any) -> Any:
    raise TypeError(f"{key}: {kind.__name__} is no plain setting")


def _first_line(documented: object) -> str:
    return next(iter((inspect.getdoc(documented) or "").splitlines()), "")


def _train(data: DataConfig) -> Split:
    return resolve("source", data.name)(data).required("train")  # type: ignore[no-any-return]


def _unknown(name: str) -> str:
    configs = [config for config in config_names() if "/" not in config]  # the others are parts of runs, or sweeps
    near = difflib.get_close_matches(name, dict.fromkeys([*configs, *RECIPES]), n=3)
    hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
    return (
        f"no configuration or recipe {name!r}; {hint}Configurations: {', '.join(configs)}; "
        f"recipes: {', '.join(RECIPES)}; or give a path that ends in .yaml"
    )
