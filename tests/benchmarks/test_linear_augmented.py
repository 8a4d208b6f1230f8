"""The augmented linear probe: SGD on a frozen network, as written out here, begun from a fresh classifier."""

import math
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from raysl.benchmarks.benchmark import Context, Findings, Labelled, Side
from raysl.benchmarks.features.embedding import embed
from raysl.benchmarks.linear_augmented import LinearAugmented
from raysl.benchmarks.suite.settings import load_benchmarks
from raysl.benchmarks.training_runs.held_out_scores import FILE
from raysl.benchmarks.training_runs.run import ProbeViews, training_run
from raysl.checkpoint.checkpoint_folder import checkpoint_names
from raysl.config.build import from_dict
from raysl.config.dump import to_dict
from raysl.config.load import load_config
from raysl.config.schema import RunConfig
from raysl.errors import ConfigError, Stopped
from raysl.nn.classifiers import StageHead
from raysl.nn.pooling import Pool
from raysl.schedule import Duration
from raysl.train.prepare import prepare
from raysl.train.state import TrainState
from tests.benchmarks.trainings import DIGITS, NUM, checkpoint, context_of, shades, train_here
from tests.train.problem import StopAt

WHOLE = ProbeViews(min_scale=1.0, flip=0.0)
STEM = StageHead(stage="stem", lr_scale=3.0)
RES2 = StageHead(stage="res2", pool=Pool(kind="max", size=2))


def config_of(**fields: Any) -> LinearAugmented.Config:
    """A training of 8 updates, each on all images as they are."""
    given: dict[str, Any] = {"epochs": 8, "batch_size": NUM, "lr": 2.0, "views": WHOLE}
    return LinearAugmented.Config(**(given | fields))


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The steps that trainings began at, which run in this process."""
    steps: list[int] = []
    monkeypatch.setattr("raysl.runs.run.train", train_here(steps))
    return steps


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> str:
    return checkpoint(tmp_path_factory.mktemp("digits"), *DIGITS)


def measured(context: Context, **fields: Any) -> tuple[dict[str, float], Findings]:
    found = LinearAugmented(config_of(**fields)).measure(context)
    return {metric.name: metric.value for metric in found.metrics}, found


def seen(network: nn.Module, context: Context, split: str) -> tuple[Tensor, Tensor]:
    """What a network makes of the images of a split, and their labels."""
    rows = np.arange(context.images[split].num_samples)
    found = embed({"": network}, context.images[split], rows, context.data, torch.device("cpu"))
    return found.features[""].clone(), torch.from_numpy(found.labels)


class At(nn.Module):
    """The vectors of a stage."""

    def __init__(self, backbone: Any, head: StageHead) -> None:
        super().__init__()
        self.backbone, self.head = backbone, head

    def forward(self, images: Tensor) -> Tensor:
        """[B, D]."""
        return self.head.pool(self.backbone.stages(images, [self.head.stage])[self.head.stage])


def slow_probe(layer: nn.Module, h: Tensor, labels: Tensor, lr: float, epochs: int) -> None:
    """Full-batch SGD with Nesterov's momentum of 0.9 along half a cosine, by its formulas."""
    velocity = [torch.zeros_like(weight) for weight in layer.parameters()]
    for step in range(epochs):
        rate = lr * len(h) / 256 * (1 + math.cos(math.pi * step / epochs)) / 2
        grads = torch.autograd.grad(F.cross_entropy(layer(h), labels), list(layer.parameters()))
        with torch.no_grad():
            for weight, grad, last in zip(layer.parameters(), grads, velocity, strict=True):
                last.mul_(0.9).add_(grad)
                weight -= rate * (grad + 0.9 * last)


