"""Execute the notebooks and keep their outputs: `python -m tests.run_notebooks [NAME ...]`.

The cells of `notebooks/*.ipynb` are edited by hand, in Jupyter or as text; their outputs are only ever written by this.
A digest of the sources is kept with the outputs, so that a test finds those that belong to other cells.
"""

import hashlib
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

FOLDER = Path(__file__).parents[1] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
CELL_S = 1200
"""Seconds that one cell may take, on a machine that has other things to do."""


def read(path: Path) -> NotebookNode:
    """A notebook, as the newest format has it."""
    return nbformat.read(path, as_version=4)


def executed(path: Path, folder: Path) -> NotebookNode:
    """A notebook with the outputs of a new kernel that runs in a folder, which is nowhere told of in them.

    Raises:
        nbclient.exceptions.CellExecutionError: if a cell fails.
    """
    notebook = read(path)
    place = {"metadata": {"path": str(folder)}}
    NotebookClient(notebook, timeout=CELL_S, kernel_name="python3", record_timing=False, resources=place).execute()
    for cell in code_cells(notebook):
        cell.outputs = [_without(folder, output) for output in _joined(cell.outputs)]
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"file_extension": ".py", "mimetype": "text/x-python", "name": "python"},
        "raysl": {"sources": sources_digest(notebook)},
    }
    return notebook


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    """The cells that run, in order."""
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def sources_digest(notebook: NotebookNode) -> str:
    """Of what the cells run, without their text and their outputs."""
    return hashlib.sha256(json.dumps([cell.source for cell in code_cells(notebook)]).encode()).hexdigest()


def _joined(outputs: list[NotebookNode]) -> list[NotebookNode]:
    """Outputs with what was written to one stream in a row as one of them."""
    joined: list[NotebookNode] = []
    for output in outputs:
        if joined and output.output_type == joined[-1].output_type == "stream" and output.name == joined[-1].name:
            joined[-1].text += output.text
        else:
            joined.append(output)
    return joined


def _without(folder: Path, value: Any) -> Any:
    """An output in which paths are relative to the folder that it came from."""
    if isinstance(value, str):
        return value.replace(f"{folder}{os.sep}", "").replace(str(folder), ".")
    if isinstance(value, dict):
        return NotebookNode({key: _without(folder, own) for key, own in value.items()})
    return [_without(folder, own) for own in value] if isinstance(value, list) else value


def main(names: list[str]) -> None:
    """Execute all notebooks, or those of these names, and write them back."""
    for path in NOTEBOOKS:
        if names and path.stem not in names:
            continue
        with tempfile.TemporaryDirectory() as folder:
            nbformat.write(executed(path, Path(folder).resolve()), path)
        print(f"{path.name}: {path.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main(sys.argv[1:])
