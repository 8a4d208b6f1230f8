"""Heads train first, while a backbone that begins with weights waits."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from raysl.data.stream.loader import LocalBatches
from raysl.errors import ConfigError
from raysl.methods.method import Method
from raysl.nn.backbones.backbone import Backbone
from raysl.schedule import Duration
from raysl.train import LocalReporter, fit
from raysl.train.prepare import Prepared
from raysl.train.state import TrainState
from raysl.train.warm_heads import check_heads, warm_heads_warning
from tests.methods.properties import small
from tests.rank_processes import RunRanks
from tests.runs.parallel_runs import tensors_of, trained
from tests.tiers import each
from tests.train.problem import StopAt

EPOCH = 4
"""Updates in an epoch of these runs, of which they have two."""
WARM = ("method.weights=nowhere", "train.warm_heads=1ep", "optim.weight_decay=0.1")
KINDS = ("byol", "moco", "dino", "dino_v2", "mae", "swav_momentum", "ijepa", "vicreg")
"""Methods with a predictor, a queue, prototypes, a decoder, and most with a teacher."""
TEACHERS = (*(kind for kind in KINDS if kind not in ("mae", "vicreg")), "data2vec", "ibot", "moco_v3", "msn", "ressl")


class Somebodys:
    """Weights of a backbone, as a file gives them."""

    def fill_backbone(self, backbone: Backbone) -> None:
        """See `PublishedWeights.fill_backbone`."""
        generator = torch.Generator().manual_seed(9)
        with torch.no_grad():
            for value in backbone.state_dict().values():
                if value.is_floating_point():
                    value.mul_(1 + 0.1 * torch.rand(value.shape, generator=generator, dtype=value.dtype)).add_(0.01)

    def fill_method(self, method: nn.Module, given: object = None) -> dict[str, Any]:
        """See `PublishedWeights.fill_method`."""
        return {"uri": "nowhere"}


@pytest.fixture(autouse=True)
def weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raysl.train.state.initial_weights", lambda *_: Somebodys())


def backbones(method: Method) -> dict[str, dict[str, Tensor]]:
    """Copies of weights and buffers of the student's backbone and of a teacher's, by their places."""
    return {
        place: {name: value.detach().clone() for name, value in module.state_dict().items()}
        for place, module in method.named_modules()
        if isinstance(module, Backbone)
    }


def heads(method: Method) -> dict[str, Tensor]:
    """Copies of the trainable weights beside the backbone."""
    return {
        name: value.detach().clone()
        for name, value in method.named_parameters()
        if value.requires_grad and not name.startswith("backbone.")
    }


def changed(left: dict[str, Tensor], right: dict[str, Tensor]) -> list[str]:
    assert left.keys() == right.keys()
    return [name for name in left if not torch.equal(left[name], right[name])]


def train(run: Prepared, state: TrainState, until: int, folder: Path | None = None) -> None:
    stream = LocalBatches(run.loader)
    fit(
        state,
        state.method,
        run.setup.plan,
        stream,
        callbacks=[StopAt(until)],
        reporter=LocalReporter(folder, keep=100, show_progress=False),
    )
    assert state.step == until


@pytest.mark.thorough
@pytest.mark.parametrize("name", each(KINDS, now=("mae",)))
def test_the_backbone_waits_while_the_heads_learn_and_then_learns_too(name: str) -> None:
    run = small(name, *WARM)
    state = TrainState.create(run.setup, classes=run.classes)
    begun, heads_begun = backbones(state.method), heads(state.method)
    train(run, state, EPOCH)
    for place, values in backbones(state.method).items():
        assert changed(begun[place], values) == [], place
    assert changed(heads_begun, heads(state.method)) != []
    inside = set(state.method.backbone.parameters())
    assert not inside & set(state.optimizer.state), "the optimizer has no state of a backbone that waits"
    train(run, state, EPOCH + 2)
    now = backbones(state.method)["backbone"]
    assert set(changed(begun["backbone"], now)) >= {
        name for name, value in state.method.backbone.named_parameters() if value.requires_grad and value.ndim > 1
    } - {"mask_token"}
    assert all(norm in now for norm in begun["backbone"])
    statistics = [name for name in now if name.endswith("running_mean")]
    assert set(statistics) <= set(changed(begun["backbone"], now)), "running statistics move again"


@pytest.mark.thorough
@pytest.mark.parametrize("name", TEACHERS)
def test_a_teacher_begins_with_the_weights_too(name: str) -> None:
    run = small(name, "method.weights=nowhere")
    state = TrainState.create(run.setup, classes=run.classes)
    student, *teachers = backbones(state.method).values()
    assert teachers
    for teacher in teachers:
        assert changed({key: student[key] for key in teacher}, teacher) == []
    fresh = TrainState.create(run.setup, classes=run.classes, is_new=False)
    assert changed(student, backbones(fresh.method)["backbone"]) != []


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["byol", "dino"])
@pytest.mark.parametrize("stop", [2, EPOCH, EPOCH + 1])
def test_a_run_that_goes_on_ends_with_the_same_bits(name: str, stop: int, tmp_path: Path) -> None:
    run = small(name, *WARM)
    whole = TrainState.create(run.setup, classes=run.classes)
    train(run, whole, EPOCH + 3, tmp_path)
    again = TrainState.create(run.setup, classes=run.classes)
    again.load(tmp_path / f"checkpoint_{stop:09d}")
    train(run, again, EPOCH + 3)
    assert changed(whole.method.state_dict(), again.method.state_dict()) == []


def test_the_rate_falls_with_depth_for_weights_that_are_given() -> None:
    run = small("mae", "method.weights=nowhere", "optim.layer_decay=0.5")
    groups = TrainState.create(run.setup, classes=run.classes).optimizer.param_groups
    scales = sorted({group["lr_scale"] for group in groups})
    assert scales == [0.125, 0.25, 0.5, 1.0], "patches, two blocks, the norm and the decoder"


def in_each_way(folder: str) -> dict[str, dict[str, Tensor]]:
    """What a checkpoint keeps of a run over both epochs, by `train.parallel`."""
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("raysl.train.state.initial_weights", lambda *_: Somebodys())
        for kind in ("ddp", "zero1", "fsdp"):
            run = small("byol", *WARM, f"train.parallel={kind}", "train.workers=2")
            found[kind] = tensors_of(trained(run, Path(folder, kind)))
    return found


def test_ranks_that_share_the_network_wait_alike(run_ranks: RunRanks, tmp_path: Path) -> None:
    found = run_ranks(2, in_each_way, str(tmp_path), timeout=200)[0]
    for kind in ("zero1", "fsdp"):
        assert found[kind].keys() == found["ddp"].keys()
        for name, value in found["ddp"].items():
            torch.testing.assert_close(found[kind][name].double(), value.double(), rtol=0, atol=1e-9, msg=name)


def test_a_random_backbone_does_not_wait() -> None:
    with pytest.raises(ConfigError, match=r"train\.warm_heads=1ep .* begins at random; set method\.weights="):
        small("mae", "train.warm_heads=1ep")


def test_a_method_without_heads_is_refused() -> None:
    run = small("byol", *WARM)
    method = TrainState.create(run.setup, classes=run.classes).method
    check_heads(method)
    for name, child in method.named_children():
        if name != "backbone":
            child.requires_grad_(False)
    with pytest.raises(ConfigError, match=r"method=byol has no weights there; leave it out"):
        check_heads(method)


def test_a_wait_as_long_as_the_run_is_told() -> None:
    plan = small("mae").setup.plan
    assert warm_heads_warning(plan, None) is None
    assert warm_heads_warning(plan, Duration.parse("7st")) is None
    assert warm_heads_warning(plan, Duration.parse("100%")) == (
        "train.warm_heads=100% lasts for all 8 updates: the backbone will not be trained"
    )