@pytest.mark.thorough
@pytest.mark.parametrize("side", ["trained", "untrained"])
def test_it_is_sgd_on_the_frozen_network_and_test_images_are_seen_whole(
    digits: str, tmp_path: Path, started: list[int], side: Side
) -> None:
    context, heads = context_of(digits, tmp_path, side), (STEM, RES2)
    values, found = measured(context, stages=heads)
    run = training_run(context, config_of(stages=heads), freeze=True, classifier="linear", heads=heads)
    method: Any = TrainState.create(prepare(run).setup).method
    backbone: Any = context.network
    parts = [(backbone, method.classifier, 2.0, "")]
    for head, layer, ending in zip(heads, method.heads.classifiers, ("_stem", "_res2"), strict=True):
        parts.append((At(backbone, head), layer, 2.0 * head.lr_scale, ending))
    for network, layer, lr, ending in parts:
        slow_probe(layer, *seen(network, context, "train"), lr, 8)
        h, labels = seen(network, context, "test")
        scores = layer(h).detach()
        if not ending:
            torch.testing.assert_close(found.scores, scores.softmax(dim=1), rtol=1e-3, atol=1e-4)
        places = scores.argsort(dim=1, descending=True) == labels[:, None]
        assert values[f"top1{ending}"] == pytest.approx(100 * places[:, 0].double().mean().item(), abs=1e-6)
        assert values[f"top5{ending}"] == pytest.approx(100 * places[:, :5].any(dim=1).double().mean().item(), abs=1e-6)
    assert started == [0]


@pytest.mark.thorough
def test_the_names_are_those_that_were_told_and_the_best_epoch_is_told_beside_the_last(
    digits: str, tmp_path: Path, started: list[int]
) -> None:
    values, found = measured(context_of(digits, tmp_path), stages=(STEM, STEM), eval_every=Duration.parse("3ep"))
    assert list(values) == LinearAugmented.metrics(config_of(stages=(STEM, STEM)), 10)
    assert list(values)[:4] == ["top1", "top5", "top1_best", "top1_stem"]
    assert LinearAugmented.metrics(config_of(stages=(STEM, STEM)), 4)[2:] == [
        "top1_stem", "top1_best_stem", "top1_stem_2", "top1_best_stem_2", "mean_per_class", "macro_f1",
    ]  # fmt: skip
    assert found.are_probabilities
    assert found.labels is not None
    assert len(found.labels) == NUM
    ((title, drawn),) = found.figures["curves"].items()
    assert title == "Linear probe, augmented: accuracy during training"
    line = drawn["lines"]["features"]
    assert [epoch for epoch, _ in line] == [3, 6, 8]
    assert values["top1_best"] == max(value for _, value in line)
    assert values["top1"] == line[-1][1]
    assert [metric.name for metric in found.metrics if metric.is_headline] == ["top1"]
    low, high = found.metrics[0].interval or (math.nan, math.nan)
    assert low < values["top1"] < high


@pytest.mark.thorough
def test_a_second_measurement_trains_nothing_and_checkpoints_go_unless_they_are_to_stay(
    digits: str, tmp_path: Path, started: list[int]
) -> None:
    context = context_of(digits, tmp_path)
    first, found = measured(context, epochs=2, keep_checkpoints=True)
    (name,) = context.folder.names()
    assert checkpoint_names(context.folder.child(name))
    again, same = measured(context, epochs=2)
    assert (again, started) == (first, [0])
    assert torch.equal(found.scores, same.scores)
    assert checkpoint_names(context.folder.child(name)) == []
    assert {"run.yaml", "metrics.jsonl"} <= set(context.folder.child(name).names())


@pytest.mark.thorough
def test_what_was_kept_and_is_damaged_is_trained_again(digits: str, tmp_path: Path, started: list[int]) -> None:
    context = context_of(digits, tmp_path)
    first, _ = measured(context, epochs=2)
    folder = context.folder.child(context.folder.names()[0])
    folder.write(FILE, folder.read(FILE)[:100])
    again, _ = measured(context, epochs=2)
    assert (again, started) == (first, [0, 0])


@pytest.mark.thorough
def test_one_that_was_stopped_goes_on_and_ends_as_if_it_had_not_been(
    digits: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: list[int]
) -> None:
    whole, found = measured(context_of(digits, tmp_path / "whole"), views=ProbeViews(flip=0.0))
    monkeypatch.setattr("raysl.runs.run.train", train_here(started, [StopAt(5)]))
    context = context_of(digits, tmp_path / "cut")
    with pytest.raises(Stopped):
        measured(context, views=ProbeViews(flip=0.0))
    monkeypatch.setattr("raysl.runs.run.train", train_here(started))
    resumed, same = measured(context, views=ProbeViews(flip=0.0))
    assert started == [0, 0, 5]
    assert resumed == whole
    assert torch.equal(found.scores, same.scores)
    assert same.figures == found.figures


