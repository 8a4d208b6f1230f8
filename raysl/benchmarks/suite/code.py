"""A digest of a benchmark's code: a result of other code is measured again."""

import ast
import hashlib
import importlib
import inspect
from functools import cache
from types import ModuleType

_ROOMS = ("raysl.benchmarks.", "raysl.nn.", "raysl.losses")
"""Modules that may change a number. Those that only move numbers about are left out."""
_NO_MATTER = ("raysl.benchmarks.benchmark", "raysl.benchmarks.suite", "raysl.benchmarks.features", "raysl.nn.backbones")


@cache
def code_of(kind: type[object]) -> str:
    """Twelve hexadecimal digits of the code of a class's module and of what that imports of benchmarks and networks.

    Comments, docstrings and layout do not count. The backbone does not either: its weights are told apart by their own
    digest. Empty where there is no source.
    """
    found: dict[str, str] = {}
    try:
        inspect.getsource(importlib.import_module(kind.__module__))
    except (OSError, TypeError):  # typed into a notebook
        return ""
    _collect(importlib.import_module(kind.__module__), found)
    found["own"] = found.pop(kind.__module__)  # a user's file has another name wherever it lies
    whole = "\n".join(f"{name} {found[name]}" for name in sorted(found))
    return hashlib.sha256(whole.encode()).hexdigest()[:12]


def _collect(module: ModuleType, found: dict[str, str]) -> None:
    if module.__name__ in found:
        return
    tree = ast.parse(inspect.getsource(module))
    _drop_docstrings(tree)
    found[module.__name__] = hashlib.sha256(ast.dump(tree).encode()).hexdigest()
    for name in _imported(tree):
        if name.startswith(_ROOMS) and not name.startswith(_NO_MATTER):
            _collect(importlib.import_module(name), found)


def _imported(tree: ast.Module) -> list[str]:
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            names.append(node.module)
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
    return names


def _drop_docstrings(tree: ast.Module) -> None:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [
                part for part in node.body if not (isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant))
            ]
