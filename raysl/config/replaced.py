"""What a component that replaces another one finds there: settings that were chosen for the other and still hold."""

from typing import Any

from raysl.config.layers import VIEWS, Keys, Layers, name_of
from raysl.config.text import write_inline
from raysl.redact import redact_tree


def replacements(layers: Layers) -> list[str]:
    """A line for each component that took the place of another: which of that one's settings still hold, which were
    dropped since the new one has no such settings, and, of a source, which views were made for the one before."""
    found = [(keys[: 2 if keys[0] == "benchmarks" else 1], name, keys) for keys, name in layers.stale.items()]
    found += [(("data",), name, keys) for keys, name in layers.views.items()]
    values, lines = layers.pruned(), []
    for component, before in dict.fromkeys((component, name) for component, name, _ in found):
        node = _find(layers.values, component)
        if node is None or name_of(node, component) == before:
            continue
        settings = [keys for *owner, keys in found if owner == [component, before]]
        kept = [keys for keys in settings if _find(values, keys, _GONE) is not _GONE]
        groups = (
            _listed([keys for keys in kept if keys not in layers.views], values),
            _listed([keys for keys in kept if keys in layers.views], values, len(VIEWS)),
            ", ".join(".".join(keys) for keys in settings if keys not in kept and keys not in layers.views),
        )
        lines += _told(".".join(component), before, str(name_of(node, component)), *groups)
    return lines


_GONE = object()


def _told(key: str, before: str, now: str, kept: str, views: str, dropped: str) -> list[str]:
    sentences = []
    if kept:
        sentences.append(f"still as set for {before}: {kept}")
    if views:
        sentences.append(f"still the views made for {before}, {'.'.join(VIEWS)}: {views}")
    if dropped:
        sentences.append(f"dropped, since {now} has no such setting: {dropped}")
    advice = "; set what should be different" if kept or views else ""
    return [f"{key}={now} replaces {key}={before}: {'; '.join(sentences)}{advice}"] if sentences else []


def _listed(found: list[Keys], values: dict[str, Any], first: int = 0) -> str:
    """Settings with their values; their names begin with their key number `first`."""
    return ", ".join(f"{'.'.join(keys[first:])}={write_inline(redact_tree(_find(values, keys)))}" for keys in found)


def _find(tree: Any, keys: Keys, default: Any = None) -> Any:
    for key in keys:
        if not isinstance(tree, dict) or key not in tree:
            return default
        tree = tree[key]
    return tree
