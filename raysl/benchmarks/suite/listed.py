"""The list of benchmarks that `raysl benchmark --list` shows: needs, protocol and cost."""

from textwrap import fill

from raysl.benchmarks.benchmark import Benchmark, Needs
from raysl.components import ALIASES, resolve

WIDTH = 100
_LABELS = {"one": "a label on every image", "any": "labels, one or several an image", "none": "no labels"}


def benchmark_table() -> str:
    """Return a paragraph for each benchmark."""
    names = sorted(ALIASES["benchmark"])
    column = max(map(len, names)) + 2
    parts = []
    for name in names:
        kind: type[Benchmark] = resolve("benchmark", name)
        lines = [kind.protocol, f"Needs {told_needs(kind.needs(kind.Config(name=name)))}.", f"Cost: {kind.cost}."]
        body = "\n".join(fill(line, WIDTH - column) for line in lines)
        indented = body.replace("\n", "\n" + " " * column)
        parts.append(f"{name:<{column}}{indented}")
    return "\n\n".join(parts)


def told_needs(needs: Needs) -> str:
    """Needs in words."""
    if needs.own_images:
        return "images of its own, which its settings name"
    return f"{_LABELS[needs.labels]}{' and held-out images' if needs.test else ''}"
