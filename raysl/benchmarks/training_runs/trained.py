"""Results of the runs of benchmarks that train: predictions for held-out images, and the metrics of classifiers.

That is kept in the folder of the run when it is done, and its checkpoints go.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, load_file, save
from torch import Tensor

from raysl.benchmarks.classifiers.classification import CLASS_MEANS, class_means
from raysl.benchmarks.metric import Findings, Metric, mean_of
from raysl.benchmarks.training_runs.held_out_scores import FILE, Probe, logged_names
from raysl.checkpoint.checkpoint_folder import checkpoint_names, local_copy, remove
from raysl.config.schema import RunConfig
from raysl.errors import ConfigError, RunInUse, StorageError, log
from raysl.methods.supervised import Supervised
from raysl.nn.classifiers import StageHead
from raysl.process.screen import counted
from raysl.runs.folder import RunFolder
from raysl.storage.folder import outlast

if TYPE_CHECKING:
    from raysl.runs.run import TrainedRun


@dataclass(frozen=True)
class Trained:
    """Predictions of trained classifiers for the held-out images.

    Args:
        labels: int64 [N].
        scores: float32 [N, K], of the classifier on the features.
        top1, top5: whether each of H classifiers has the class of an image first, or among its first five, bool [H, N].
        history: epochs, and the accuracies of the H classifiers in percent then, float64 [measurements, 1 + H].
    """

    labels: Tensor
    scores: Tensor
    top1: Tensor
    top5: Tensor
    history: Tensor

    def as_findings(self, metrics: Sequence[Metric], figures: Mapping[str, Any] | None = None) -> Findings:
        """Return metrics with the predictions of the classifier on the features, for the page."""
        scores = self.scores.softmax(dim=1)
        return Findings(metrics, scores, are_probabilities=True, labels=self.labels, figures=figures or {})


def trained(run: RunConfig, keep_checkpoints: bool = False) -> Trained:
    """Train classifiers, resume their training, or read the results of an earlier start.

    Args:
        run: result of `training_run`.
        keep_checkpoints: else they are deleted when all that is asked of them is known.

    Raises:
        ConfigError: if the run cannot work.
        RunFailed: if it fails; see `raysl.pretrain`.
        Stopped: if the process was asked to end; the next start goes on.
    """
    return Trained(**held_out_results(run, keep_checkpoints, lambda result: {"history": _history(result, run)}))


def held_out_results(
    run: RunConfig,
    keep_checkpoints: bool = False,
    more: Callable[["TrainedRun"], dict[str, Tensor]] = lambda _: {},
) -> dict[str, Tensor]:
    """Train, resume, or read the results of an earlier start: what a callback of the run stored in
    `held_out.safetensors` of the last checkpoint.

    Args:
        run: result of `named_run`.
        keep_checkpoints: else they are deleted when the results are stored in the folder of the run.
        more: makes further tensors of the result of the run, to be stored with those.
    """
    folder = RunFolder.of(run)
    stored = outlast(partial(folder.read_if_there, FILE))
    try:
        results = load(stored) if stored else {}
    except SafetensorError:
        log.warning("the stored results of a training are damaged: it is trained again")
        results = {}
    if not results:
        length = run.train.end or counted(run.train.epochs, "epoch")
        log.info("%s trains for %s in %s", run.name, length, folder.uri)
        result = _pretrained(run)
        with local_copy(result.checkpoint, [FILE]) as copy:
            results = load_file(copy / FILE)
        results |= more(result)
        outlast(partial(folder.write, FILE, save(results)))
    # only when the results are stored: a start that is cut off before that still finds the checkpoints
    if not keep_checkpoints:
        for name in outlast(partial(checkpoint_names, folder)):
            outlast(partial(remove, folder, name))
    return results


def _pretrained(run: RunConfig) -> "TrainedRun":
    """Run the training; errors in its settings, which the user did not write, name the run."""
    # Imported here, so that settings can be read without Ray.
    from raysl.benchmarks.suite.fitting import check_benchmarks
    from raysl.runs.run import train

    try:
        return train(run, check_benchmarks)
    except (RunInUse, StorageError):
        raise
    except ConfigError as error:
        has_settings = isinstance(run.method, Probe.Config)
        way = " (settings=[key=value] of the benchmark reaches all of its own)" if has_settings else ""
        raise ConfigError(f"the training run of {run.name}: {error}{way}") from error


def _history(result: "TrainedRun", run: RunConfig) -> Tensor:
    assert isinstance(run.method, Supervised.Config)
    names = logged_names(1 + len(run.method.heads))
    lines = result.history.dropna(subset=names)
    epochs = lines["step"].to_numpy() * run.train.epochs / result.history["step"].max()
    columns = [epochs, *(lines[name].to_numpy() for name in names)]
    return torch.stack([torch.tensor(column, dtype=torch.float64) for column in columns], dim=1)


def suffixes(stages: Sequence[StageHead]) -> list[str]:
    """Return the suffix of each classifier's metrics: none for the one on the features, then the stages, numbered from
    the second classifier on a stage: `_res4`, `_res4_2`."""
    endings = [""]
    for number, head in enumerate(stages):
        again = sum(other.stage == head.stage for other in stages[:number])
        endings.append(f"_{head.stage}" + (f"_{again + 1}" if again else ""))
    return endings


def metric_names(num_classes: int, endings: Sequence[str]) -> list[str]:
    """Return the names of the metrics that `findings` computes."""
    tops = ["top1", *(["top5"] if num_classes > 5 else []), "top1_best"]
    return [*(f"{top}{ending}" for ending in endings for top in tops), *CLASS_MEANS]


def findings(results: Trained, title: str, endings: Sequence[str], seed: int) -> Findings:
    """Compute accuracies of the last epoch with their intervals, of the best epoch, and the curve over training.

    The best epoch is chosen by the images that it is measured on, and so is a little too good.

    Args:
        endings: suffixes of the names, see `suffixes`; one for each classifier.
    """
    metrics = []
    for number, ending in enumerate(endings):
        where = f", {ending[1:]}" if ending else ""
        first = f"{title}, top-1{where}"
        metrics.append(mean_of(f"top1{ending}", results.top1[number], title=first, is_headline=not ending, seed=seed))
        if results.scores.shape[1] > 5:
            five = f"{title}, top-5{where}"
            metrics.append(mean_of(f"top5{ending}", results.top5[number], title=five, is_headline=False, seed=seed))
        best = results.history[:, 1 + number].max().item()
        metrics.append(Metric(f"top1_best{ending}", best, title=f"{first}, best epoch", is_headline=False))
    metrics += class_means(results.labels, results.scores.argmax(dim=1), title, seed=seed)
    lines = {
        ending[1:] or "features": results.history[:, [0, 1 + number]].tolist() for number, ending in enumerate(endings)
    }
    curve = {"x": "epoch", "y": "top-1 accuracy, %", "lines": lines}
    figures = {"curves": {f"{title}: accuracy during training": curve}}
    return results.as_findings(metrics, figures)
