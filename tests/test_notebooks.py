"""The notebooks run, and what stands in them is what they came to."""

import ast
import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat import NotebookNode

import raysl
from tests.run_notebooks import FOLDER, NOTEBOOKS, code_cells, executed, read, sources_digest

MOST_BYTES = 1_000_000
OF_A_MACHINE = re.compile(r"(?<![\w.<:/])(?:file://)?/(?:home|root|tmp|var|work|opt|usr|mnt|Users|private)/\S+")
OF_A_TERMINAL = re.compile(r"\x1b\[|\r|\x08")
notebooks = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def texts(notebook: NotebookNode) -> list[str]:
    """All text that outputs hold."""
    outputs = [output for cell in code_cells(notebook) for output in cell.outputs]
    shown = [value for output in outputs for kind, value in output.get("data", {}).items() if kind.startswith("text/")]
    return [output.text for output in outputs if output.output_type == "stream"] + shown


def kinds(notebook: NotebookNode) -> list[set[str]]:
    """What each cell shows: text, pictures, tables; the log is there or not."""
    return [
        {kind for output in cell.outputs for kind in output.get("data", [output.get("name")])} - {"stderr"}
        for cell in code_cells(notebook)
    ]


def test_there_are_notebooks() -> None:
    assert {path.stem for path in NOTEBOOKS} == {"dataset_to_backbone", "images_to_neighbours", "sweep_to_leaderboard"}


@notebooks
def test_a_notebook_is_small_and_valid(path: Path) -> None:
    assert path.stat().st_size < MOST_BYTES
    nbformat.validate(read(path))


@notebooks
def test_outputs_are_those_of_the_cells_that_stand_there(path: Path) -> None:
    notebook = read(path)
    cells = code_cells(notebook)
    assert [cell.execution_count for cell in cells] == [place + 1 for place in range(len(cells))]
    assert notebook.metadata["raysl"]["sources"] == sources_digest(notebook), (
        f"run python -m tests.run_notebooks {path.stem}"
    )
    shown = set().union(*kinds(notebook))
    assert shown >= {"image/png", "text/html"}


@notebooks
def test_outputs_hold_no_error_and_nothing_of_the_machine(path: Path) -> None:
    notebook = read(path)
    assert [output for cell in code_cells(notebook) for output in cell.outputs if output.output_type == "error"] == []
    for text in texts(notebook):
        assert "Traceback" not in text
        assert OF_A_MACHINE.findall(text) == []
        assert OF_A_TERMINAL.findall(text) == []


@notebooks
def test_links_of_a_notebook_lead_somewhere(path: Path) -> None:
    told = "\n".join(cell.source for cell in read(path).cells if cell.cell_type == "markdown")
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", told) if "://" not in link]
    assert links != []
    assert [link for link in links if not (FOLDER / link).exists()] == []


@notebooks
def test_cells_compile_and_use_what_raysl_has(path: Path) -> None:
    tree = ast.parse("\n".join(cell.source for cell in code_cells(read(path))))
    assert used(tree) != []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "raysl":
            module = importlib.import_module(str(node.module))
            assert [alias.name for alias in node.names if not hasattr(module, alias.name)] == []
        elif isinstance(node, ast.Call) and (found := of_raysl(node.func)) is not None:
            named = {keyword.arg: None for keyword in node.keywords if keyword.arg}
            inspect.signature(found).bind(*[None for _ in node.args], **named)


def used(tree: ast.AST) -> list[Any]:
    """What a tree takes from raysl."""
    return [found for node in ast.walk(tree) if (found := of_raysl(node)) is not None]


def of_raysl(node: ast.AST) -> Any:
    """What `raysl.NAME` is; None of anything else.

    Raises:
        AttributeError: if raysl has no such name.
    """
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "raysl":
        return getattr(raysl, node.attr)
    return None


def test_a_name_that_raysl_lacks_is_found() -> None:
    with pytest.raises(AttributeError, match="train_all"):
        used(ast.parse("result = raysl.train_all(config)"))


@pytest.mark.slow
@notebooks
def test_a_notebook_runs_from_its_first_cell_to_its_last(path: Path, tmp_path: Path) -> None:
    new = executed(path, tmp_path)
    assert kinds(new) == kinds(read(path))
    assert [text for text in texts(new) if OF_A_MACHINE.search(text)] == []
