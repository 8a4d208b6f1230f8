"""`python -m tests.fake_gpu.table [METHOD ...]`: write the tables of `docs/pretended-gpu.md` from what the watch sees.

With names only their rows are made.
"""

import sys
from pathlib import Path

from tests.fake_gpu.augmentation import augmented
from tests.fake_gpu.training import Seen, trained
from tests.fake_gpu.watch import TO_GPU_LATE, TO_GPU_PAGEABLE
from tests.marked import write_rows
from tests.methods.properties import METHODS

PAGE = Path(__file__).parents[2] / "docs" / "pretended-gpu.md"
MARKS = "<!-- python -m tests.fake_gpu.table -->\n", "<!-- end of the table -->\n"
OF_VIEWS = "<!-- python -m tests.fake_gpu.table: views -->\n", "<!-- end of the table of views -->\n"
PRECISIONS = ("fp32", "bf16", "fp16")
VIEWS = {"simclr": "SimCLR, 2 x 224", "byol": "BYOL, 2 x 224", "dino": "DINO, 2 x 224 and 8 x 96"}
"""Recipes whose augmentation is counted."""
NUM_IMAGES = 256


def main() -> None:
    """Write the tables into the page."""
    write_rows(PAGE, MARKS, METHODS, sys.argv[1:], method_row)
    if len(sys.argv) == 1:
        write_rows(PAGE, OF_VIEWS, VIEWS.values(), [], views_row)


def method_row(name: str) -> str:
    """Return the line of a method."""
    print(name, flush=True)
    return _row(name, {precision: trained(name, f"train.precision={precision}") for precision in PRECISIONS})


def views_row(title: str) -> str:
    """Return the line of a recipe whose augmentation is counted."""
    name = next(name for name in VIEWS if VIEWS[name] == title)
    found = augmented(name, NUM_IMAGES)
    return f"| {title} | {found.kernels} | {found.num_bytes / 1e9:.1f} |"


def _row(name: str, seen: dict[str, Seen]) -> str:
    half = seen["bf16"]
    events = [event for each in seen.values() for event in each.in_steps()]
    late = sum(event.kind == TO_GPU_LATE for event in half.in_steps()) / half.plan.total_steps
    cells = [
        *(f"{seen[precision].kernels():.0f}" for precision in PRECISIONS),
        *(f"{half.kernels(phase):.0f}" for phase in ("batch", "forward and backward", "update")),
        f"{late:.1f}",
        str(sum(event.kind == TO_GPU_PAGEABLE for event in events)),
        str(sum(event.is_wait for event in events)),
    ]
    return f"| {name} | {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
