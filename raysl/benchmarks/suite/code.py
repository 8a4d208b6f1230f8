"""A digest of the code behind a number, so that results of other code are measured again.

It follows the imports of the benchmark's module, of the extraction of features, and of the classes that the settings
name (backbone, source), through all of raysl but for `_NO_MATTER`.
"""

import ast
import hashlib
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import raysl
from raysl.components import ALIASES

EVERY = ("raysl.benchmarks.benchmark", "raysl.benchmarks.features.embedding", "raysl.nn.pooling")
"""Modules behind every number: the inputs of benchmarks, and the computation of features."""
_BY_NAME = {"raysl.optim.build": "optimizer"}
"""Modules that take classes by names in the settings, with the slot of these: all that raysl has there count."""
_NO_MATTER = (
    *("raysl.storage", "raysl.process", "raysl.cluster", "raysl.config", "raysl.checkpoint", "raysl.cli"),
    *(
        "raysl.report",
        "raysl.components",
        "raysl.errors",
        "raysl.redact",
        "raysl.data.assignments",
        "raysl.data.ingest",
    ),
    *(
        "raysl.benchmarks.report",
        "raysl.benchmarks.suite",
        "raysl.train.disk",
        "raysl.train.expected",
        "raysl.train.files",
        "raysl.train.meter",
    ),
    *("raysl.plan.reads", "raysl.train.process", "raysl.train.reporter", "raysl.train.state", "raysl.runs.follow"),
    *("raysl.train.callbacks.tensorboard", "raysl.train.callbacks.logs"),
    *("raysl.runs.dataset_note", "raysl.runs.folder", "raysl.runs.fork", "raysl.runs.history", "raysl.runs.lineage"),
    *("raysl.runs.elastic", "raysl.runs.losses", "raysl.runs.metrics", "raysl.runs.missing", "raysl.runs.presence"),
    *("raysl.runs.ray_log", "raysl.runs.ray_reporter", "raysl.runs.retries", "raysl.runs.stopping", "raysl.runs.store"),
    *("raysl.runs.announce", "raysl.runs.executors", "raysl.runs.find_folder", "raysl.runs.watch"),
    "raysl.data.stream.execution",
)
"""Packages and modules that only move, store, check or tell numbers; settings are compared as such."""


def code_of(kind: type[object], *others: type[object]) -> str:
    """Return twelve hexadecimal digits of the code that computes a benchmark's numbers.

    Comments, docstrings and layout do not count. Of files that are not raysl's, those of the classes themselves count
    and not what they import. Empty where there is no source.

    Args:
        kind: class of the benchmark.
        others: classes that no import leads to: those of the backbone and of the images.
    """
    return _digest((kind, *others))


@cache
def _digest(kinds: tuple[type[object], ...]) -> str:
    others = {f"{number} {kind.__qualname__}": kind for number, kind in enumerate(kinds) if not _is_ours(kind)}
    try:
        digests = {name: _own(kind) for name, kind in others.items()}
    except (OSError, TypeError):  # typed into a notebook
        return ""
    starts = [kind.__module__ for kind in kinds if _is_ours(kind)]
    starts += [name for module in digests.values() for name in module.imports]
    digests |= closure((*starts, *EVERY))
    whole = "\n".join(f"{name} {digests[name].digest}" for name in sorted(digests))
    return hashlib.sha256(whole.encode()).hexdigest()[:12]


@dataclass(frozen=True)
class Module:
    """The code of a module.

    Args:
        digest: of its syntax tree without docstrings.
        imports: modules of raysl that it imports when it runs.
    """

    digest: str
    imports: tuple[str, ...]

    @classmethod
    def of(cls, source: str) -> "Module":
        """Parse a module."""
        tree = ast.parse(source)
        imports = tuple(dict.fromkeys(_imported(tree)))
        _drop_docstrings(tree)
        return cls(hashlib.sha256(ast.dump(tree).encode()).hexdigest(), imports)


def closure(names: tuple[str, ...]) -> dict[str, Module]:
    """Return modules of raysl and all that they import, by name, without those of `_NO_MATTER`."""
    modules: dict[str, Module] = {}
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in modules and not _does_not_matter(name) and (module := _module(name)) is not None:
            modules[name] = module
            waiting += module.imports
            waiting += [path.partition(":")[0] for path in ALIASES.get(_BY_NAME.get(name, ""), {}).values()]
    return modules


def _does_not_matter(name: str) -> bool:
    return any(name == part or name.startswith(f"{part}.") for part in _NO_MATTER)


def _is_ours(kind: type[object]) -> bool:
    return kind.__module__.startswith("raysl.") and _file(kind.__module__) is not None


def _own(kind: type[object]) -> Module:
    """Return the code of a user's file, whatever its name and place."""
    source = inspect.getmodule(kind)
    if source is None:
        raise OSError(f"{kind} has no module")
    return Module.of(inspect.getsource(source))


@cache
def _module(name: str) -> Module | None:
    """Return a module; None for a name that is not a module, such as a class that is imported from one."""
    file = _file(name)
    return None if file is None else Module.of(file.read_text())


def _file(name: str) -> Path | None:
    base = Path(raysl.__file__).parent.parent.joinpath(*name.split("."))
    files = (base.with_suffix(".py"), base / "__init__.py")
    return next((file for file in files if file.is_file()), None)


def _imported(node: ast.AST) -> Iterator[str]:
    """Yield names of raysl that a tree imports, some of which are not modules, without imports for the type checker."""
    if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("raysl"):
        yield str(node.module)
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name.startswith("raysl"))
    is_for_types = isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    for child in node.orelse if isinstance(node, ast.If) and is_for_types else ast.iter_child_nodes(node):
        yield from _imported(child)


def _drop_docstrings(tree: ast.Module) -> None:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [
                part for part in node.body if not (isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant))
            ]
