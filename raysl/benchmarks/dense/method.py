"""Methods that learn targets (boxes, masks), and the callback that measures them on held-out images."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from raysl import distributed as dist
from raysl.benchmarks.training_runs.held_out_scores import HeldOut
from raysl.config.schema import CallbackConfig, DataConfig
from raysl.data.order import rank_share
from raysl.data.stream.targets import TargetRecipe
from raysl.methods.method import Method, Setup, Step, StepOutput
from raysl.train.callbacks.callback import Run
from raysl.transforms.view_recipe import ViewRecipe, evaluation_recipe


class TargetMethod(Method):
    """A method that is trained on the targets of images and measured on those of other images."""

    @classmethod
    @override
    def views(cls, setup: Setup) -> ViewRecipe:
        data = setup.config.data
        return evaluation_recipe(data.image_size, data.eval_resize, data.eval_interpolation)

    @classmethod
    @abstractmethod
    @override
    def targets(cls, setup: Setup) -> TargetRecipe:
        """Return how images with their targets become training batches."""

    @abstractmethod
    def measure(self, split: Any, number: int) -> dict[str, Tensor]:
        """Compare an image of a split with its target, in evaluation mode.

        Returns:
            Tensors [n, ...] on the CPU, which those of other images are appended to.
        """


class HeldOutTargets(HeldOut):
    """Measures a `TargetMethod` on the test images after the last step, and stores the result with the checkpoint.

    Ranks share the images. `held_out.safetensors` has what `TargetMethod.measure` returns, in the order of the images.
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(CallbackConfig):
        """The test images."""

        name: str = "raysl.benchmarks.dense.method:HeldOutTargets"
        data: DataConfig
        """Settings of the dataset."""

    @override
    def on_step_end(self, run: Run, step: Step, out: StepOutput) -> None:
        if step.index != step.total:
            return
        method = run.state.method
        assert isinstance(method, TargetMethod)
        was_training = method.training
        method.eval()
        share = rank_share(self.test.num_samples, dist.rank(), dist.world())
        with torch.no_grad():
            local = [method.measure(self.test, number) for number in share]
        method.train(was_training)
        # ranks measure consecutive images, so their lists in rank order have the order of the split
        images = [image for part in dist.gather_objects(local) for image in part]
        self.results = {name: torch.cat([image[name] for image in images]) for name in images[0]}
