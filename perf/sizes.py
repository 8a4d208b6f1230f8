"""Sizes of what `python -m perf benchmark` measures."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from raysl.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Rows, widths and numbers; the defaults are those of the goals.

    Args:
        keys, queries: of the nearest neighbours; the classifiers learn from the former and are measured on the latter.
        dim: of features.
        classes: of labels.
        many_keys: mapped from a file, of which memory is measured beside that of `keys`.
        few_queries: that search them.
        svm_rows, svm_dim, svm_classes: of the support vector machines, of which each class has eleven costs.
        few_images, images: that are extracted; the difference of their seconds has no start in it.
        depth: of the ResNet that extracts them, at 224 px.
        few_rows, rows: extracted by a stand-in network, for the memory of the driver.
        width: of its features.
    """

    keys: int = 50_000
    queries: int = 10_000
    dim: int = 512
    classes: int = 10
    many_keys: int = 400_000
    few_queries: int = 1_000
    svm_rows: int = 600
    svm_dim: int = 128
    svm_classes: int = 20
    few_images: int = 512
    images: int = 1_024
    depth: int = 18
    few_rows: int = 10_000
    rows: int = 200_000
    width: int = 2_048


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


def with_words(sizes: Sizes, words: Sequence[str]) -> Sizes:
    """Return the sizes with changes by `name=number`.

    Raises:
        ConfigError: if there is no such size, or it is no number from 1 on.
    """
    known = [field.name for field in fields(Sizes)]
    given = {}
    for word in words:
        name, _, value = word.partition("=")
        if name not in known:
            raise ConfigError(f"--size {word}: there is no such size; known: {', '.join(known)}")
        if not value.isdecimal() or int(value) < 1:
            raise ConfigError(f"--size {word}: write a whole number from 1 on, as in --size {name}=1000")
        given[name] = int(value)
    return replace(sizes, **given)
