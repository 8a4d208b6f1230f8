"""The kNN accuracy on held-out images, measured during training."""

import torch
from typing_extensions import override

from raysl import distributed as dist
from raysl.benchmarks.benchmark import FeatureSet, by_name
from raysl.benchmarks.knn import KNN
from raysl.data.source import Split
from raysl.data.sources.sample import unit_share
from raysl.data.sources.subset import sample_of
from raysl.data.stream.loader import Loader
from raysl.nn.backbones.backbone import Backbone
from raysl.schedule import Duration, Step
from raysl.train.callbacks.callback import Callback, Run

MOST_TRAIN, MOST_TEST = 5000, 1000


class OnlineKNN(Callback):
    """Logs `knn_top1`, the accuracy of the `knn` benchmark with its default settings, every so often.

    At most 5,000 training and 1,000 held-out images are used: at even distances in dataset order, or those of a few
    whole units of a dataset that is read in units. Ranks share the work.

    Args:
        loader: of the run's training images.
        test: held-out images.
        num_classes: classes of the labels.
        every: how often, rounded to whole epochs.
    """

    def __init__(self, loader: Loader, test: Split, num_classes: int, every: Duration) -> None:
        self.loader = loader
        self.test = test
        self.num_classes = num_classes
        self.every = every

    @override
    def on_epoch_end(self, run: Run, step: Step) -> None:
        epochs = max(1, round(self.every.steps(step.total, step.epoch_len) / step.epoch_len))
        if step.epoch % epochs and step.index != step.total:
            return
        backbone = run.state.exported()
        was_training = backbone.training
        backbone.eval()
        train = self._features(backbone, self.loader.split, MOST_TRAIN, run.state.device)
        test = self._features(backbone, self.test, MOST_TEST, run.state.device)
        backbone.train(was_training)
        metrics = by_name(KNN(KNN.Config(backend="torch")).run(train, test, self.num_classes, seed=0).metrics)
        run.log({"knn_top1": metrics["top1"].value})

    @torch.no_grad()
    def _features(self, backbone: Backbone, split: Split, most: int, device: torch.device) -> FeatureSet:
        images = sample_of(split, most)
        share = unit_share(images, dist.rank(), dist.world())
        features = [torch.empty(0, backbone.feature_dim, device=device)]  # a rank may be left without images
        labels = [torch.empty(0, dtype=torch.int64, device=device)]
        for batch in self.loader.plain_batches(images, share.start, share.stop, device):
            features.append(backbone(batch.views["image"][:, 0]).float())
            labels.append(batch.label)
        return FeatureSet(dist.all_gather(torch.cat(features)), dist.all_gather(torch.cat(labels)))
