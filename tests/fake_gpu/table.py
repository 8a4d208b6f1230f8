"""`python -m tests.fake_gpu.table`: write the tables of `docs/gpu.md` from what the watch sees of every method."""

from pathlib import Path

from tests.fake_gpu.augmentation import augmented
from tests.fake_gpu.training import Seen, trained
from tests.fake_gpu.watch import TO_GPU_LATE, TO_GPU_PAGEABLE
from tests.methods.properties import METHODS

PAGE = Path(__file__).parents[2] / "docs" / "gpu.md"
BEGIN, END = "<!-- python -m tests.fake_gpu.table -->\n", "<!-- end of the table -->\n"
PRECISIONS = ("fp32", "bf16", "fp16")
VIEWS = {"simclr": "SimCLR, 2 x 224", "byol": "BYOL, 2 x 224", "dino": "DINO, 2 x 224 and 8 x 96"}
"""Recipes whose augmentation is counted."""
NUM_IMAGES = 256


def main() -> None:
    """Write the tables into the page."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n{methods()}\n{augmentations()}\n{END}{after}")
    print(PAGE)


def methods() -> str:
    """Return a row for each method."""
    lines = [
        "| method | kernels a step: fp32 | bf16 | fp16 | of bf16: batch | forward and backward | update "
        "| copies a step | pageable | waits |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name in METHODS:
        print(name, flush=True)
        lines.append(_row(name, {precision: trained(name, f"train.precision={precision}") for precision in PRECISIONS}))
    return "\n".join(lines) + "\n"


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


def augmentations() -> str:
    """Return a row for each recipe whose augmentation is counted."""
    lines = [f"| views of {NUM_IMAGES} images | kernels | GB read and written |", "|---|---|---|"]
    for name, title in VIEWS.items():
        found = augmented(name, NUM_IMAGES)
        lines.append(f"| {title} | {found.kernels} | {found.num_bytes / 1e9:.1f} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
