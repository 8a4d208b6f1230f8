"""What `raysl plan --gpu` counts: FLOPs, memory by part, and what it says of a card."""

import json
import re
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn

from raysl.cli import main
from raysl.components import ALIASES, Classes
from raysl.config.load import load_config
from raysl.errors import ConfigError
from raysl.nn.backbones.resnet import ResNet
from raysl.nn.backbones.vit import ViT
from raysl.plan.cards import CARDS, card_of
from raysl.plan.cost import Cost, Counts
from raysl.plan.plan import TrainPlan
from raysl.plan.setup import Setup
from raysl.plan.shapes import Shapes, to_shapes
from raysl.train.rehearsal import rehearse
from raysl.train.state import TrainState

GMACS = {
    "resnet": (lambda: ResNet(ResNet.Config(depth=50)), 4.1),  # torchvision's table, without its last layer's 2 M
    "vit": (lambda: ViT(ViT.Config(size="base", patch_size=16)), 17.6),  # DeiT's paper, table 5
}


def counts_of(name: str, *words: str, images: int = 62) -> tuple[Setup, Counts]:
    config = load_config(name, [*words])
    classes = Classes.of(config)
    plan = TrainPlan.from_config(config, images, config.train.most_workers, "cuda")
    setup = Setup.of(config, images, 10, plan=plan)
    return setup, rehearse(setup, classes, classes.method.views(setup))


@pytest.mark.thorough
@pytest.mark.parametrize("name", GMACS)
def test_multiply_adds_of_an_image_are_those_published(name: str) -> None:
    make, published = GMACS[name]
    with Shapes() as shapes, torch.no_grad():
        network = make()
        to_shapes(network, shapes)
        image = shapes.shape_of(torch.zeros(1).expand(1, 3, 224, 224))
        shapes.restart()
        network.eval()(image)
    assert sum(flops for flops, _, _ in shapes.work) / 2e9 == pytest.approx(published, rel=0.03)


def test_what_autograd_stores_is_counted_until_it_is_freed() -> None:
    with Shapes() as shapes:
        layer = nn.Linear(512, 512, bias=False)
        to_shapes(layer, shapes)
        shapes.assign("weights", layer.parameters())
        x = shapes.shape_of(torch.zeros(1).expand(1024, 512))
        y = layer(x).relu().sum()
        assert shapes.live["weights"] == 512 * 512 * 4
        assert shapes.live["activations"] == 2 * 1024 * 512 * 4 + 4, "x, and the result of relu"
        y.backward()
        assert layer.weight.grad is not None
        del y
        assert shapes.live["activations"] == (1024 * 512 + 512 * 512) * 4, "x and the gradient"
    (forward, backward) = [flops for flops, _, _ in shapes.work if flops]
    assert forward == backward == 2 * 1024 * 512 * 512


