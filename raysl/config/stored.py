"""Settings that were written by raysl itself, read back."""

from collections.abc import Sequence
from pathlib import Path

from raysl.components import ALIASES
from raysl.config.build import from_dict
from raysl.config.layers import Layers
from raysl.config.load import parse_overrides
from raysl.config.schema import BenchmarkConfig, RunConfig
from raysl.config.text import read
from raysl.config.tree import to_dict


def load_dumped(text: str) -> RunConfig:
    """The settings that `dump` wrote.

    Raises:
        ConfigError: if the text is something else.
    """
    return from_dict(read(text, "run.yaml"))


def apply_overrides(config: RunConfig, overrides: Sequence[str]) -> RunConfig:
    """Settings with some of them changed by `key=value`, as on the command line.

    Raises:
        ConfigError: if a key or a value is wrong.
    """
    layers = Layers()
    layers.lay(to_dict(config), Path.cwd())
    layers.lay(parse_overrides(overrides), Path.cwd())
    return from_dict(layers.pruned())


def load_benchmarks(
    config: RunConfig, names: Sequence[str] | None, overrides: Sequence[str] = ()
) -> dict[str, BenchmarkConfig]:
    """Settings of benchmarks on a run's checkpoint.

    Args:
        config: the run's settings.
        names: benchmarks to take; default: those of the run, or all there are where it has none.
        overrides: `knn.k=[20,200]`.

    Raises:
        ConfigError: if a name or a setting is wrong.
    """
    chosen = list(names or config.benchmarks or ALIASES["benchmark"])
    wanted = {name: to_dict(config)["benchmarks"].get(name, {}) for name in chosen}
    settings = from_dict({**to_dict(config), "benchmarks": wanted})
    return apply_overrides(settings, [f"benchmarks.{override}" for override in overrides]).benchmarks
