"""Low-rank adapters: what learns, what is exported, and what is refused."""

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from raysl.checkpoint.backbone import load_backbone
from raysl.checkpoint.checkpoint_folder import checkpoint_name
from raysl.config.load import load_config
from raysl.config.schema import AdapterConfig, RunConfig
from raysl.data.batch import Batch
from raysl.errors import ConfigError
from raysl.nn.adapters import AdaptedLinear, add_adapters, merge_adapters
from raysl.nn.backbones.timm_models import TimmModel
from raysl.nn.ema import Teacher
from raysl.plan.setup import Setup
from raysl.schedule import Step
from raysl.train.prepare import make_views, prepare
from raysl.train.rehearsal import rehearse
from raysl.train.state import TrainState
from tests.methods.properties import small
from tests.rank_processes import RunRanks
from tests.runs.parallel_runs import tensors_of, trained

IMAGES = (64, 10)
VIT = ("backbone=vit", "backbone.size=nano", "backbone.depth=2", "backbone.patch_size=8", "data.image_size=16")
HEADS = ("method.hidden_dim=8", "method.output_dim=4", "optim.lr=0.1")
RANK = "backbone.adapters.rank=2"


def config_of(tmp_path: Path, *words: str) -> RunConfig:
    return load_config("quickstart", [*VIT, *HEADS, f"storage={tmp_path}", "name=new", *words])


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source" / checkpoint_name(0)
    TrainState.create(Setup.of(config_of(tmp_path, "seed=3"), *IMAGES)).save(folder, {})
    return folder.parent


def train(state: TrainState, until: int) -> TrainState:
    state.method.train()
    while state.step < until:
        views = torch.randn(8, 2, 3, 16, 16, generator=torch.Generator().manual_seed(state.step))
        batch = Batch({"global": views}, torch.arange(8), torch.zeros(8, dtype=torch.int64))
        step = Step(state.step, 10, 4)
        state.optimizer.zero_grad()
        out = state.method(batch, step)
        out.loss.backward()
        state.optimizer.step()
        state.method.after_update(step, batch, out.carry)
        state.step += 1
    return state


def begun(tmp_path: Path, source: Path, *words: str) -> TrainState:
    config = config_of(tmp_path, f"method.weights={source}", RANK, *words)
    return TrainState.create(Setup.of(config, *IMAGES))


@pytest.mark.thorough
def test_only_adapters_and_heads_learn_and_the_first_features_are_those_of_the_weights(
    tmp_path: Path, source: Path
) -> None:
    state, images = begun(tmp_path, source), torch.rand(2, 3, 16, 16)
    backbone = state.method.export()
    assert torch.equal(backbone.eval()(images), load_backbone(str(source))(images))
    before = copy.deepcopy(state.method.state_dict())
    train(state, 3)
    changed = {name for name, value in state.method.state_dict().items() if not torch.equal(value, before[name])}
    inside = {name for name in changed if name.startswith("backbone.")}
    adapters = {name for name in before if name.rpartition(".")[2] in ("lora_a", "lora_b")}
    assert inside == adapters
    assert len(adapters) == 2 * 2 * 4, "two matrices for four layers of two blocks"
    assert changed - inside, "heads"


@pytest.mark.thorough
def test_a_checkpoint_has_the_adapters_merged_and_loads_as_any_other(tmp_path: Path, source: Path) -> None:
    state, images = train(begun(tmp_path, source), 3), torch.rand(2, 3, 16, 16)
    state.save(tmp_path / "saved" / checkpoint_name(3), {})
    backbone = load_backbone(str(tmp_path / "saved"))
    assert not any(isinstance(part, AdaptedLinear) for part in backbone.modules())
    assert torch.allclose(backbone(images), state.method.export().eval()(images), atol=1e-5)
    assert not torch.allclose(backbone(images), load_backbone(str(source))(images), atol=1e-3)
    again = begun(tmp_path, tmp_path / "saved", "seed=5", "backbone.adapters.alpha=3")
    assert torch.equal(again.method.export().eval()(images), backbone(images)), "weights of a next run"


@pytest.mark.thorough
def test_a_next_run_has_the_teacher_that_was_with_its_adapters_merged(tmp_path: Path, source: Path) -> None:
    words, images = ("method=byol", "method.hidden_dim=8", "method.output_dim=4"), torch.rand(2, 3, 16, 16)
    state = train(begun(tmp_path, source, *words, "method.momentum=0.5"), 3)
    state.save(tmp_path / "saved" / checkpoint_name(3), {})
    again = begun(tmp_path, tmp_path / "saved", *words, "seed=5", "backbone.adapters.rank=3")
    assert again.weights is not None
    assert again.weights["left_out"] == []
    for teacher, other in zip(teachers(state), teachers(again), strict=True):
        assert torch.allclose(teacher.eval()(images), other.eval()(images), atol=1e-5)


