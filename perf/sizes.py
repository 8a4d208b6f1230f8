"""Sizes of what `python -m perf benchmark` measures."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from raysl.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Rows, widths and numbers; the defaults are those of the goals."""

    keys: int = 50_000  # of the nearest neighbours; the classifiers learn from them
    queries: int = 10_000  # which the classifiers are measured on
    dim: int = 512
    classes: int = 10
    many_keys: int = 400_000  # mapped from a file, of which memory is measured beside that of `keys`
    few_queries: int = 1_000  # that search them
    svm_rows: int = 600
    svm_dim: int = 128
    svm_classes: int = 20  # each with eleven costs
    few_images: int = 512  # to extract
    images: int = 1_024  # to extract; the difference of the seconds of both has no start in it
    depth: int = 18  # of the ResNet that extracts them, at 224 px
    few_rows: int = 10_000  # extracted by a stand-in network, for the memory of the driver
    rows: int = 200_000
    width: int = 2_048  # of the features of the stand-in


QUICK = Sizes(
    keys=5_000,
    queries=1_000,
    many_keys=40_000,
    few_queries=100,
    svm_rows=200,
    svm_dim=32,
    few_images=128,
    images=256,
    few_rows=2_000,
    rows=10_000,
    width=256,
)


def with_changes(sizes: Sizes, arguments: Sequence[str]) -> Sizes:
    """Return the sizes with changes by `name=number`."""
    known = [field.name for field in fields(Sizes)]
    changes = {}
    for argument in arguments:
        name, _, value = argument.partition("=")
        if name not in known:
            raise ConfigError(f"--size {argument}: there is no such size; known: {', '.join(known)}")
        if not value.isdecimal() or int(value) < 1:
            raise ConfigError(f"--size {argument}: write a whole number from 1 on, as in --size {name}=1000")
        changes[name] = int(value)
    return replace(sizes, **changes)