def bytes_of(tensors: list[torch.Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["moco", "dino"])
def test_parts_in_memory_are_those_of_a_real_run(name: str) -> None:
    words = ("data.limit=62", "train.batch_size=16", "data.lanes=8")
    setup, counts = counts_of(f"digits/{name}", *words)
    state = TrainState.create(setup)
    trained = [p for p in state.method.parameters() if p.requires_grad]
    kept = {id(p) for p in trained}
    others = [t for t in (*state.method.parameters(), *state.method.buffers()) if id(t) not in kept]
    for parameter in trained:
        parameter.grad = torch.zeros_like(parameter)
    state.optimizer.step()
    slots = [v for values in state.optimizer.state.values() for v in values.values() if isinstance(v, torch.Tensor)]
    assert counts.peak["weights"] == counts.gradients == bytes_of(trained)
    assert counts.peak["teachers, queues, banks"] == bytes_of(others)
    assert abs(counts.peak["optimizer"] - bytes_of(slots)) <= 4 * len(trained), "steps are counted on the GPU"
    assert counts.peak["activations"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(ALIASES["method"]))
def test_every_method_is_counted_on_several_ranks(name: str) -> None:
    words = ("data.limit=62", "train.batch_size=16", "data.lanes=8", "train.workers=2")
    _, counts = counts_of(f"digits/{name}", *words)
    assert counts.rows == 8
    assert sum(flops for flops, _, _ in counts.work) > 0


@pytest.mark.thorough
def test_a_run_that_does_not_fit_is_told_what_to_change() -> None:
    setup, counts = counts_of("digits/simclr", "train.batch_size=16", "train.workers=2")
    large = Counts(**{**vars(counts), "peak": counts.peak | {"activations": 200 << 30}})
    train = setup.config.train
    cost = Cost.of(large, card_of("a100"), setup.plan, train)
    (warning,) = cost.warnings
    assert "do not fit into the 84.9 GB of a A100 SXM 80 GB; try train.accumulate=2, train.recompute=all" in warning
    assert Cost.of(counts, card_of("a100"), setup.plan, train).warnings == []
    with pytest.raises(ConfigError, match="--gpu=h200 is not known; choose from h100, a100, l4"):
        card_of("h200")


@pytest.mark.thorough
def test_the_bound_counts_each_operation_by_what_takes_it_longer() -> None:
    setup, counts = counts_of("digits/simclr", "train.batch_size=16", "train.workers=1")
    card = CARDS["l4"]
    work = [(121 * 10**12, 0, True), (0, 300 * 10**9, False)]  # a second each at the peaks
    cost = Cost.of(Counts(**{**vars(counts), "work": work}), card, setup.plan, setup.config.train)
    assert cost.bound_s == pytest.approx(1 / 0.5 + 1 / 0.8)
    assert cost.images_per_s == pytest.approx(16 / cost.bound_s)
    assert cost.gpu_hours == pytest.approx(setup.plan.total_steps * cost.bound_s / 3600)


@pytest.mark.thorough
def test_numbers_of_small_runs_have_units_that_fit() -> None:
    setup, counts = counts_of("digits/simclr", "train.batch_size=16", "train.workers=1", "train.compile=true")
    cost = Cost.of(counts, CARDS["h100"], setup.plan, setup.config.train)
    lines = {line.partition(" ")[0]: line for line in cost.lines()}
    for name in ("memory", "step", "bound", "run"):
        assert not re.search(r"\b0(\.0+)? [a-zA-Z]*B\b(?! exchanged)|\b0\.0+ ", lines[name]), lines[name]
    assert re.search(r"a step of [\d.]+ (us|ms) or more \(products alone [\d.]+ us, bytes alone", lines["bound"])
    assert re.search(r"[\d.]+ (ms|s|min) or more on the clock", lines["run"])
    assert sum("train.compile is not counted" in line for line in cost.lines()) == 1


@pytest.mark.thorough
def test_the_command_prints_the_cost_of_images_that_are_not_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["digits/simclr", "train.workers=4", "data.lanes=8", "train.batch_size=64"]
    monkeypatch.setattr("sys.argv", ["raysl", "plan", *words, "--gpu", "l4", "--images", "6400", "--json"])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code in (0, None)
    cost = json.loads(capsys.readouterr().out)
    assert cost["gpu"] == "L4 24 GB"
    assert cost["memory_total"] == pytest.approx(sum(cost["memory"].values()))
    assert cost["memory"]["gradients"] == cost["memory"]["weights"], "DDP holds them all the time"
    assert cost["assumptions"]


@pytest.mark.thorough
@pytest.mark.parametrize("images", [["--images", "48", "--classes", "10"], []])
def test_the_hours_are_those_of_each_stage_at_its_size(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], images: list[str]
) -> None:
    def cost_of(scale: str) -> dict[str, Any]:
        words = [
            "quickstart",
            "views=null",
            "data=synthetic",
            "data.image_size=32",
            "data.num_train=48",
            "data.num_test=9",
        ]
        more = ["train.batch_size=16", "train.epochs=4", f"train.view_scale={scale}"]
        monkeypatch.setattr("sys.argv", ["raysl", "plan", *words, *more, "--gpu", "l4", "--json", *images])
        with pytest.raises(SystemExit) as caught:
            main()
        assert caught.value.code in (0, None)
        return json.loads(capsys.readouterr().out)  # type: ignore[no-any-return]

    full, half, both = map(cost_of, ("null", "{0%: 0.5}", "{0%: 0.5, 75%: 1}"))
    assert half["hours"] < full["hours"]
    assert both["hours"] == both["gpu_hours"] == pytest.approx(0.75 * half["hours"] + 0.25 * full["hours"])
    assert {**both, "hours": 0, "gpu_hours": 0, "assumptions": []} == {
        **full,
        "hours": 0,
        "gpu_hours": 0,
        "assumptions": [],
    }
    assert both["assumptions"][:-1] == full["assumptions"]


@pytest.mark.thorough
def test_the_hours_are_those_of_each_stage_with_its_patches(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def cost_of(drop: str, more: Sequence[str] = ()) -> dict[str, Any]:
        network = ["backbone=vit", "backbone.width=32", "backbone.depth=2", "backbone.patch_size=4"]
        words = ["quickstart", "views=null", "data=synthetic", "data.image_size=32", "data.num_train=48", *network]
        changes = [*words, "train.batch_size=16", "train.epochs=4", f"train.patch_drop={drop}", *more]
        monkeypatch.setattr("sys.argv", ["raysl", "plan", *changes, "--gpu", "l4", "--json", "--images", "48"])
        with pytest.raises(SystemExit) as caught:
            main()
        assert caught.value.code in (0, None)
        return json.loads(capsys.readouterr().out)  # type: ignore[no-any-return]

    full, half, both = map(cost_of, ("null", "{0%: 0.5}", "{0%: 0.5, 75%: 0}"))
    assert half["hours"] < full["hours"]
    assert both["hours"] == pytest.approx(0.75 * half["hours"] + 0.25 * full["hours"])
    assert {**both, "hours": 0, "gpu_hours": 0, "assumptions": full["assumptions"]} == {
        **full,
        "hours": 0,
        "gpu_hours": 0,
    }
    smaller = cost_of("{0%: 0.5}", ["train.view_scale={0%: 0.5, 50%: 1}"])
    assert smaller["hours"] < half["hours"]
    assert "counts its smaller views and left-out patches" in smaller["assumptions"][-1]


@pytest.mark.thorough
@pytest.mark.parametrize("channels", [1, 4])
def test_batches_have_the_channels_of_the_data(channels: int) -> None:
    words = ["data.path=/nowhere", f"data.channels={channels}", "train.batch_size=8", "train.workers=1"]
    small = ["backbone.depth=18", "backbone.width=8", "method.views.size=32", "method.hidden_dim=16"]
    setup, counts = counts_of("imagenet/simclr", *words, *small)
    assert setup.config.backbone.in_channels == channels
    assert counts.peak["batch"] == 8 * 2 * channels * 32 * 32 * 4


@pytest.mark.slow
def test_the_largest_recipe_takes_less_than_a_minute(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["dino_v2", "data.path=/nowhere", "train.workers=96", "data.lanes=96"]
    monkeypatch.setattr("sys.argv", ["raysl", "plan", *words, "--gpu", "a100", "--images", "14197122"])
    with pytest.raises(SystemExit):
        main()
    assert "memory" in capsys.readouterr().out
