"""The method that trains a classifier, and its predictions for held-out images from one centre crop each."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from typing_extensions import override

from raysl import distributed as dist
from raysl.benchmarks.features.embedding import embed
from raysl.components import resolve
from raysl.config.ranges import Every
from raysl.config.schema import CallbackConfig, DataConfig
from raysl.data.order import rank_share
from raysl.hashing import Int64s
from raysl.methods.supervised import Supervised
from raysl.schedule import Duration, Step
from raysl.train.callbacks.callback import Callback, Run, StepOutput
from raysl.train.file_names import count_broken


class Probe(Supervised):
    """`supervised` that takes over the backbone alone of a checkpoint of any method.

    The classifier of a `supervised` run is not taken over: every probe starts with a new one.
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(Supervised.Config):
        """Those of `supervised`."""

        name: str = "raysl.benchmarks.training_runs.held_out_scores:Probe"

    def head_scores(self, images: Tensor) -> Tensor:
        """Return scores of normalised images [B, 3, H, W] by the classifier on the features and by each of `heads`,
        float [B, 1 + heads, K]."""
        _, scores = self._score(images[:, None])
        return torch.cat(scores, dim=1)


FILE = "held_out.safetensors"
CHUNK_ROWS = 256
PREFIX = "test_"


def logged_names(num_heads: int) -> list[str]:
    """Return the names under which the accuracies of the classifier on the features, and of further heads, are
    logged."""
    return [f"{PREFIX}top1", *(f"{PREFIX}head{number}_top1" for number in range(1, num_heads))]


class HeldOut(Callback):
    """Base of callbacks that measure held-out images and store the results with the last checkpoint.

    Args:
        config: settings with `data`, the dataset whose test images they are.
    """

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.test = resolve("source", config.data.name)(config.data).required("test")  # here: on the driver
        self.results: dict[str, Tensor] | None = None

    @override
    def on_checkpoint(self, run: Run, folder: Path) -> None:
        if self.results is not None:
            folder.mkdir(parents=True, exist_ok=True)
            save_file(self.results, folder / FILE)


class HeldOutScores(HeldOut):
    """Logs the accuracy of a `Probe` on held-out images in percent, and stores its predictions with the last
    checkpoint.

    Ranks share the images, and every image counts once. `held_out.safetensors` of the last checkpoint has, in the order
    of the split, `labels` int64 [N], `scores` float32 [N, K] of the classifier on the features, and `top1` and `top5`
    bool [H, N], whether each of the H classifiers has the class of an image first, or among its first five.
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(CallbackConfig):
        """Which images, and when."""

        name: str = "raysl.benchmarks.training_runs.held_out_scores:HeldOutScores"
        data: DataConfig
        """Settings of the dataset whose test images they are."""
        every: Every = field(default=Duration.parse("100%"))
        """How often they are looked at; the last step always does."""

    @override
    def on_step_end(self, run: Run, step: Step, out: StepOutput) -> None:
        is_last = step.index == step.total
        if not (self.config.every.is_due(step) or is_last):
            return
        method = run.state.method
        assert isinstance(method, Probe)
        was_training = method.training
        labels, scores, hits, broken = self._own(method.eval(), run.state.device)
        method.train(was_training)
        hits = _of_all_ranks(hits, run.state.device)
        accuracies = (100 * hits[:, 0].double().sum(dim=0) / len(hits)).tolist()
        run.log(dict(zip(logged_names(len(accuracies)), accuracies, strict=True)))
        if is_last:
            labels, scores = (_of_all_ranks(rows, run.state.device) for rows in (labels, scores))
            top1, top5 = (hits[:, column].bool().T.contiguous() for column in (0, 1))
            if broken := [name for names in dist.gather_objects(broken) for name in names]:
                run.note(f"{count_broken(len(broken), 'test image')}, neighbours were measured: {broken[0]} ...")
            self.results = {"labels": labels, "scores": scores, "top1": top1, "top5": top5}

    def _own(self, method: Probe, device: torch.device) -> tuple[Tensor, Tensor, Tensor, list[str]]:
        """Predict this rank's images: labels int64 [B], scores [B, K] and hits uint8 [B, 2, H] on the CPU, and the
        names of broken images."""
        scorer, data = {"": _Scorer(method)}, self.config.data
        shape = (1 + len(method.config.heads), method.setup.data.num_classes)
        labels, scores = [torch.empty(0, dtype=torch.int64)], [torch.empty(0, shape[1])]
        hits = [torch.empty(0, 2, shape[0], dtype=torch.uint8)]
        broken: list[str] = []
        for index in _chunks(self.test.num_samples):
            seen = embed(scorer, self.test, index, data, device)
            of_heads = seen.features[""].view(-1, *shape)  # [B, H, K]
            labels.append(torch.from_numpy(seen.labels))
            scores.append(of_heads[:, 0].clone())  # a view would keep those of all heads
            hits.append(_hits(of_heads, labels[-1]).byte())
            broken += seen.corrupt
        return torch.cat(labels), torch.cat(scores), torch.cat(hits), broken


def _of_all_ranks(rows: Tensor, device: torch.device) -> Tensor:
    """Concatenate rows of all ranks, on the CPU."""
    return dist.all_gather_ragged(rows.to(device)).cpu()


def _hits(scores: Tensor, labels: Tensor) -> Tensor:
    """Return whether the class of an image is first, and among the first five, in scores [B, H, K]; bool [B, 2, H]."""
    ranked = scores.topk(min(5, scores.shape[-1]), dim=-1).indices == labels[:, None, None]
    return torch.stack([ranked[..., 0], ranked.any(dim=-1)], dim=1)


def _chunks(num_samples: int) -> Iterator[Int64s]:
    """Yield this rank's images in parts, as many on every rank, which exchange shares of weights in each."""
    share = rank_share(num_samples, dist.rank(), dist.world())
    num_chunks = -(-num_samples // (CHUNK_ROWS * dist.world()))
    parts = np.array_split(np.arange(share.start, share.stop), num_chunks)
    yield from (part for part in parts if len(part))


class _Scorer(nn.Module):
    """The scores of all heads side by side, [B, H * K]."""

    def __init__(self, method: Probe) -> None:
        super().__init__()
        self.method = method

    def forward(self, images: Tensor) -> Tensor:
        return self.method.head_scores(images).flatten(1)
