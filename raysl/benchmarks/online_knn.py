"""The kNN accuracy on held-out images, measured during training."""

from collections.abc import Iterable
from dataclasses import replace

import torch
from typing_extensions import override

from raysl import distributed as dist
from raysl.benchmarks.benchmark import FeatureSet, Labelled, by_name
from raysl.benchmarks.knn import KNN
from raysl.benchmarks.spectrum import Lidar, Spectrum, effective_rank
from raysl.config.schema import BenchmarkConfig, RunConfig
from raysl.data.source import Split
from raysl.data.sources.sample import sample_rows, unit_share
from raysl.data.sources.subset import Subset
from raysl.data.stream.loader import Loader, LocalBatches, ReadBlocks
from raysl.nn.backbones.backbone import Backbone
from raysl.report.contents import online_knn
from raysl.schedule import Duration, Step
from raysl.train.batches import plain_blocks
from raysl.train.callbacks.callback import Callback, Run

MOST_TRAIN, MOST_TEST, MOST_VIEWED = 5000, 1000, 1000
ROWS = 256
"""Images that the network gets at a time."""


def online_vote(config: RunConfig, images: Labelled) -> KNN.Config:
    """Return the vote of the online kNN: that of the run's `knn` benchmark on its own images, or the default one.

    Raises:
        ConfigError: if every k is more than the training images that vote.
    """
    voters = replace(images, num_train=min(images.num_train, MOST_TRAIN))
    vote, _ = KNN.fit_to(replace(own_vote(config.benchmarks.values()), labels=()), voters)
    return vote


def own_vote(benchmarks: Iterable[BenchmarkConfig]) -> KNN.Config:
    """Return the settings of a run's `knn` benchmark on its own images, or the default ones."""
    return next((one for one in benchmarks if isinstance(one, KNN.Config) and one.data is None), KNN.Config())


class OnlineKNN(Callback):
    """Logs `knn_k20_top1`, the accuracy of the `knn` benchmark for k = 20, and so on for every k, every so often.

    The vote is that of the run's own `knn` benchmark: its k, temperature, similarity, weights and interpolation, or the
    defaults where it has none. At most 5,000 training and 1,000 held-out images are used: at even distances in dataset
    order, or those of a few whole units of a dataset that is read in units. Ranks share the work. The first number, at
    step 0, is that of the network before training.

    On request logs two numbers that need no labels: `rankme`, the RankMe of the training images' features (Garrido et
    al. 2023, arXiv 2210.02885), and `lidar`, the LiDAR of the first group of the method's views of at most 1,000
    training images (Thilak et al. 2023, arXiv 2312.04000), if there are two views or more and they are no tiles. Both
    count directions that features use: RankMe is at most their width, LiDAR that or the number of images less one.

    Args:
        every: how often, rounded to whole epochs.
        read: makes a batch of each block of images. Default: this process does.
        has_ranks: whether RankMe and LiDAR are logged too.
        vote: settings of the vote, see `online_vote`.
    """

    def __init__(
        self,
        loader: Loader,
        test: Split,
        num_classes: int,
        every: Duration,
        read: ReadBlocks | None = None,
        has_ranks: bool = False,
        vote: KNN.Config | None = None,
    ) -> None:
        self.loader = replace(loader, held_out=test)
        self.test = test
        self.num_classes = num_classes
        self.every = every
        self.has_ranks = has_ranks
        # each rank searches on its own device, which faiss would not
        self.vote = replace(vote or KNN.Config(), backend="torch", labels=())
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
        ranks = self._ranks(backbone, train, run.state.device) if self.has_ranks else {}
        backbone.train(was_training)
        metrics = by_name(KNN(self.vote).run(train, test, self.num_classes, seed=0).metrics)
        run.log({online_knn(k): metrics[f"k{k}/top1"].value for k in self.vote.k} | ranks)

    @torch.no_grad()
    def _ranks(self, backbone: Backbone, train: FeatureSet, device: torch.device) -> dict[str, float]:
        ranks = {"rankme": effective_rank(Spectrum([train.features]).singular_values())}
        views = next(iter(self.loader.recipe.groups.values()))
        if sum(view.num_images for view in views) < 2 or any(view.tiles is not None for view in views):
            return ranks
        images = Subset(self.loader.split, sample_rows(self.loader.split, MOST_VIEWED))
        share = unit_share(images, dist.rank(), dist.world())
        features = []
        for batch in self.loader.seen_batches(images, share.start, share.stop, device):
            seen = next(iter(batch.views.values()))  # [B, V, C, H, W]
            parts = torch.split(seen.flatten(0, 1), ROWS)
            features.append(torch.cat([backbone(part).float() for part in parts]).view(*seen.shape[:2], -1))
        num_views = sum(view.num_images for view in views)
        empty = torch.empty(0, num_views, backbone.feature_dim, device=device)  # a rank may be left without images
        lidar = Lidar(backbone.feature_dim)
        lidar.add(dist.all_gather(torch.cat([empty, *features])))
        return ranks | {"lidar": lidar.rank()}

    @torch.no_grad()
    def _features(self, backbone: Backbone, most: int, device: torch.device, is_held_out: bool) -> FeatureSet:
        features = [torch.empty(0, backbone.feature_dim, device=device)]  # a rank may be left without images
        split = self.test if is_held_out else self.loader.split
        labels = [torch.empty(0, dtype=torch.int64, device=device)]
        for batch in self.read(plain_blocks(split, most, ROWS, is_held_out, self.vote.interpolation)):
            images = torch.split(batch.views["image"][:, 0], ROWS)
            features += [backbone(part.to(device)).float() for part in images]
            labels.append(batch.label.to(device))
        return FeatureSet(dist.all_gather(torch.cat(features)), dist.all_gather(torch.cat(labels)))
