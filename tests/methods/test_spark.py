import copy
import re
from typing import Any

import pytest
import torch
from torch import Tensor

from raysl.components import Classes
from raysl.config.load import load_config
from raysl.data.batch import Batch
from raysl.errors import ConfigError
from raysl.losses import unpatchify
from raysl.methods.shared.device import recomputed_units
from raysl.methods.spark import SparK
from raysl.nn.backbones.resnet import ResNet
from raysl.nn.recompute import recompute
from raysl.plan.setup import Setup
from raysl.schedule import Step
from raysl.train.prepare import check_views
from raysl.train.view_stages import describe_stages, view_stages
from raysl.transforms import RandomMask, SampleRandom

STEP = Step(0, 10, 5)
NUM = 3


def setup_of(*words: str) -> Setup:
    """Digits of 16 pixels in 4 x 4 squares of 4, whose maps have 16, 8 and 4 places a side."""
    small = ("backbone.width=4", "method.decoder_width=16", f"train.batch_size={NUM}")
    return Setup.of(load_config("digits/spark", [*small, *words]), NUM)


def small_spark(*words: str) -> Any:
    torch.manual_seed(0)
    setup = setup_of(*words)
    SparK.check(setup)
    return SparK(setup, ResNet(setup.config.backbone)).double()


def batch_of(side: int = 16, images: Tensor | None = None) -> Batch:
    """Three images of one view with squares of 4 pixels, 10 of 16 hidden as in training."""
    if images is None:
        generator = torch.Generator().manual_seed(1)
        images = torch.randn(NUM, 1, 3, side, side, dtype=torch.float64, generator=generator)
    random = SampleRandom(seed=0, epoch=0, index=torch.arange(NUM).numpy(), view=0)
    mask = RandomMask(patch_size=4, ratio=0.6).draw(random, (side, side))[:, None]
    return Batch({"global": images}, torch.arange(NUM), torch.full((NUM,), -1), extras={"global.mask": mask})


