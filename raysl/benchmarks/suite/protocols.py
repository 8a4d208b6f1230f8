"""The settings behind a number: the names that they give to results, and in words."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from typing import Any

from raysl.benchmarks.online_knn import own_vote
from raysl.benchmarks.suite.fitting import benchmark_class
from raysl.config.build import build_node
from raysl.config.dump import plain
from raysl.config.schema import BenchmarkConfig, is_may_change
from raysl.errors import ConfigError
from raysl.redact import redact

MOST_SHOWN = 40
"""Characters of a setting in the title of a number; its result has all of it."""
ONLINE = "online_knn"
"""Name of the online kNN among the protocols of a run."""


def names_of(key: str, config: BenchmarkConfig, usual: BenchmarkConfig | None) -> tuple[str, str]:
    """Return the name of a benchmark's result, and that of the benchmark in its scores.

    Both are the key where the settings are the run's, else they have a mark made of the settings themselves: that of
    the result of all of them, that of the scores of those which the names of the metrics do not carry. Equal settings
    have equal marks, whatever those of the run are.

    Args:
        usual: those that the run has for it, or the default ones; None where there are none.
    """

    def marked(settings: Callable[[BenchmarkConfig], dict[str, Any]]) -> str:
        values = settings(config)
        return key if usual is None or values == settings(usual) else f"{key}@{digest_of(values)}"

    return marked(settings_of_result), marked(_protocol)


def settings_of_result(config: BenchmarkConfig) -> dict[str, Any]:
    """Return the settings that a result depends on."""
    free = {"name", "required", *(one.name for one in fields(config) if is_may_change(one.metadata))}
    return {name: value for name, value in plain(config).items() if name not in free}


def _protocol(config: BenchmarkConfig) -> dict[str, Any]:
    """Return the settings that a number depends on and that its name does not carry."""
    carried = {"rivals", *benchmark_class(config).in_names}
    return {name: value for name, value in settings_of_result(config).items() if name not in carried}


def default_of(config: BenchmarkConfig) -> BenchmarkConfig | None:
    """Return the default settings of the same benchmark; None where a setting has no default."""
    try:
        return type(config)(name=config.name)
    except TypeError:
        return None


def protocol_of(config: BenchmarkConfig) -> str:
    """Return the protocol of a benchmark for people: the settings of it that are not the defaults, without those that
    the names of its metrics carry.
    """
    default = default_of(config)
    usual = {} if default is None else _protocol(default)
    changed = {name: value for name, value in _protocol(config).items() if usual.get(name) != value}
    return redact(", ".join(word for name, value in changed.items() for word in _words(name, value, usual.get(name))))


def _words(name: str, value: Any, before: Any) -> Iterator[str]:
    """Write a changed setting as in an override, `views.flip=0.0`; of a group, the settings that differ."""
    if isinstance(value, dict) and isinstance(before, dict):
        for inner in value:
            if inner not in before or value[inner] != before[inner]:
                yield from _words(f"{name}.{inner}", value[inner], before.get(inner))
    else:
        text = str(value)
        # what is cut off still tells two values apart
        yield f"{name}={text if len(text) <= MOST_SHOWN else f'{text[:MOST_SHOWN]}… ({digest_of(value)})'}"


def protocols_of(benchmarks: Mapping[str, BenchmarkConfig]) -> dict[str, str]:
    """Return the protocols of a run's benchmarks and of its online kNN, by name, without those of the defaults."""
    protocols = {key: protocol_of(config) for key, config in benchmarks.items()}
    protocols[ONLINE] = protocol_of(own_vote(benchmarks.values()))
    return {key: protocol for key, protocol in protocols.items() if protocol}


def stored_protocols(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the same for the settings of a stored run, a plain tree; benchmarks that this raysl cannot read are left
    out."""
    nodes = settings.get("benchmarks")
    benchmarks: dict[str, BenchmarkConfig] = {}
    for key, node in nodes.items() if isinstance(nodes, dict) else ():
        try:
            benchmarks[key] = build_node(BenchmarkConfig, node, f"benchmarks.{key}")
        except ConfigError:
            continue
    return protocols_of(benchmarks)


def digest_of(tree: Any) -> str:
    """Return six hexadecimal digits of a plain tree."""
    return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()[:6]