def run_of(context: Context, **fields: Any) -> RunConfig:
    return training_run(context, config_of(**fields), freeze=True)


@pytest.mark.thorough
def test_a_run_is_the_same_one_for_what_its_result_depends_on(digits: str, tmp_path: Path) -> None:
    context = context_of(digits, tmp_path)
    name = run_of(context).name
    assert run_of(context, workers=4, settings=("train.max_failures=7", "data.buffer_gb=3")).name == name
    cut = replace(context, images=dict(context.images, test=context.images["train"]))
    meta = {**context.checkpoint.meta, "files": {"backbone.safetensors": {"sha256": "another"}}}
    others = [
        run_of(context, epochs=9),
        run_of(context, eval_every=Duration.parse("2ep")),
        run_of(context, views=ProbeViews()),
        run_of(context, settings=("method.label_smoothing=0.1",)),
        run_of(replace(context, side="untrained")),
        run_of(replace(context, seed=1)),
        run_of(cut),
        run_of(replace(context, checkpoint=replace(context.checkpoint, meta=meta))),
    ]
    assert len({name, *(run.name for run in others)}) == 9


@pytest.mark.thorough
def test_settings_of_the_run_that_trains_are_all_within_reach(digits: str, tmp_path: Path) -> None:
    words = (
        "optim=adamw",
        "optim.lr=0.01",
        "train.accumulate=2",
        "method.views.affine_p=0.5",
        "backbone.freeze=[stem]",
    )
    run: Any = run_of(context_of(digits, tmp_path), batch_size=1000, lr=0.5, settings=words)
    assert (run.optim.name, run.optim.lr, run.train.accumulate) == ("adamw", 0.01, 2)
    assert (run.method.views.affine_p, run.backbone.freeze) == (0.5, ("stem",))
    assert run.train.batch_size == NUM
    assert run.benchmarks == {}
    stepped: Any = run_of(context_of(digits, tmp_path), decay_at=(Duration.parse("3ep"),), momentum=0.0).optim
    assert (stepped.schedule, stepped.decay_at, stepped.nesterov) == ("steps", (Duration.parse("3ep"),), False)


@pytest.mark.thorough
@pytest.mark.parametrize("decay_biases", [False, True])
def test_biases_have_decay_where_it_is_asked_for(digits: str, tmp_path: Path, decay_biases: bool) -> None:
    run = run_of(context_of(digits, tmp_path), weight_decay=0.01, decay_biases=decay_biases)
    method: Any = TrainState.create(prepare(run).setup).method
    groups = method.param_groups(run.optim)
    scales = {name: own["weight_decay_scale"] for own in groups for name in _names(method, own)}
    assert run.optim.weight_decay == 0.01
    assert scales == {"classifier.weight": 1, "classifier.bias": float(decay_biases)}


def _names(method: nn.Module, group: dict[str, Any]) -> list[str]:
    names = {id(parameter): name for name, parameter in method.named_parameters()}
    return [names[id(parameter)] for parameter in group["params"]]


@pytest.mark.thorough
def test_a_supervised_checkpoint_gives_no_classifier_away(tmp_path: Path) -> None:
    uri = checkpoint(tmp_path, f"data.limit={NUM}", name="digits/supervised")
    run = run_of(context_of(uri, tmp_path))
    state = TrainState.create(prepare(run).setup)
    assert state.weights is not None
    assert [text.split(" ")[0] for text in state.weights["taken"]] == ["backbone"]


@pytest.mark.thorough
@pytest.mark.parametrize("is_blind", [False, True])
def test_dark_and_bright_images_are_told_apart_and_a_network_that_sees_nothing_guesses(
    tmp_path: Path, started: list[int], is_blind: bool
) -> None:
    context = context_of(checkpoint(tmp_path, *shades(tmp_path), is_blind=is_blind), tmp_path)
    values, _ = measured(context, epochs=60, batch_size=24, lr=20.0, batch_norm=not is_blind)
    assert values["top1"] == (25 if is_blind else 100)