def gradients(method: Any, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
    method.zero_grad()
    out = method(batch, STEP)
    out.loss.backward()
    method.after_backward(STEP)
    return out.loss.detach(), {name: p.grad.clone() for name, p in method.named_parameters()}


def hidden_pixels(batch: Batch) -> Tensor:
    """Bool [B, V, 1, H, W]."""
    return batch.extras["global.mask"].repeat_interleave(4, dim=2).repeat_interleave(4, dim=3)[:, :, None]


@pytest.mark.thorough
def test_loss_is_the_mean_error_of_the_normalised_pixels_of_hidden_squares() -> None:
    method, batch = small_spark(), batch_of()
    loss = method(batch, STEP).loss
    images, masks = batch.views["global"][:, 0], batch.extras["global.mask"][:, 0]
    with torch.no_grad():
        _, patches = copy.deepcopy(method)._predict(images, masks)
    predicted = unpatchify(patches, 4, 16, 16)
    terms = []
    for image, mask, drawn in zip(images, masks, predicted, strict=True):
        for row, column in mask.nonzero().tolist():
            at = slice(4 * row, 4 * row + 4), slice(4 * column, 4 * column + 4)
            square = image[:, *at]
            target = (square - square.mean()) / (square.var() + 1e-6).sqrt()
            terms.append((drawn[:, *at] - target).square().mean())
    assert len(terms) == NUM * 10
    torch.testing.assert_close(loss, torch.stack(terms).mean(), rtol=1e-9, atol=0)


@pytest.mark.thorough
def test_visible_squares_are_not_predicted() -> None:
    method, batch = small_spark(), batch_of()
    images = batch.views["global"].flatten(0, 1)
    patches = method._predict(images, batch.extras["global.mask"].flatten(0, 1))[1].detach().requires_grad_()
    method._predict = lambda images, mask: ({method.stages[0]: torch.zeros(NUM, 16, 4, 4)}, patches)
    method(batch, STEP).loss.backward()
    used = patches.grad.abs().sum(dim=2) > 0  # type: ignore[union-attr]
    assert torch.equal(used, batch.extras["global.mask"].view(NUM, -1))


@pytest.mark.thorough
def test_predictions_and_gradients_know_nothing_of_hidden_pixels() -> None:
    method, batch = small_spark("method.is_normalised=false"), batch_of()
    hidden, mask = hidden_pixels(batch), batch.extras["global.mask"][:, 0]
    images = batch.views["global"]
    found = []
    for other in (0.0, 100.0):
        changed = torch.where(hidden, images + other, images)[:, 0].requires_grad_()
        copied = copy.deepcopy(method)
        maps, patches = copied._predict(changed, mask)
        patches.sum().backward()
        assert not changed.grad[hidden[:, 0].expand_as(changed)].any()
        assert changed.grad[~hidden[:, 0].expand_as(changed)].any()
        weights = [parameter.grad for parameter in copied.parameters() if parameter.grad is not None]
        statistics = [value for name, value in copied.named_buffers() if "running" in name]
        found.append([*maps.values(), patches, *weights, *statistics])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_maps_are_empty_in_hidden_squares_and_the_decoder_gets_a_learned_vector_there() -> None:
    method, batch = small_spark(), batch_of()
    mask = batch.extras["global.mask"][:, 0]
    maps, _ = method._predict(batch.views["global"][:, 0], mask)
    assert list(maps) == ["res4", "res3"]
    for number, (name, layer) in enumerate(zip(maps, method.densify, strict=True)):
        hidden = mask.repeat_interleave(2**number, dim=1).repeat_interleave(2**number, dim=2)
        places = maps[name].permute(0, 2, 3, 1)  # [B, H, W, C]
        assert not places[hidden].any()
        assert places[~hidden].any()
        project, layer.project = layer.project, torch.nn.Identity()
        filled = layer(maps[name], method.sparse).permute(0, 2, 3, 1)
        layer.project = project
        assert torch.equal(filled[hidden], layer.mask_token.expand_as(filled[hidden]))
        torch.testing.assert_close(
            filled[~hidden].mean(dim=0), torch.zeros(places.shape[3]), atol=1e-9, rtol=0, check_dtype=False
        )
    method.sparse.show_all()


def test_statistics_of_the_first_normalisation_are_those_of_visible_places() -> None:
    method, batch = small_spark(), batch_of()
    images, hidden = batch.views["global"][:, 0], hidden_pixels(batch)[:, 0, 0]
    maps = torch.nn.functional.conv2d(images * ~hidden[:, None], method.backbone.conv1.weight, padding=1)
    values = maps.permute(0, 2, 3, 1)[~hidden]  # [places, C]
    method(batch, STEP)
    norm = method.backbone.bn1
    torch.testing.assert_close(norm.running_mean, 0.1 * values.mean(dim=0))
    torch.testing.assert_close(norm.running_var, 0.9 + 0.1 * values.var(dim=0))


def test_the_decoder_adds_each_map_and_doubles_the_side_where_it_halves_the_width() -> None:
    method = small_spark()
    decoder = method.decoder
    torch.manual_seed(1)
    maps = [torch.randn(2, 16 // 2**n, 4 * 2**n, 4 * 2**n, dtype=torch.float64) for n in range(3)]
    assert len(decoder.blocks) == 2, "the last map has a side of 4 pixels, a quarter of the view"
    first = decoder.blocks[0](maps[0])
    assert first.shape == (2, 8, 8, 8)
    expected = decoder.pixels(decoder.blocks[1](first + maps[1]))
    assert expected.shape == (2, 3, 16, 16)
    torch.testing.assert_close(decoder(maps[:2]), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.thorough
def test_fewer_maps_and_equal_widths_are_those_of_the_settings() -> None:
    method = small_spark("method.num_maps=1")
    assert method.stages == ("res4",)
    assert isinstance(method.densify[0].project, torch.nn.Identity), "16 channels of the map are the decoder's"
    wider = small_spark("method.num_maps=1", "method.decoder_width=32").densify[0].project
    assert (wider.in_channels, wider.out_channels, wider.kernel_size) == (16, 32, (1, 1))
    sizes = [layer.project.kernel_size for layer in small_spark("method.decoder_width=32").densify]
    assert sizes == [(1, 1), (3, 3)]


@pytest.mark.thorough
def test_each_image_has_a_mask_of_its_own_that_hides_29_of_49_squares() -> None:
    setup = Setup.of(load_config("spark", ["data.path=/somewhere"]), 4096)
    SparK.check(setup)
    (view,) = SparK.views(setup).groups["global"]
    assert view.mask == RandomMask(patch_size=32, ratio=0.6)
    random = SampleRandom(seed=0, epoch=0, index=torch.arange(8).numpy(), view=0)
    masks = view.mask.draw(random, (224, 224))
    assert masks.shape == (8, 7, 7)
    assert masks.flatten(1).sum(dim=1).tolist() == [29] * 8
    assert len({tuple(mask.flatten().tolist()) for mask in masks}) == 8


@pytest.mark.thorough
def test_views_are_the_authors() -> None:
    setup = Setup.of(load_config("spark", ["data.path=/somewhere"]), 4096)
    (view,) = SparK.views(setup).groups["global"]
    assert (view.crop.size, view.crop.scale, view.crop.interpolation) == (224, (0.67, 1.0), "bicubic")
    assert [type(transform).__name__ for transform in view.transforms] == ["HorizontalFlip"]


@pytest.mark.thorough
def test_the_backbone_sees_whole_images_before_and_after_a_step() -> None:
    method, batch = small_spark(), batch_of()
    images = batch.views["global"][:, 0]
    plain = ResNet(method.setup.config.backbone).double()
    plain.load_state_dict(method.backbone.state_dict())
    assert torch.equal(method.backbone.eval()(images), plain.eval()(images))
    out = method.train()(batch, STEP)
    plain.load_state_dict(method.backbone.state_dict())
    assert torch.equal(method.export().eval()(images), plain(images)), "before the backward pass"
    method.train()
    out.loss.backward()
    method.after_backward(STEP)
    assert torch.equal(method.export().eval()(images), plain(images))
    method.reconstruct(batch)
    assert torch.equal(method.backbone(images), plain(images))


@pytest.mark.thorough
def test_features_of_the_log_are_means_over_visible_places(monkeypatch: pytest.MonkeyPatch) -> None:
    method, batch = small_spark(), batch_of()
    images, mask = batch.views["global"][:, 0], batch.extras["global.mask"][:, 0]
    maps, _ = copy.deepcopy(method)._predict(images, mask)
    means = [places[~hidden].mean(dim=0) for places, hidden in zip(maps["res4"].permute(0, 2, 3, 1), mask, strict=True)]
    logged: list[Tensor] = []
    monkeypatch.setattr("raysl.methods.spark.batch_collapse", lambda h: logged.append(h) or {})
    method(batch, STEP)
    torch.testing.assert_close(logged[0], torch.stack(means)[:, None].detach(), rtol=1e-9, atol=1e-12)


@pytest.mark.thorough
def test_layers_that_are_computed_again_in_the_backward_pass_see_the_mask() -> None:
    stored, again = small_spark(), small_spark("train.recompute=all")
    recompute(recomputed_units(again, again.setup.config.train))
    batch = batch_of()
    (loss, grads), (other, others) = gradients(stored, batch), gradients(again, batch)
    assert torch.equal(loss, other)
    for name, grad in grads.items():
        torch.testing.assert_close(others[name], grad, rtol=1e-12, atol=1e-15)
    images = batch.views["global"][:, 0]
    assert torch.equal(stored.backbone.eval()(images), again.backbone.eval()(images))


@pytest.mark.thorough
@pytest.mark.parametrize("images", [torch.zeros(NUM, 1, 3, 16, 16), torch.full((NUM, 1, 3, 16, 16), 1e6)])
def test_flat_and_huge_images_leave_the_loss_finite(images: Tensor) -> None:
    method = small_spark().float()
    loss, grads = gradients(method, batch_of(images=images))
    assert loss.isfinite()
    assert all(grad.isfinite().all() for grad in grads.values())


@pytest.mark.thorough
def test_half_precision_gives_a_loss_in_fp32_and_trains_every_parameter() -> None:
    method, batch = small_spark().float(), batch_of()
    with torch.autocast("cpu", torch.bfloat16):
        out = method(batch.map(lambda values: values.float() if values.is_floating_point() else values), STEP)
    assert out.loss.dtype == torch.float32
    out.loss.backward()
    assert all(parameter.grad.abs().max() > 0 for parameter in method.parameters())


@pytest.mark.thorough
def test_smaller_views_have_fewer_squares_of_the_same_side() -> None:
    method = small_spark()
    batch = batch_of(side=8)
    assert batch.extras["global.mask"].flatten(1).sum(dim=1).tolist() == [2] * NUM
    loss, _ = gradients(method, batch)
    assert loss.isfinite()
    words = ["train.batch_size=16", "train.epochs=4", "train.view_scale={0%: 0.5, 50%: 1}"]
    config = load_config("cifar10/spark", words)
    setup, classes = Setup.of(config, 48, 10), Classes.of(config)
    stages = view_stages(setup, classes, check_views(setup, classes))
    assert describe_stages(stages) == "views of 16 px from epoch 0 on, 32 px from epoch 2 on"
    masks = [recipe.groups["global"][0].mask for _, recipe in stages]
    assert masks == [RandomMask(patch_size=8, ratio=0.6)] * 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("method.decoder_width=18",), "method.decoder_width is 18, and is halved 2 times; give a multiple of 4"),
        (
            ("method.mask_ratio=0.98",),
            "hides 16 of the 16 squares of 4 pixels of a view; SparK needs hidden and visible",
        ),
        (("method.mask_ratio=0.01",), "hides 0 of the 16 squares of 4 pixels"),
        (
            ("data.image_size=18",),
            "views of 18 pixels become maps of 5, and SparK's decoder doubles these until they are",
        ),
        (("backbone=vit", "backbone.size=nano"), "backbone 'vit' names no stages that are maps; set backbone=resnet"),
        (
            ("backbone.depth=14", "backbone.width=8", "backbone.sk_ratio=0.25"),
            "SparK hides squares of an image from every layer, and backbone 'resnet' does not allow it: ",
        ),
    ],
)
def test_check_refuses_networks_views_and_masks_that_cannot_be(words: tuple[str, ...], message: str) -> None:
    config = load_config("digits/spark", ["train.batch_size=2", *words])
    with pytest.raises(ConfigError, match=re.escape(message)):
        SparK.check(Setup.of(config, NUM))
