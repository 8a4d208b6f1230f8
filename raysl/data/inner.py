"""Sources inside a source."""

from dataclasses import MISSING, fields

from raysl.components import resolve
from raysl.config.schema import ConfigError, DataConfig
from raysl.data.source import Source

_OF_THE_IMAGES = {"name", "image_size", "limit", "balanced", "skip", "subset", "subset_by"}


def check_inner(config: DataConfig, where: str) -> None:
    """Refuse settings of the pipeline on a source inside another, whose own settings are the ones that count.

    An inner source has the settings that say which images it gives; `image_size` too, for those that draw their images.

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
        if field.name not in _OF_THE_IMAGES and getattr(config, field.name) != default:
            raise ConfigError(f"{where}: {field.name} has no effect there; set data.{field.name} instead")


def source_of(config: DataConfig) -> Source:
    """The source that these settings describe."""
    source = resolve("source", config.name)(config)
    assert isinstance(source, Source)
    return source
