"""The model card of each backbone that comes with raysl, and the tables of docs/weights.md, from their `meta.json`."""

from functools import cache
from pathlib import Path
from typing import Any

from raysl.checkpoint.backbone import Checkpoint, load_checkpoint
from raysl.components import resolve
from raysl.trained import FOLDER, trained_names
from tests.marked import replaced

PAGE = Path(__file__).parents[2] / "docs" / "weights.md"
BEGIN, END = "<!-- trained: written by `python -m tests.trained` -->", "<!-- end of trained -->"
DATASETS = {
    "cifar10": (
        "CIFAR-10",
        "its 50,000 training images of 32 x 32 pixels in ten classes, without their labels",
        """CIFAR-10 (Krizhevsky 2009, Learning Multiple Layers of Features
from Tiny Images) comes without a licence of its own, as far as is known. Its images are a part of 80 Million Tiny
Images, which were collected from the web and withdrawn by their authors in 2020. Whether weights that were learned from
them may be used for your purpose is for you to judge.""",
    )
}
"""By the first part of a name: title, what the images are, what is known of their licence."""
SCORES = {
    "knn/k200/top1": "kNN, k = 200, temperature {knn.temperature}",
    "knn/k20/top1": "kNN, k = 20, temperature {knn.temperature}",
    "linear/top1": "linear classifier on features, {linear.epochs} epochs",
    "low_shot/1_shot": "1 labelled image of each class",
    "low_shot/5_shot": "5 labelled images of each class",
}
"""Numbers in a card, with what they are, by settings of the benchmark."""


@cache
def checkpoint_of(name: str) -> Checkpoint:
    """Return a backbone, read from the package itself."""
    return load_checkpoint(str(FOLDER / name))


def card(name: str) -> str:
    """Return the text of a backbone's README.md."""
    loaded = checkpoint_of(name)
    data, trained = loaded.config.data, loaded.meta["trained"]
    dataset = name.partition("/")[0]
    title, images, licence = DATASETS[dataset]
    hours = loaded.meta["epochs"] * loaded.meta["data"]["num_samples"] / trained["images_per_s"] / 3600
    return f"""# {method_of(loaded)} on {title}: {network_of(loaded)}, {loaded.meta["epochs"]} epochs

From images [B, 3, {data.image_size}, {data.image_size}] to features [B, {loaded.backbone.feature_dim}], with \
{num_weights(loaded):.2f} M weights. Images are RGB in [0, 1], normalised by the mean
{list(data.mean)} and the standard deviation {list(data.std)}.

```python
import raysl

backbone = raysl.load_backbone("{name}")  # normalised images to features
features = raysl.Predictor("{name}")(["a.jpg", "b.jpg"])  # pictures of any size to features
```

## Training

The data: {title}, {images}.
With seed {loaded.config.seed}, about {hours:.1f} hours on one core of a CPU:

```bash
{trained["command"]}
```

## Numbers

Accuracy in % on the test images, of one run.

{scores(loaded)}
The kNN during training, with {trained["vote"]}, 5,000 training and 1,000 test images:

{curve([name])}
`raysl benchmark {name} /path/to/{dataset}` measures the first table again.

## Licence

The weights come under raysl's licence, Apache 2.0. {licence}

## What not to expect

It shows what raysl does, and gives code something trained to run on. The network is small, saw only these images, and
was trained once, for less time than in papers; another seed gives numbers that differ by a point or so. Take published
weights (`raysl convert`, `backbone.pretrained`) for photographs, other subjects, or a comparison with papers.
"""


KEYS = ("knn/k200/top1", "linear/top1", "low_shot/1_shot", "low_shot/5_shot")
"""Numbers of the table of all backbones."""


def table() -> str:
    """Return the tables of all backbones, in Markdown."""
    rows = ["| name | network | weights | trained with | kNN | linear | 1 label a class | 5 labels a class |"]
    rows.append("|---|---|---|---|---|---|---|---|")
    for name in trained_names():
        loaded, metrics = checkpoint_of(name), checkpoint_of(name).meta["metrics"]
        cells = [f"`{name}`", network_of(loaded), f"{num_weights(loaded):.2f} M"]
        cells.append(f"{method_of(loaded)}, {loaded.meta['epochs']} epochs")
        cells += [f"{metrics[key]:.1f}" for key in KEYS]
        rows.append(f"| {' | '.join(cells)} |")
    commands = "\n".join(checkpoint_of(name).meta["trained"]["command"] for name in trained_names())
    text = "\n".join(rows)
    return f"{text}\n\nThe kNN during training:\n\n{curve(trained_names())}\nThe commands:\n\n```bash\n{commands}\n```"


def curve(names: Any) -> str:
    """Return a table with the kNN of backbones by epoch."""
    lines = {name: dict(map(tuple, checkpoint_of(name).meta["trained"]["online_knn"])) for name in names}
    epochs = sorted({epoch for line in lines.values() for epoch in line})
    rows = ["| epoch | " + " | ".join(f"{epoch:g}" for epoch in epochs) + " |", "|---" * (len(epochs) + 1) + "|"]
    for name, line in lines.items():
        rows.append(f"| `{name}` | " + " | ".join(f"{line[e]:.1f}" if e in line else "" for e in epochs) + " |")
    return "\n".join(rows) + "\n"


def scores(loaded: Checkpoint) -> str:
    """Return a table with what benchmarks measured of a backbone."""
    rows = ["| | trained | untrained | pixels |", "|---|---|---|---|"]
    metrics = loaded.meta["metrics"]
    for key, title in SCORES.items():
        deviation = f" ± {metrics[f'{key}/deviation']:.1f}" if f"{key}/deviation" in metrics else ""
        others = [f"{metrics[f'{key}/{rival}']:.1f}" for rival in ("untrained", "pixels")]
        told = title.format(**loaded.config.benchmarks)
        rows.append(f"| {told} | {metrics[key]:.1f}{deviation} | {' | '.join(others)} |")
    return "\n".join(rows) + "\n"


def method_of(loaded: Checkpoint) -> str:
    """Return the name of a method as its paper has it."""
    return str(resolve("method", loaded.meta["method"]).__name__)


def network_of(loaded: Checkpoint) -> str:
    """Return the network in words."""
    config: Any = loaded.config.backbone
    if config.name != "resnet":
        return str(config.name)
    stem = ", stem for small images" if config.stem == "cifar" else ""
    return f"ResNet-{config.depth} of width {config.width}{stem}"


def num_weights(loaded: Checkpoint) -> float:
    """Return the millions of weights of a backbone."""
    return sum(parameter.numel() for parameter in loaded.backbone.parameters()) / 1e6


def write() -> None:
    """Write the cards of all backbones, and the tables of docs/weights.md."""
    for name in trained_names():
        (FOLDER / name / "README.md").write_text(card(name), encoding="utf-8")
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


def with_table(page: str) -> str:
    """Return the page with the tables between its marks."""
    return replaced(page, BEGIN, END, f"\n\n{table()}\n\n")