def test_settings_come_from_files_and_words(digits: str) -> None:
    word = "benchmarks.linear_augmented={stages: [{stage: res2, pool: {size: 2}}], views: {flip: 0}, lr: 0.3}"
    run = load_config("quickstart", [word, "benchmarks.linear_augmented.epochs=5"])
    config: Any = run.benchmarks["linear_augmented"]
    assert config.stages == (StageHead(stage="res2", pool=Pool(size=2)),)
    assert (config.views.flip, config.views.min_scale, config.epochs, config.rivals) == (0, 0.08, 5, ())
    assert from_dict(to_dict(run)) == run


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("rivals=[pixels]", "'pixels' is not one of its choices"),
        ("settings=[method.name=byol]", "'method.name=byol' is not a setting of a part of the training run"),
        ("settings=[storage=/tmp]", "'storage=/tmp' is not a setting"),
        ("settings=[epochs]", "'epochs' is not a setting; write key=value"),
        ("batch_size=1", "batch_size: 1 is out of range"),
    ],
)
def test_settings_that_cannot_work_are_refused_when_they_are_read(word: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_config("quickstart", [f"benchmarks.linear_augmented.{word}"])


@pytest.mark.thorough
def test_stages_that_are_not_there_and_batches_that_are_too_large(
    digits: str, tmp_path: Path, started: list[int]
) -> None:
    context = context_of(digits, tmp_path)
    with pytest.raises(
        ConfigError, match=r"linear_augmented.stages: no stage 'res9' in resnet; its stages: conv1, stem, res2"
    ):
        LinearAugmented.check(config_of(stages=(StageHead(stage="res9"),)), context.checkpoint)
    # the features have a classifier anyway
    with pytest.raises(ConfigError, match=r"linear_augmented.stages: no stage '' in resnet"):
        LinearAugmented.check(config_of(stages=(StageHead(stage=""),)), context.checkpoint)
    with pytest.raises(ConfigError, match=r"training run of linear_augmented_\w+: method.heads: windows of side 99"):
        measured(context, stages=(StageHead(stage="res2", pool=Pool(kernel=99)),))
    images = Labelled(100, 20, ("a", "b"), None)
    config, lines = LinearAugmented.fit_to(LinearAugmented.Config(), images)
    assert config.batch_size == 100
    assert lines == ["batch_size=256 is more than the 100 training images, which are one batch then"]
    assert LinearAugmented.fit_to(config, images) == (config, [])
    with pytest.raises(ConfigError, match="there are 1 training and 20 test images"):
        LinearAugmented.fit_to(config, replace(images, num_train=1))


def test_one_that_trains_is_measured_where_somebody_asks_for_it() -> None:
    run = load_config("quickstart", ["benchmarks=[]"])
    assert {"knn", "low_shot"} <= load_benchmarks(run, None).keys()
    assert "linear_augmented" not in load_benchmarks(run, None)
    assert load_benchmarks(run, ["linear_augmented"])["linear_augmented"].required


@pytest.mark.slow
@pytest.mark.usefixtures("shared_ray")
def test_two_workers_on_ray_come_to_what_one_process_does_beside_the_main_thread_too(
    digits: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Findings] = []
    context = context_of(digits, tmp_path / "ray")
    thread = threading.Thread(target=lambda: found.append(measured(context, epochs=2, stages=(STEM,), workers=2)[1]))
    thread.start()
    thread.join()
    assert capsys.readouterr().out == ""
    monkeypatch.setattr("raysl.runs.run.train", train_here([]))
    _, here = measured(context_of(digits, tmp_path / "here"), epochs=2, stages=(STEM,))
    torch.testing.assert_close(found[0].scores, here.scores)
    assert found[0].metrics == here.metrics
    (name,) = context.folder.names()
    assert "2 workers" in context.folder.child(name).read("events.jsonl").decode()
