"""From the words of `raysl report views` to the views that they ask for."""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, replace

from raysl.components import Classes, resolve
from raysl.config.load import load_config
from raysl.config.schema import DataConfig, RunConfig
from raysl.data.source import Split
from raysl.plan.setup import Setup
from raysl.runs.prepare import views_of
from raysl.transforms.view_recipe import ViewRecipe


@dataclass(frozen=True)
class ViewRequest:
    """What is asked for."""

    name: str
    """Of the configuration."""
    what: str
    """What makes the views: `method simclr`."""
    about: str
    """First line of its documentation."""
    recipe: ViewRecipe
    data: DataConfig
    split: Split
    """The training images."""
    seed: int


def requested(name: str, overrides: Sequence[str]) -> ViewRequest:
    """The views of a configuration's method on its data.

    Args:
        name: a packaged configuration or a .yaml file.
        overrides: `key=value` settings.

    Raises:
        ConfigError: if there is no such configuration, setting or data, or the views cannot be made.
    """
    config = load_config(name, overrides)
    split: Split = resolve("source", config.data.name)(config.data).required("train")
    classes = Classes.of(config)
    recipe = views_of(_setup(config, split), classes)
    about = next(iter((inspect.getdoc(classes.method) or "").splitlines()), "")
    return ViewRequest(config.name, f"method {config.method.name}", about, recipe, config.data, split, config.seed)


def _setup(config: RunConfig, split: Split) -> Setup:
    """The setup of a run over these images, be they ever so few: nothing is trained."""
    batch_size = min(config.train.batch_size, split.num_samples)
    train = replace(config.train, batch_size=batch_size, workers=1)
    data = replace(config.data, lanes=None, drop_last=True)
    return Setup.of(replace(config, train=train, data=data), split.num_samples, len(split.classes))
