"""A dataset by its name in the catalog."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from raysl.config.schema import DataConfig
from raysl.data.catalog import dataset_config
from raysl.data.inner import check_inner, source_of
from raysl.data.source import Source, Split
from raysl.errors import ConfigError


class Catalog(Source):
    """A dataset that a catalog names: the packaged one, or your own, whose file RAYSL_CATALOG names.

    A catalog says where images and labels lie. The settings of the pipeline (image size, normalisation and so on) and
    `label_type` are those of this node; in a catalog they are refused.
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(DataConfig):
        """Which dataset."""

        name: str = "catalog"
        dataset: str | None = None
        """Name of the dataset, such as imagenet1k; `configs/catalog.yaml` lists them."""

    def split(self, name: str) -> Split | None:
        """See `Source.split`."""
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
        return source_of(config), file
