"""`python -m tests.plan.table [RECIPE ...]`: write what `raysl plan` says of recipes for ImageNet into `docs/gpu.md`.

With names only their rows are made.
"""

import io
import json
import re
import sys
import time
from collections.abc import Sequence
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

from raysl import cli
from raysl.config.config_files import find
from raysl.config.load import load_config
from tests.marked import write_rows
from tests.published.files import Published, recipes

PAGE = Path(__file__).parents[2] / "docs" / "gpu.md"
MARKS = "<!-- python -m tests.plan.table -->\n", "<!-- end of the plans -->\n"
ALSO = {
    "simclr on 64": ("simclr", ["train.workers=64"]),
    "dino_v2 on 8": ("dino_v2", ["train.workers=8", "train.batch_size=256"]),
}
"""Recipes on other numbers of workers than those of their command."""


def listed() -> list[str]:
    """Return the recipes of the table: all but those of `continue/`, which are planned from the run they go on from."""
    return [name for name in recipes() if not name.startswith("continue/")]


def main() -> None:
    """Write the table into the page."""
    write_rows(PAGE, MARKS, [*listed(), *ALSO], sys.argv[1:], row)


def row(title: str) -> str:
    """Return the line of a recipe on the number of H100 of its command, or of one of `ALSO`."""
    start = time.process_time()
    name, words = ALSO.get(title) or (title, command_of(title))
    line = _row(title, name, words)
    print(f"{time.process_time() - start:5.1f} s {line}", flush=True)
    return line


def command_of(name: str) -> list[str]:
    """Return the settings of the command in a recipe's header that say how it is run."""
    header = find(name, Path.cwd()).read_text(encoding="utf-8")
    found = re.search(r"^# Command: raysl pretrain \S+ (.*)$", header, re.MULTILINE)
    assert found is not None, f"{name}: the header has no command"
    return [word for word in found[1].split() if word.startswith(("train.", "data.lanes="))]


def planned(name: str, words: Sequence[str]) -> dict[str, Any]:
    """Return what `raysl plan NAME WORDS --gpu h100 --json` prints, for the images of the paper."""
    file = Published.read(name)
    settings = ["data.path=/images", *file.build, *words]
    options = ["--gpu", "h100", "--images", str(file.images), "--json"]
    printed = io.StringIO()
    argv = patch.object(sys, "argv", ["raysl", "plan", name, *settings, *options])
    with argv, redirect_stdout(printed), suppress(SystemExit):  # with the code of success
        cli.main()
    found: dict[str, Any] = json.loads(printed.getvalue())
    return found


def _row(title: str, name: str, words: Sequence[str]) -> str:
    plan = planned(name, words)
    too_small = "; ".join(warning.partition("; ")[2] for warning in plan["warnings"])
    train = load_config(name, ["data.path=/images", *words]).train
    cells = [
        title,
        f"{train.batch_size:,}",
        str(train.workers),
        f"{plan['memory_total'] / 1e9:.1f}",
        f"{plan['memory'].get('activations', 0) / 1e9:.1f}",
        f"{plan['exchanged'] / 1e9:.2f}",
        str(plan["collectives"]),
        f"{plan['images_per_s']:,.0f}",
        f"{plan['gpu_hours']:,.0f}",
        too_small,
    ]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
