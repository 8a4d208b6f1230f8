"""Features of training images for TensorBoard's projector."""

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F
from typing_extensions import override

from raysl import distributed as dist
from raysl.config.ranges import Every, Within
from raysl.nn.evaluating import evaluating
from raysl.schedule import Duration, Step
from raysl.train.callbacks.callback import Callback, CallbackConfig, Run, StepOutput
from raysl.train.callbacks.view_images import picture
from raysl.train.file_names import PROJECTOR_FILE, replace_text

FOLDER = "embedding"
LARGEST_SPRITE = 8192  # pixels a side that browsers take


class Embedding(Callback):
    """Writes the backbone's features of some training images, with labels and thumbnails, for TensorBoard's projector.

    The images are those of `Run.images`, without augmentation, split over the workers. Each time writes
    `embedding/<step>/` with `tensors.tsv`, `metadata.tsv` and `sprite.png`; `projector_config.pbtxt` in the run's
    folder lists them all, for the tab "Projector" of `tensorboard --logdir runs/NAME`.

    Source: add_embedding of TensorBoard, whose files these are.
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(CallbackConfig):
        """Settings of the embedding."""

        every: Every = field(default=Duration.parse("100%"))
        """How often; the last step is always included."""
        images: Annotated[int, Within(2, 50_000)] = 1000
        """Training images of all workers together."""
        thumbnail: Annotated[int, Within(1, 256)] = 32
        """Side of the thumbnails, in pixels; made smaller where they would not fit the sprite."""

    @override
    @torch.no_grad()
    def on_step_end(self, run: Run, step: Step, out: StepOutput) -> None:
        if not (self.config.every.is_due(step) or step.index == step.total):
            return
        features, labels, index, images = self._collect(run)
        if not dist.is_main():
            return
        with run.writing() as folder:
            target = folder / FOLDER / f"{step.index:09d}"
            target.mkdir(parents=True, exist_ok=True)
            np.savetxt(target / "tensors.tsv", features.numpy(), fmt="%.6g", delimiter="\t")
            rows = [f"{label}\t{number}" for label, number in zip(labels.tolist(), index.tolist(), strict=True)]
            (target / "metadata.tsv").write_text("\n".join(["label\tindex", *rows]) + "\n")
            Image.fromarray(_sprite(images)).save(target / "sprite.png")
            _list_in_projector(folder, target.name, images.shape[-1])

    def _collect(self, run: Run) -> tuple[Tensor, ...]:
        """Return features [N, D], labels and indices [N] and thumbnails uint8 [N, 3, h, h] of all workers, on CPU."""
        backbone, device = run.state.exported(), run.state.device
        side = min(self.config.thumbnail, int(LARGEST_SPRITE / np.ceil(np.sqrt(self.config.images))))
        # empty first parts, so that a rank without images can take part in the exchange
        empty = partial(torch.empty, device=device)
        features, thumbnails = [empty(0, backbone.feature_dim)], [empty(0, 3, side, side, dtype=torch.uint8)]
        labels, index = [empty(0, dtype=torch.int64)], [empty(0, dtype=torch.int64)]
        data = run.state.config.data
        with evaluating(backbone):
            for batch in run.images(self.config.images):
                images = batch.views["image"][:, 0]
                features.append(backbone(images).float())
                labels.append(batch.label if batch.label.ndim == 1 else torch.full_like(batch.index, -1))
                index.append(batch.index)
                small = F.interpolate(images.float(), (side, side), mode="area")[:, None, None]
                thumbnails.append(torch.stack([picture(one, data.mean, data.std) for one in small]).to(device))
        return tuple(dist.all_gather_ragged(torch.cat(parts)).cpu() for parts in (features, labels, index, thumbnails))


def _sprite(images: Tensor) -> np.ndarray:
    """Arrange thumbnails uint8 [N, 3, h, h] in a square, uint8 [S * h, S * h, 3]; the cells left over are black."""
    num, side = len(images), images.shape[-1]
    across = int(np.ceil(np.sqrt(num)))
    square = images.new_zeros(across * across, 3, side, side)
    square[:num] = images
    return square.view(across, across, 3, side, side).permute(0, 3, 1, 4, 2).reshape(across * side, -1, 3).numpy()


def _list_in_projector(folder: Path, name: str, side: int) -> None:
    file, path = folder / PROJECTOR_FILE, f"{FOLDER}/{name}"
    _, *before = file.read_text().split("embeddings {") if file.exists() else [""]
    sprite = f'  sprite {{\n    image_path: "{path}/sprite.png"\n' + f"    single_image_dim: {side}\n" * 2 + "  }\n"
    entry = (
        f'\n  tensor_name: "step {int(name)}"\n  tensor_path: "{path}/tensors.tsv"\n'
        f'  metadata_path: "{path}/metadata.tsv"\n{sprite}}}\n'
    )
    parts = [*(part for part in before if f'"{path}/' not in part), entry]
    replace_text(file, "".join(f"embeddings {{{part}" for part in parts))
