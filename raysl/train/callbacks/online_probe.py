"""A linear classifier that is trained along with a run, without any effect on it."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from typing_extensions import override

from raysl import distributed as dist
from raysl.data.source import Split
from raysl.data.stream.loader import ReadBlocks
from raysl.nn.backbones.backbone import Backbone
from raysl.nn.evaluating import evaluating
from raysl.schedule import Duration, Step
from raysl.train.batches import plain_blocks
from raysl.train.callbacks.callback import Callback, ConfigError, Run, StepOutput
from raysl.train.gradients import AUTOCAST
from raysl.transforms.view_recipe import ViewRecipe

TRAINED = ("probe_loss", "probe_train_top1")
"""What is logged of the training images."""
HELD_OUT = "probe_top1"
"""What is logged of held-out images."""
MOST_TEST = 10_000
"""Held-out images that are measured."""
ROWS = 256
"""Images that the network gets at a time."""
BETAS, EPS = (0.9, 0.999), 1e-8
"""Of Adam."""


class OnlineProbe(Callback):
    """Trains a linear classifier on features of the run's batches, and logs how well it does.

    After each update the exported network sees the first view of each image, in evaluation mode and without gradients;
    that is a forward pass beside those of the method. The classifier begins at zero and takes one step of Adam on the
    mean cross-entropy of the labelled rows of the global batch. It gives nothing back: the network, its running
    statistics and the random numbers are those of a run without it, bit for bit.

    Logs `probe_loss` and `probe_train_top1` (%) of the step's batch, before the classifier's step, where a line is due,
    and `probe_top1` (%) of at most 10,000 held-out images every so often. Rows without a label are left out. Ranks sum
    the gradients of their rows, so the result does not depend on how they share a batch, but for rounding.

    Source: OnlineProbe of stable-pretraining, the online linear evaluation of solo-learn and of SimCLR's code.

    Args:
        every: how often held-out images are measured, rounded to whole epochs.
        test: where the held-out images are, and what reads blocks of them; None measures none.
    """

    def __init__(
        self, num_classes: int, every: Duration, lr: float, test: tuple[Split, ReadBlocks] | None = None
    ) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.every = every
        self.lr = lr
        self.test = test
        self.head: Head | None = None
        self._stored: dict[str, Any] = {}

    @override
    def on_train_start(self, run: Run) -> None:
        self.head = Head.of(run.state.method.export().feature_dim, self.num_classes, run.state.device)
        if self._stored:
            self.head.load(self._stored)

    @override
    @torch.no_grad()
    def on_step_end(self, run: Run, step: Step, out: StepOutput) -> None:
        assert self.head is not None
        assert run.batch is not None
        images = next(iter(run.batch.views.values()))[:, 0]
        h = self._features(run, images)  # [B, D]
        loss, top1 = self.head.learn(h, run.batch.label, self.lr)
        if run.is_log_due(step):
            numbers = torch.stack([loss, top1]).tolist()
            run.log(dict(zip(TRAINED, numbers, strict=True)))

    @override
    def on_epoch_end(self, run: Run, step: Step) -> None:
        epochs = max(1, round(self.every.steps(step.total, step.epoch_len) / step.epoch_len))
        if self.test is not None and (step.epoch % epochs == 0 or step.index == step.total):
            run.log({HELD_OUT: self._measure(run, *self.test)})

    @override
    def state_dict(self) -> dict[str, Any]:
        return {} if self.head is None else self.head.stored()

    @override
    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._stored = state

    @torch.no_grad()
    def _measure(self, run: Run, test: Split, read: ReadBlocks) -> float:
        """Return the accuracy on held-out images, in %; NaN if none of them has a label."""
        assert self.head is not None
        counts = torch.zeros(2, dtype=torch.float64, device=run.state.device)
        for batch in read(plain_blocks(test, MOST_TEST, ROWS, is_held_out=True)):
            h = self._features(run, batch.views["image"][:, 0].to(run.state.device))
            label = batch.label.to(run.state.device)
            is_right = (self.head.scores(h).argmax(dim=1) == label) & (label >= 0)
            counts += torch.stack([is_right.sum(), (label >= 0).sum()])
        right, num = dist.all_sum(counts).tolist()
        return 100 * right / num if num else float("nan")

    def _features(self, run: Run, images: Tensor) -> Tensor:
        """Return features [B, D] of the exported network as benchmarks see it, in float32."""
        network: Backbone = run.state.method.export()
        half = AUTOCAST.get(run.plan.precision)
        with evaluating(network), torch.autocast(images.device.type, half, enabled=half is not None):
            return torch.cat([network(part).float() for part in torch.split(images, ROWS)])


@dataclass
class Head:
    """A linear classifier with Adam's averages; equal on all ranks.

    Args:
        weight: [K, D + 1], whose last column is the bias.
        mean, square: Adam's averages of the gradient and of its square, [K, D + 1].
    """

    weight: Tensor
    mean: Tensor
    square: Tensor
    step: int = 0

    @classmethod
    def of(cls, dim: int, num_classes: int, device: torch.device) -> "Head":
        """Return one of zeros."""
        weight = torch.zeros(num_classes, dim + 1, device=device)
        return cls(weight, torch.zeros_like(weight), torch.zeros_like(weight))

    def scores(self, h: Tensor) -> Tensor:
        """Return scores [B, K] of features [B, D]."""
        return F.linear(h, self.weight[:, :-1], self.weight[:, -1])

    def learn(self, h: Tensor, label: Tensor, lr: float) -> tuple[Tensor, Tensor]:
        """Take a step on this rank's rows of a batch; every rank calls it, and the host does not wait.

        Args:
            h: float32 [B, D].
            label: int64 [B], below 0 where unlabelled.

        Returns:
            Mean loss and accuracy in %, of the labelled rows of all ranks, before the step; 0 where there are none.
        """
        known = (label >= 0).to(h.dtype)
        scores = self.scores(h)
        targets = (label[:, None] == torch.arange(len(self.weight), device=h.device)).to(h.dtype)  # [B, K]
        losses = -(scores.log_softmax(dim=1) * targets).sum(dim=1) * known
        is_right = (scores.argmax(dim=1) == label).to(h.dtype)
        errors = (scores.softmax(dim=1) - targets) * known[:, None]  # of the sum of losses by the scores
        gradient = errors.T @ F.pad(h, (0, 1), value=1.0)  # [K, D + 1]
        totals = torch.stack([losses.sum(), 100 * is_right.sum(), known.sum()])
        # one exchange for all
        gathered = dist.all_sum(torch.cat([gradient.flatten(), totals]))
        gradient, (loss, right, num) = gathered[:-3].view_as(gradient), gathered[-3:].unbind()
        num = num.clamp_min(1)
        self._update(gradient / num, lr)
        return loss / num, right / num

    def _update(self, gradient: Tensor, lr: float) -> None:
        """Take a step of Adam (Kingma and Ba 2015, algorithm 1)."""
        self.step += 1
        self.mean.lerp_(gradient, 1 - BETAS[0])
        self.square.lerp_(gradient.square(), 1 - BETAS[1])
        rate = lr / (1 - BETAS[0] ** self.step)
        scale = (self.square / (1 - BETAS[1] ** self.step)).sqrt_().add_(EPS)
        self.weight.addcdiv_(self.mean, scale, value=-rate)

    def stored(self) -> dict[str, Any]:
        """Return copies of all of it, on the CPU."""
        tensors = {"weight": self.weight, "mean": self.mean, "square": self.square}
        return {**{name: value.cpu().clone() for name, value in tensors.items()}, "step": self.step}

    def load(self, stored: dict[str, Any]) -> None:
        """Take over what `stored` has returned."""
        if stored["weight"].shape != self.weight.shape:
            raise ConfigError(
                f"the checkpoint's online probe is {list(stored['weight'].shape)}, and here it is "
                f"{list(self.weight.shape)}; set train.online_probe=null"
            )
        for name in ("weight", "mean", "square"):
            getattr(self, name).copy_(stored[name])
        self.step = stored["step"]


def check_probe(train: Split, recipe: ViewRecipe) -> None:
    """Refuse images without exactly one label each, and views that are tiles of an image."""
    why = None
    if not train.classes:
        why = "trains a classifier, and the training images have no labels"
    elif train.is_multilabel:
        why = "trains a classifier of one label of each image, and these have several"
    elif next(iter(recipe.groups.values()))[0].tiles is not None:
        why = "trains on whole views, and this method cuts images into tiles"
    if why is not None:
        raise ConfigError(f"train.online_probe {why}; set train.online_probe=null")