def teachers(state: TrainState) -> list[nn.Module]:
    """Networks of teachers up to their heads' ends."""
    return [module.module for module in state.method.modules() if isinstance(module, Teacher)]


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["simclr", "byol"])
def test_the_step_after_a_restart_is_the_step_that_would_have_been(method: str, tmp_path: Path, source: Path) -> None:
    words = (f"method={method}", "method.hidden_dim=8", "method.output_dim=4")
    whole, first = train(begun(tmp_path, source, *words), 5), train(begun(tmp_path, source, *words), 3)
    first.save(tmp_path / "half", {})
    second = TrainState.create(first.setup, is_new=False)
    second.load(tmp_path / "half")
    train(second, 5)
    for (name, one), other in zip(whole.method.state_dict().items(), second.method.state_dict().values(), strict=True):
        assert torch.equal(one, other), name


@pytest.mark.thorough
def test_a_teacher_follows_by_its_adapters(tmp_path: Path, source: Path) -> None:
    state = begun(tmp_path, source, "method=byol", "method.hidden_dim=8", "method.output_dim=4")
    before = copy.deepcopy(state.method.state_dict())
    train(state, 3)
    names = [name for name in before if not name.startswith("backbone.") and name.endswith("lora_b")]
    assert names
    assert all(not torch.equal(state.method.state_dict()[name], before[name]) for name in names)


def in_each_way(folder: str) -> dict[str, dict[str, Tensor]]:
    """What a checkpoint keeps of a run, by `train.parallel`."""
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("raysl.train.state.initial_weights", lambda *_: None)
        for kind in ("ddp", "zero1", "fsdp"):
            words = ("method.weights=nowhere", RANK, f"train.parallel={kind}", "train.workers=2")
            found[kind] = tensors_of(trained(small("data2vec", *words), Path(folder, kind)))
    return found


def test_ranks_that_share_the_network_end_as_those_that_have_it_whole(run_ranks: RunRanks, tmp_path: Path) -> None:
    found = run_ranks(2, in_each_way, str(tmp_path), timeout=200)[0]
    for kind in ("zero1", "fsdp"):
        assert found[kind].keys() == found["ddp"].keys()
        for name, value in found["ddp"].items():
            torch.testing.assert_close(found[kind][name].double(), value.double(), rtol=0, atol=1e-9, msg=name)


@pytest.mark.thorough
def test_the_plan_counts_adapters_alone_as_weights_that_train() -> None:
    counted = []
    for words in ([], [RANK]):
        run = small("mae", "method.weights=nowhere", *words)
        counted.append(rehearse(run.setup, run.classes, make_views(run.setup, run.classes)).gradients)
    assert counted[1] < counted[0]


@pytest.mark.thorough
def test_a_network_of_timm_is_adapted_and_merged() -> None:
    network, config = TimmModel(TimmModel.Config(model="test_vit")).eval(), AdapterConfig(rank=2)
    plain, images = copy.deepcopy(network), torch.rand(2, 3, network.native_size, network.native_size)
    add_adapters(network, config)
    for name, value in network.named_parameters():
        if name.endswith("lora_b"):
            torch.nn.init.normal_(value, std=0.1)
    assert not torch.allclose(network(images), plain(images), atol=1e-3)
    plain.load_state_dict(merge_adapters(network.state_dict()))
    assert torch.allclose(network(images), plain(images), atol=1e-4)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([RANK], "they change a network that has learnt before"),
        ([RANK, "method.weights=gone", "backbone.freeze=[block1]"], "leave backbone.freeze out"),
        (["method.weights=gone", "backbone.adapters.targets=[query]"], "has no linear layers query.*qkv, proj, fc1"),
        (["backbone.adapters.rank=0"], "backbone.adapters.rank: 0 is out of range"),
        (["backbone.adapters.targets=[]"], "backbone.adapters.targets: .*empty"),
    ],
)
def test_settings_that_adapt_nothing_are_refused_on_the_driver(words: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        prepare(config_of(tmp_path, *words))


def test_a_network_without_such_layers_is_refused_with_those_that_it_has(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"this ResNet has no linear layers .*of its linear layers: none"):
        prepare(load_config("quickstart", [f"storage={tmp_path}", "method.weights=gone", RANK]))
