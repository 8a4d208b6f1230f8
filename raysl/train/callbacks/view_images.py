"""The views that the method trains on, as pictures in TensorBoard."""

from dataclasses import dataclass, field
from typing import Annotated

import torch
from torch import Tensor
from typing_extensions import override

from raysl.config.ranges import Every, Within
from raysl.schedule import Duration, Step
from raysl.train.callbacks.callback import CallbackConfig, Run, StepOutput
from raysl.train.callbacks.tensorboard import EventCallback
from raysl.transforms.channels import to_shown


class ViewImages(EventCallback):
    """Writes the views of the first images of a batch, one picture `views/GROUP` for each group of views.

    Each row is an image, each column a view. Views of three channels are shown without their normalisation; other views
    as grey images, a column for each channel, scaled from the smallest to the largest value. The first step of the run
    is always included. The events go to the folder `view_images`, which TensorBoard shows as a run of its own.

    Source: add_image of TensorBoard; Detectron2's EventStorage.put_image.
    """

    folder = "view_images"

    @dataclass(frozen=True, kw_only=True)
    class Config(CallbackConfig):
        """Settings of the pictures."""

        every: Every = field(default=Duration.parse("1ep"))
        """How often."""
        images: Annotated[int, Within(1, 1000)] = 8
        """Number of images, the first of the main worker's rows."""

    @override
    def on_step_end(self, run: Run, step: Step, out: StepOutput) -> None:
        if self.file is None or not (self.config.every.is_due(step) or step.index == 1):
            return
        from tensorboardX.summary import image

        assert run.batch is not None
        data = run.state.config.data
        with run.writing():
            for group, views in run.batch.views.items():
                pixels = picture(views[: self.config.images], data.mean, data.std)
                self.file.add(step.index, image(f"views/{group}", pixels.numpy()))


def picture(views: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """Put views side by side: a row for each image, a column for each view, and for each channel of other views.

    Views with the channels of the images are shown by `to_shown`.

    Args:
        views: float [B, V, C, H, W].
        mean, std: normalisation of the images, which is undone.

    Returns:
        uint8 [3, B * H, V * W], or [3, B * H, V * C * W] where C is not that of the images.
    """
    views = views.detach().float().cpu()
    if views.shape[2] == len(mean):
        pixels = to_shown(views * torch.tensor(std)[:, None, None] + torch.tensor(mean)[:, None, None])
    else:
        pixels = views.flatten(1, 2)[:, :, None]  # [B, V * C, 1, H, W]
        least, most = pixels.amin(dim=(-2, -1), keepdim=True), pixels.amax(dim=(-2, -1), keepdim=True)
        pixels = ((pixels - least) / (most - least).clamp(min=1e-12)).expand(-1, -1, 3, -1, -1)
    pixels = pixels.nan_to_num().clamp(0, 1).mul(255).round().to(torch.uint8)
    return pixels.permute(2, 0, 3, 1, 4).flatten(3, 4).flatten(1, 2)
