"""The kNN accuracy on held-out images, measured during training."""

from dataclasses import replace

import torch
from typing_extensions import override

from raysl import distributed as dist
from raysl.benchmarks.benchmark import FeatureSet, by_name
from raysl.benchmarks.knn import KNN
from raysl.data.source import Split
from raysl.data.stream.loader import Loader, LocalBatches, ReadBlocks
from raysl.nn.backbones.backbone import Backbone
from raysl.schedule import Duration, Step
from raysl.train.batches import plain_blocks
from raysl.train.callbacks.callback import Callback, Run

MOST_TRAIN, MOST_TEST = 5000, 1000
ROWS = 256
"""Images that the network gets at a time."""


class OnlineKNN(Callback):
    """Logs `knn_top1`, the accuracy of the `knn` benchmark with its default settings, every so often.

    At most 5,000 training and 1,000 held-out images are used: at even distances in dataset order, or those of a few
    whole units of a dataset that is read in units. Ranks share the work. The first number, at step 0, is that of the
    network before training.

    Args:
        loader: of the run's training images.
        test: held-out images.
        num_classes: classes of the labels.
        every: how often, rounded to whole epochs.
        read: makes a batch of each block of images. Default: this process does.
    """

    def __init__(
        self, loader: Loader, test: Split, num_classes: int, every: Duration, read: ReadBlocks | None = None
    ) -> None:
        self.loader = replace(loader, held_out=test)
        self.test = test
        self.num_classes = num_classes
        self.every = every
        self.read = read or LocalBatches(self.loader).chosen

    @override
    def on_train_start(self, run: Run) -> None:
        if run.state.step == 0:
            self._measure(run)

    @override
    def on_epoch_end(self, run: Run, step: Step) -> None:
        epochs = max(1, round(self.every.steps(step.total, step.epoch_len) / step.epoch_len))
        if step.epoch % epochs == 0 or step.index == step.total:
            self._measure(run)

    def _measure(self, run: Run) -> None:
        backbone = run.state.exported()
        was_training = backbone.training
        backbone.eval()
        train = self._features(backbone, MOST_TRAIN, run.state.device, is_held_out=False)
        test = self._features(backbone, MOST_TEST, run.state.device, is_held_out=True)
        backbone.train(was_training)
        metrics = by_name(KNN(KNN.Config(backend="torch")).run(train, test, self.num_classes, seed=0).metrics)
        run.log({"knn_top1": metrics["top1"].value})

    @torch.no_grad()
    def _features(self, backbone: Backbone, most: int, device: torch.device, is_held_out: bool) -> FeatureSet:
        features = [torch.empty(0, backbone.feature_dim, device=device)]  # a rank may be left without images
        split = self.test if is_held_out else self.loader.split
        labels = [torch.empty(0, dtype=torch.int64, device=device)]
        for batch in self.read(plain_blocks(split, most, ROWS, is_held_out)):
            images = torch.split(batch.views["image"][:, 0], ROWS)
            features += [backbone(part.to(device)).float() for part in images]
            labels.append(batch.label.to(device))
        return FeatureSet(dist.all_gather(torch.cat(features)), dist.all_gather(torch.cat(labels)))
