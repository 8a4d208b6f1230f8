"""A linear classifier is trained along with a run, and the run does not notice."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from raysl import distributed as dist
from raysl.config.load import load_config
from raysl.data.source import make_source
from raysl.data.stream.loader import LocalBatches
from raysl.errors import ConfigError
from raysl.methods.method import StepOutput
from raysl.schedule import Duration, Step
from raysl.train import LocalReporter, fit
from raysl.train.callbacks.callback import Callback, Run
from raysl.train.callbacks.online_probe import Head, OnlineProbe
from raysl.train.prepare import Prepared, prepare
from raysl.train.state import TrainState
from tests.methods.properties import SMALL, small
from tests.rank_processes import RunRanks
from tests.train.problem import StopAt, tensors_of

LR = 0.01


class Drawn(Callback):
    """Notes a number that torch would draw after each step, and the logged lines."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.lines: dict[int, dict[str, float]] = {}

    def on_step_end(self, run: Run, step: Step, out: StepOutput) -> None:
        """See `Callback.on_step_end`."""
        self.numbers.append(int(torch.get_rng_state().long().sum()))

    def on_log(self, run: Run, step: Step, line: dict[str, float]) -> None:
        """See `Callback.on_log`."""
        self.lines[step.index] = dict(line)


def probe_of(run: Prepared) -> OnlineProbe:
    test = make_source(run.config.data).required("test")
    read = LocalBatches(replace(run.loader, held_out=test), dist.rank(), dist.world()).chosen
    return OnlineProbe(run.setup.data.num_classes, Duration.parse("1ep"), LR, (test, read))


def go(
    run: Prepared, state: TrainState, *callbacks: Callback, until: int | None = None, folder: Path | None = None
) -> Drawn:
    drawn, stops = Drawn(), [] if until is None else [StopAt(until)]
    stream = LocalBatches(run.loader, dist.rank(), dist.world())
    model = dist.data_parallel(state.method)
    reporter = LocalReporter(folder, keep=100, show_progress=False)
    fit(state, model, run.setup.plan, stream, callbacks=[*callbacks, drawn, *stops], reporter=reporter)
    return drawn


def fresh(run: Prepared) -> TrainState:
    return TrainState.create(run.setup, classes=run.classes)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["byol", "dino", "mae"])
def test_the_network_has_the_bits_of_a_run_without_it(name: str) -> None:
    run = small(name)
    alone, beside = fresh(run), fresh(run)
    before, with_probe = go(run, alone), go(run, beside, probe_of(run))
    mine, expected = tensors_of(beside), tensors_of(alone)
    assert mine.keys() == expected.keys()
    assert [key for key in mine if not torch.equal(mine[key], expected[key])] == []
    assert with_probe.numbers == before.numbers, "no random number is drawn"
    for step, line in before.lines.items():
        same = {key: value for key, value in line.items() if "_s" not in key and key not in ("data_wait", "memory_gb")}
        assert same == {key: with_probe.lines[step][key] for key in same}
        assert {"probe_loss", "probe_train_top1"} <= set(with_probe.lines[step])
    assert [step for step, line in with_probe.lines.items() if "probe_top1" in line] == [4, 8]


def test_the_classifier_is_torchs_with_adam_and_leaves_unlabelled_rows_out() -> None:
    torch.manual_seed(0)
    head, layer = Head.of(5, 3, torch.device("cpu")), nn.Linear(5, 3)
    with torch.no_grad():
        layer.weight.zero_()
        layer.bias.zero_()
    adam = torch.optim.Adam(layer.parameters(), lr=LR)
    for _ in range(20):
        h, label = torch.randn(7, 5), torch.tensor([0, 1, 2, -1, 0, -1, 1])
        out = layer(h)
        expected = F.cross_entropy(out, label, ignore_index=-1)
        top1 = 100 * (out.argmax(dim=1) == label).sum() / 5
        adam.zero_grad()
        expected.backward()  # type: ignore[no-untyped-call]
        adam.step()
        loss, accuracy = head.learn(h, label, LR)
        torch.testing.assert_close(loss, expected.detach())
        torch.testing.assert_close(accuracy, top1)
    torch.testing.assert_close(head.weight[:, :-1], layer.weight.detach())
    torch.testing.assert_close(head.weight[:, -1], layer.bias.detach())


def test_a_batch_without_labels_teaches_nothing() -> None:
    head = Head.of(5, 3, torch.device("cpu"))
    loss, top1 = head.learn(torch.randn(4, 5), torch.full((4,), -1), LR)
    assert (loss.item(), top1.item()) == (0.0, 0.0)
    assert head.weight.count_nonzero() == 0


