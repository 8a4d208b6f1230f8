"""Statistics of batch normalisation over many images are exported, and training does not notice."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import raysl
from raysl.checkpoint.backbone import load_backbone
from raysl.checkpoint.checkpoint_folder import checkpoint_name
from raysl.plan.setup import Setup
from raysl.train import LocalReporter, fit
from raysl.train.callbacks.precise_bn import PreciseBN
from raysl.train.state import TrainState
from tests.rank_processes import RunRanks
from tests.train.callbacks.own import train
from tests.train.problem import SMALL, StopAt, batches, differing, problem, tensors_of


def exported(folder: Path, step: int = 8) -> dict[str, torch.Tensor]:
    return load_file(folder / checkpoint_name(step) / "backbone.safetensors")


@pytest.mark.thorough
def test_one_batch_gives_the_statistics_of_torch_with_momentum_one(tmp_path: Path) -> None:
    config = raysl.load_config("quickstart", [*SMALL, "train.epochs=1"])
    generator = torch.Generator().manual_seed(0)
    images = [torch.randint(0, 256, (3, 16, 16), dtype=torch.uint8, generator=generator) for _ in range(36)]
    setup = Setup.of(config, num_samples=36)
    state = TrainState.create(setup)
    precise = PreciseBN(PreciseBN.Config(images=18))
    views = raysl.views(config, images)
    fit(state, state.method, setup.plan, views, callbacks=[precise], reporter=LocalReporter(tmp_path))
    given = torch.stack(images[::2]) / 255
    normal = (given - torch.tensor(config.data.mean).view(3, 1, 1)) / torch.tensor(config.data.std).view(3, 1, 1)
    reference = state.method.export().train()
    for module in reference.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = 1.0
    with torch.no_grad():
        reference(normal)
    found, expected = load_backbone(str(tmp_path)).state_dict(), reference.state_dict()
    assert sum("running" in name for name in found) > 4
    for name, value in found.items():
        if "num_batches" not in name:
            assert torch.allclose(value, expected[name], rtol=1e-4, atol=1e-5), name


@pytest.mark.thorough
def test_the_first_layer_has_the_moments_of_all_images(tmp_path: Path) -> None:
    state, plan, _ = train(tmp_path, PreciseBN(PreciseBN.Config(images=30)))
    backbone = state.method.export()
    inputs: list[torch.Tensor] = []
    (name, first), *_ = [(n, m) for n, m in backbone.named_modules() if isinstance(m, torch.nn.BatchNorm2d)]
    first.register_forward_pre_hook(lambda module, args: inputs.append(args[0].detach()))
    views = torch.cat([batch.views["global"][:, 0] for batch in batches(plan)])[:30]
    backbone.eval()(views)
    values = inputs[0].double().transpose(0, 1).flatten(1)
    found = exported(tmp_path)
    assert torch.allclose(found[f"{name}.running_mean"].double(), values.mean(dim=1), atol=1e-6)
    assert torch.allclose(found[f"{name}.running_var"].double(), values.var(dim=1), rtol=1e-5)


@pytest.mark.thorough
def test_the_training_state_and_a_resume_are_those_of_a_run_without_it(tmp_path: Path) -> None:
    plain, _, _ = train(tmp_path / "plain")
    watched, _, _ = train(tmp_path / "watched", PreciseBN())
    assert differing(tensors_of(plain), tensors_of(watched)) == []
    own, precise = exported(tmp_path / "plain"), exported(tmp_path / "watched")
    changed = {name for name in own if not own[name].equal(precise[name])}
    assert changed == {name for name in own if "running" in name}
    train(tmp_path / "stopped", PreciseBN(), StopAt(3))
    state, _ = problem()
    state.load(tmp_path / "stopped" / checkpoint_name(3))
    resumed, _, _ = train(tmp_path / "stopped", PreciseBN(), state=state)
    assert differing(tensors_of(plain), tensors_of(resumed)) == []
    again = exported(tmp_path / "stopped")
    assert all(precise[name].equal(again[name]) for name in precise)


@pytest.mark.thorough
def test_a_backbone_without_such_layers_is_told_of(tmp_path: Path) -> None:
    train(tmp_path, PreciseBN(), overrides=("backbone.norm=layer",))
    assert "precise_bn does nothing: resnet has no batch normalisation" in (tmp_path / "events.jsonl").read_text()


def _on_ranks(folder: str) -> None:
    train(Path(folder), PreciseBN(PreciseBN.Config(images=31)))


@pytest.mark.parametrize("world", [2])
def test_workers_take_the_moments_of_their_images_together(tmp_path: Path, world: int, run_ranks: RunRanks) -> None:
    run_ranks(world, _on_ranks, str(tmp_path))
    assert all(value.isfinite().all() for value in exported(tmp_path).values())
    state, plan = problem()
    state.load(tmp_path / checkpoint_name(8))
    backbone = state.method.export().eval()
    inputs: list[torch.Tensor] = []
    (name, first), *_ = [(n, m) for n, m in backbone.named_modules() if isinstance(m, torch.nn.BatchNorm2d)]
    first.register_forward_pre_hook(lambda module, args: inputs.append(args[0].detach()))
    halves = zip(*[torch.split(batch.views["global"][:, 0], 6) for batch in batches(plan)], strict=True)
    shares = [torch.cat(half)[:num] for half, num in zip(halves, (16, 15), strict=True)]
    backbone(torch.cat(shares))
    values = inputs[0].double().transpose(0, 1).flatten(1)
    found = exported(tmp_path)
    assert torch.allclose(found[f"{name}.running_mean"].double(), values.mean(dim=1), atol=1e-6)
    assert torch.allclose(found[f"{name}.running_var"].double(), values.var(dim=1), rtol=1e-5)
