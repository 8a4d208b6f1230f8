"""What a dataset is to raysl: a class with settings, and the splits that it gives."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from raysl.config.background import color_of
from raysl.config.schema import DataConfig
from raysl.data.sources.subset import with_subset
from raysl.data.split import LABELS as LABELS
from raysl.data.split import UNIT_ROWS as UNIT_ROWS
from raysl.data.split import Missing as Missing
from raysl.data.split import Rows as Rows
from raysl.data.split import Split as Split
from raysl.data.split import runs as runs
from raysl.data.split import seen_on, with_labels
from raysl.errors import ConfigError

SPLITS = ("train", "test")


class Source(ABC):
    """A dataset: its splits. A subclass nests a frozen `Config` and takes it as its only argument."""

    Config: ClassVar[type[DataConfig]]

    def __init__(self, config: Any) -> None:
        self.config = config

    @abstractmethod
    def split(self, name: str) -> Split | None:
        """The whole split `train` or `test`; None where the dataset has no such part.

        Raises:
            ConfigError: if the images cannot be found or read.
        """

    def optional(self, name: str) -> Split | None:
        """The split `name` with the images and labels that the settings choose; None where there is no such part.

        Raises:
            ConfigError: if the images cannot be found or read, or cannot be chosen so.
        """
        split = self.split(name)
        if split is None:
            return None
        chosen = with_labels(with_subset(split, self.config, name), self.config.label_type)
        return seen_on(chosen, color_of(self.config.background))

    def required(self, name: str) -> Split:
        """The split `name` with the images and labels that the settings choose.

        Raises:
            ConfigError: as `optional`, and if the dataset has no such part.
        """
        split = self.optional(name)
        if split is None:
            raise ConfigError(f"the dataset {self.config.name!r} has no {name} images; give data.{name}=")
        return split