def learnt(shares: list[int]) -> Tensor:
    """Weights after steps on this rank's share of rows, of which some have no label."""
    generator = torch.Generator().manual_seed(3)
    head = Head.of(5, 3, torch.device("cpu"))
    for _ in range(5):
        h = torch.randn(12, 5, generator=generator)
        label = torch.randint(-1, 3, (12,), generator=generator)
        if dist.world() > 1:
            h, label = (torch.split(rows, shares)[dist.rank()] for rows in (h, label))
        head.learn(h, label, LR)
    return head.weight


@pytest.mark.parametrize("shares", [[5, 7], [0, 12]])
def test_ranks_with_uneven_rows_learn_as_one(run_ranks: RunRanks, shares: list[int]) -> None:
    expected = learnt([])
    first, second = run_ranks(2, learnt, shares)
    assert torch.equal(first, second)
    torch.testing.assert_close(first, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.thorough
def test_what_is_measured_is_the_accuracy_on_all_held_out_images() -> None:
    run = small("simclr")
    state, probe = fresh(run), probe_of(run)
    lines = go(run, state, probe).lines
    assert probe.test is not None
    assert probe.head is not None
    test, backbone = probe.test[0], state.method.export().eval()
    right = total = 0
    with torch.no_grad():
        for batch in run.loader.plain_batches(test, 0, test.num_samples, torch.device("cpu")):
            scores = probe.head.scores(backbone(batch.views["image"][:, 0]))
            right, total = right + int((scores.argmax(dim=1) == batch.label).sum()), total + len(batch)
    assert total == test.num_samples
    assert lines[8]["probe_top1"] == pytest.approx(100 * right / total)


@pytest.mark.thorough
@pytest.mark.parametrize("stop", [3, 4])
def test_a_run_that_goes_on_has_the_same_classifier(stop: int, tmp_path: Path) -> None:
    run = small("byol")
    whole, again = probe_of(run), probe_of(run)
    lines = go(run, fresh(run), whole, folder=tmp_path).lines
    state = fresh(run)
    state.load(tmp_path / f"checkpoint_{stop:09d}")
    again.load_state_dict(state.callbacks[again.state_key])
    later = go(run, state, again).lines
    assert whole.head is not None
    assert again.head is not None
    assert again.head.step == whole.head.step == 8
    for name in ("weight", "mean", "square"):
        assert torch.equal(getattr(again.head, name), getattr(whole.head, name))
    for step, line in later.items():
        assert {key: value for key, value in line.items() if "probe" in key} == {
            key: value for key, value in lines[step].items() if "probe" in key
        }


def test_a_classifier_of_other_features_is_refused() -> None:
    head = Head.of(5, 3, torch.device("cpu"))
    with pytest.raises(ConfigError, match=r"online probe is \[3, 5\], and here it is \[3, 6\]"):
        head.load(Head.of(4, 3, torch.device("cpu")).stored())


def refusal(name: str, *words: str) -> str:
    with pytest.raises(ConfigError) as refused:
        prepare(load_config(name, ["train.online_probe=1ep", *words]))
    return str(refused.value)


def test_images_without_labels_are_refused(tmp_path: Path) -> None:
    from PIL import Image

    for number in range(20):
        Image.new("RGB", (16, 16), (number, 0, 0)).save(tmp_path / f"{number}.png")
    words = ["data=image_folder", f"data.path={tmp_path}", "train.batch_size=8", "train.online_knn_every=null"]
    assert refusal("quickstart", *words, "benchmarks=[]") == (
        "train.online_probe trains a classifier, and the training images have no labels; set train.online_probe=null"
    )


def test_tiles_and_shares_of_a_network_are_refused() -> None:
    assert "this method cuts images into tiles" in refusal("digits/jigsaw", *SMALL)
    assert "train.parallel=fsdp cannot do with shares" in refusal(
        "digits/simclr", *SMALL, "train.parallel=fsdp", "train.workers=2"
    )


def test_its_numbers_may_be_expected() -> None:
    from raysl.benchmarks.suite.fitting import check_benchmarks

    words = [*SMALL, "train.online_probe=1ep", "train.expect={probe_top1: [0, 100], probe_loss: [0, 9]}"]
    assert prepare(load_config("digits/simclr", words), check_benchmarks).test is not None
    with pytest.raises(ConfigError, match="nothing will report 'probe_top1'"):
        prepare(load_config("digits/simclr", [*words, "train.online_probe=null"]), check_benchmarks)
