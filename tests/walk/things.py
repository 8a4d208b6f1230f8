"""What a reader of the pages has: a small run, a finished sweep, images, arrays."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from PIL import Image

from raysl.checkpoint.checkpoint_folder import checkpoint_name
from raysl.config.load import load_config
from raysl.config.schema import DataConfig
from raysl.data.sources.catalog import dataset_config
from raysl.plan.setup import Setup
from raysl.sweeps.load import load_sweep
from raysl.train.state import TrainState
from tests.leaderboard.boards import asha

LOG = '{"step": 11, "epoch": 0.5, "loss": 4.5}\n{"step": 22, "epoch": 1.0, "loss": 4.2, "knn_k20_top1": 30.0}\n'


@dataclass(frozen=True)
class Things:
    """Folders to copy or to link to.

    Args:
        run: of a small network that was not trained.
        sweep: with a leaderboard.
        images: in two classes, for training and held out.
        arrays: `train.npz`.
        cifar10: Parquet files of ten classes.
        bucket: an empty folder.
    """

    run: Path
    sweep: Path
    images: Path
    arrays: Path
    cifar10: Path
    bucket: Path

    @classmethod
    def make(cls, folder: Path, copies: int = 1) -> "Things":
        """Make them all, with twelve images, or so many times as many."""
        folder.mkdir(exist_ok=True)
        things = cls(*(folder / name for name in ("run", "sweep", "images", "arrays", "cifar10", "bucket")))
        config = load_config("quickstart", ["backbone.depth=10", "backbone.width=4"])
        TrainState.create(Setup.of(config, 1442, 10)).save(things.run / checkpoint_name(0), {})
        (things.run / "metrics.jsonl").write_text(LOG)
        things.sweep.mkdir()
        (things.sweep / "leaderboard.json").write_text(asha(4).json())
        pixels = np.random.default_rng(0).integers(0, 256, (120, 16, 16, 3)).astype(np.uint8)
        for number, image in enumerate(pixels[: 12 * copies]):
            path = things.images / ("val" if number % 3 == 0 else "train") / f"class{number % 2}" / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(path)
        things.arrays.mkdir()
        np.savez(things.arrays / "train.npz", images=pixels, labels=np.arange(120) % 2)
        things.cifar10.mkdir()
        files = [path.read_bytes() for path in sorted(things.images.rglob("*.png"))]
        for split, rows in {"train": 5000, "test": 100}.items():
            columns = {"image": [files[n % 12] for n in range(rows)], "label": [n % 10 for n in range(rows)]}
            pq.write_table(pa.table(columns), things.cifar10 / f"{split}-0.parquet")
        return things

    def in_place_of_the_readers(self, text: str) -> str:
        """Return a text with folders of ours in place of those of a reader: images, CIFAR-10, a bucket."""
        for name, folder in {
            "/path/to/images": self.images,
            "/other/images": self.images,
            "/path/to/cifar10": self.cifar10,
            "s3://bucket": self.bucket,
        }.items():
            text = text.replace(name, str(folder))
        return text

    def are_elsewhere(self, data: DataConfig) -> bool:
        """Whether images are in a folder of the reader's that has no counterpart here, or in a bucket."""
        path = getattr(data, "path", None) or getattr(data, "train", None)
        return path is not None and not str(path).startswith((str(self.images), str(self.cifar10)))

    def check_yaml(self, text: str) -> None:
        """Check a part of a configuration, a sweep, or a catalog of datasets."""
        tree = yaml.safe_load(text)
        path = Path("printed.yaml")
        if "space" in tree:
            path.write_text(text)
            load_sweep(str(path))
        elif {"data", "callbacks"} & set(tree):
            path.write_text("base: quickstart\n" + text)
            load_config(str(path))
        else:
            path.write_text(text)
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("RAYSL_CATALOG", str(path))
                for name in tree:
                    dataset_config(name)
