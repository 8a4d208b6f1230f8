"""Pictures of the pixels that a method predicts for held-out images, along the training."""

import io
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from typing_extensions import override

from raysl import distributed as dist
from raysl.data.batch import Batch
from raysl.data.source import Split
from raysl.data.sources.subset import sample_of
from raysl.data.stream.loader import Loader
from raysl.errors import DamagedData
from raysl.nn.evaluating import evaluating
from raysl.schedule import Duration, Step
from raysl.train.callbacks.callback import Callback, Run
from raysl.train.file_names import RECONSTRUCTIONS_FOLDER, reconstructed_name, replace_bytes, shown_name
from raysl.transforms.channels import to_pixels

NUM_IMAGES = 10
"""Number of images in a picture."""


class Reconstructions(Callback):
    """Writes the pixels that the method predicts for ten held-out images, see `Method.reconstruct`.

    The folder `reconstructions` gets a picture for each step, `000001200.png`, with the predictions side by side. One
    more picture, `held_out.png`, or `training.png` if there are no held-out images, has the images in its first row and
    what the method saw of them in its second. Step 0 and the last step are always included. The predictions are those
    of the trained weights, even if an average of them is exported. Nothing random is drawn, and only the main worker
    takes part.

    Args:
        loader: loader of the run, which makes the views.
        split: split that the images are chosen from.
        is_held_out: whether the split is held out from training.
        every: time between two pictures.
    """

    def __init__(self, loader: Loader, split: Split, is_held_out: bool, every: Duration) -> None:
        super().__init__()
        self.loader = loader
        self.split = split
        self.is_held_out = is_held_out
        self.every = every
        self._batch: Batch | None = None
        self._is_off = False

    @override
    def on_train_start(self, run: Run) -> None:
        if run.state.step == 0:
            self._write(run, 0)

    @override
    def on_step_end(self, run: Run, step: Step, out: object) -> None:
        if self.every.is_due(step) or step.index == step.total:
            self._write(run, step.index)

    @torch.no_grad()
    def _write(self, run: Run, step: int) -> None:
        if self._is_off or not dist.is_main():
            return
        try:
            self._batch = self._batch or whole_images(self.loader, self.split, run.state.device)
        except DamagedData as error:
            self._is_off = True
            run.note(f"reconstructions are not shown: {error}")
            return
        # these few images are not worth compiling the blocks for their number
        is_compiled = run.state.config.train.compile is True
        with evaluating(run.state.method), torch.compiler.set_stance("force_eager") if is_compiled else nullcontext():
            result = run.state.method.reconstruct(self._batch)
        if result is None:
            return
        data = run.state.config.data
        images, seen, predicted = (
            to_pixels(values, data.mean, data.std, data.channels).cpu()
            for values in (result.images, result.seen, result.predicted)
        )
        with run.writing() as folder:
            target = folder / RECONSTRUCTIONS_FOLDER
            target.mkdir(parents=True, exist_ok=True)
            _save([images, seen], target / shown_name(self.is_held_out))
            _save([predicted], target / reconstructed_name(step))


def whole_images(loader: Loader, split: Split, device: torch.device) -> Batch:
    """Return a batch of some images of a split, with masks as the method draws them.

    Each group of views has one view: the middle of the image, without transforms.

    Raises:
        DamagedData: if all of these images are broken.
    """
    some = sample_of(split, NUM_IMAGES)
    loader = replace(loader, recipe=loader.recipe.of_whole_images())
    (batch,) = loader.seen_batches(some, 0, some.num_samples, device)
    return batch


def _save(rows: Sequence[Tensor], path: Path) -> None:
    """Write rows of images uint8 [N, 3, H, W] as one PNG file, the images of a row side by side."""
    pixels = torch.cat([row.permute(2, 0, 3, 1).flatten(1, 2) for row in rows])  # [R * H, N * W, 3]
    content = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels.numpy())).save(content, "PNG")
    replace_bytes(path, content.getvalue())
