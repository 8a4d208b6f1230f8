"""Sources inside a source."""

from dataclasses import MISSING, Field, fields
from typing import Any

from raysl.components import resolve
from raysl.config.schema import DataConfig
from raysl.data.source import Source
from raysl.errors import ConfigError

OF_THE_IMAGES: dict[str, bool] = {"of_the_images": True}
"""Metadata of a common setting that a source declares anew because it decides which images it gives."""

_OF_THE_IMAGES = {"name", "limit", "balanced", "skip", "subset", "subset_by"}


def check_inner(config: DataConfig, where: str) -> None:
    """Refuse settings of the pipeline on a source inside another, whose own settings are the ones that count.

    An inner source has the settings that say which images it gives: its own ones, those that choose among them, and
    what it marks with OF_THE_IMAGES, such as `image_size` where it draws its images.

    Args:
        config: settings of the inner source.
        where: what to call it in the message.

    Raises:
        ConfigError: naming the first setting that differs from its default.
    """
    own = {field.name: field for field in fields(type(config))}
    for common in fields(DataConfig):
        field = own[common.name]
        default = field.default_factory() if field.default_factory is not MISSING else field.default
        if not _is_of_the_images(field) and getattr(config, field.name) != default:
            raise ConfigError(f"{where}: {field.name} has no effect there; set data.{field.name} instead")


def _is_of_the_images(field: Field[Any]) -> bool:
    return field.name in _OF_THE_IMAGES or bool(field.metadata.get("of_the_images", False))


def source_of(config: DataConfig) -> Source:
    """The source that these settings describe."""
    source = resolve("source", config.name)(config)
    assert isinstance(source, Source)
    return source
