"""What the method sees, as pictures in TensorBoard."""

from dataclasses import dataclass, field
from typing import Annotated

import torch
from torch import Tensor

from raysl import distributed as dist
from raysl.config.ranges import Every, Within
from raysl.config.schema import CallbackConfig
from raysl.methods.method import StepOutput
from raysl.schedule import Duration, Step
from raysl.train.callbacks.callback import Callback, Run
from raysl.train.callbacks.event_file import EventFile

FOLDER = "view_images"


class ViewImages(Callback):
    """Writes the views of some images of the batch at hand, for each group of views a picture, `views/GROUP`.

    Each row of it is an image, each column a view. Of three channels the normalisation is undone; others are shown as
    grey images, each channel a column, from their least value to their greatest. The first step of the run is always
    shown. The events are in the folder `view_images`, which TensorBoard shows as a run beside the numbers.

    Source: add_image of TensorBoard; Detectron2's EventStorage.put_image.
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(CallbackConfig):
        """When, and how many."""

        every: Every = field(default=Duration.parse("1ep"))
        """How often."""
        images: Annotated[int, Within(1, 1000)] = 8
        """Images, the first of the main worker's rows."""

    def on_train_start(self, run: Run) -> None:
        """See `Callback.on_train_start`."""
        self.file: EventFile | None = None
        if dist.is_main():
            with run.writing() as folder:
                self.file = EventFile(folder / FOLDER, run.state.step)

    def on_step_end(self, run: Run, step: Step, out: StepOutput) -> None:
        """See `Callback.on_step_end`."""
        if self.file is None or not (self.config.every.is_due(step) or step.index == 1):
            return
        from tensorboardX.summary import image

        assert run.batch is not None
        data = run.state.config.data
        with run.writing():
            for group, views in run.batch.views.items():
                pixels = picture(views[: self.config.images], data.mean, data.std)
                self.file.add(step.index, image(f"views/{group}", pixels.numpy()))

    def on_train_end(self, run: Run) -> None:
        """See `Callback.on_train_end`."""
        if self.file is not None:
            self.file.close()


def picture(views: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """Views side by side.

    Args:
        views: float [B, V, C, H, W].
        mean, std: of the normalisation of three channels.

    Returns:
        uint8 [3, B * H, V * W], with more columns where C is not 3.
    """
    views = views.detach().float().cpu()
    if views.shape[2] == len(mean):
        pixels = views * torch.tensor(std)[:, None, None] + torch.tensor(mean)[:, None, None]
    else:
        pixels = views.flatten(1, 2)[:, :, None]  # [B, V * C, 1, H, W]
        least, most = pixels.amin(dim=(-2, -1), keepdim=True), pixels.amax(dim=(-2, -1), keepdim=True)
        pixels = ((pixels - least) / (most - least).clamp(min=1e-12)).expand(-1, -1, 3, -1, -1)
    pixels = pixels.nan_to_num().clamp(0, 1).mul(255).round().to(torch.uint8)
    return pixels.permute(2, 0, 3, 1, 4).flatten(3, 4).flatten(1, 2)
