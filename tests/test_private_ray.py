"""Private parts of Ray are used in one module, `raysl/cluster/private.py`, which works where they are missing."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOOR = ROOT / "raysl" / "cluster" / "private.py"
MOST_LINES = 150
FILES = [path for folder in ("raysl", "perf", "jobs") for path in sorted((ROOT / folder).rglob("*.py"))]


def private_names(source: str) -> Iterator[str]:
    """The private parts of Ray that a file imports, or reaches as attributes of what it has imported."""
    tree = ast.parse(source)
    imported: dict[str, str] = {}
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [each.name for each in node.names]
            imported |= {each.asname or each.name.partition(".")[0]: each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{each.name}" for each in node.names]
            imported |= {each.asname or each.name: f"{node.module}.{each.name}" for each in node.names}
        yield from (name for name in names if is_private(name))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            first, dot, rest = ast.unparse(node).partition(".")
            if is_private(name := f"{imported.get(first, '')}{dot}{rest}"):
                yield name


def is_private(name: str) -> bool:
    first, *rest = name.split(".")
    return first == "ray" and not {"_private", "_raylet", "_internal"}.isdisjoint(rest)


@pytest.mark.parametrize(
    "line",
    [
        "import ray._private.worker",
        "from ray import _raylet",
        "from ray.data._internal.stats import get_or_create_stats_actor",
        "import ray\nray._private.worker.global_worker",
        "from ray import autoscaler\nautoscaler._private.util.validate_config({})",
    ],
)
def test_private_parts_are_found(line: str) -> None:
    assert list(private_names(line))
    assert not list(private_names("import ray, torch\nray.init()\ntorch._internal"))


@pytest.mark.thorough
def test_private_parts_of_ray_are_used_in_one_module() -> None:
    used = {str(path.relative_to(ROOT)): sorted(set(private_names(path.read_text()))) for path in FILES if path != DOOR}
    assert {file: names for file, names in used.items() if names} == {}


def test_that_module_stays_small() -> None:
    assert len(DOOR.read_text().splitlines()) <= MOST_LINES
