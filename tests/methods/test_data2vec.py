import copy
import re
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from raysl.config.load import load_config
from raysl.data.batch import Batch
from raysl.errors import ConfigError
from raysl.methods.data2vec import Data2Vec
from raysl.plan.setup import Setup
from raysl.schedule import Step
from raysl.transforms import ColorJitter
from raysl.transforms.masking import BlockMask
from tests.methods.masked_images import batch_of, setup_of, small

STEP = Step(0, 10, 5)
MASKED = ((0, 1, 4, 5, 10, 11), (2, 3, 6, 7, 8, 9, 12, 13))  # of 16 patches, not equally many


def small_data2vec(*words: str) -> Data2Vec:
    method: Any = small("data2vec", *words)
    with torch.no_grad():  # a teacher unlike its student
        for parameter in method.teacher.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return method


def normalised(values: Tensor) -> Tensor:
    return (values - values.mean()) / (values.var(correction=0) + 1e-5).sqrt()


@pytest.mark.parametrize("beta", [2.0, 0.3])
@pytest.mark.parametrize("is_renormalised", [False, True])
def test_loss_is_smooth_l1_to_the_mean_of_normalised_layers(beta: float, is_renormalised: bool) -> None:
    method = small_data2vec(f"method.beta={beta}", f"method.is_renormalised={is_renormalised}")
    batch, terms = batch_of(MASKED), []
    for image in range(2):
        pixels, mask = batch.views["global"][image], batch.extras["global.mask"][image]
        predicted = method.head(method.backbone.tokens(pixels, mask))[0, 1:]  # [16, D]
        layers = method.teacher.module.stages(pixels, ["block2", "block3"])  # the last 2 of 3, of the whole image
        for place in MASKED[image]:
            y = sum(normalised(layer[0, 1 + place]) for layer in layers.values()) / 2
            y = normalised(y) if is_renormalised else y
            for error in (predicted[place] - y).abs():
                terms.append(error**2 / (2 * beta) if error <= beta else error - beta / 2)
    assert len(terms) == (6 + 8) * 8  # every patch counts alike
    torch.testing.assert_close(method(batch, STEP).loss, torch.stack(terms).mean(), rtol=1e-9, atol=0)


def test_gradients_reach_the_student_alone() -> None:
    method = small_data2vec()
    out = method(batch_of(MASKED), STEP)
    out.loss.backward()
    trained = {name for name, parameter in method.named_parameters() if parameter.grad is not None}
    assert trained == {name for name, _ in method.named_parameters() if not name.startswith("teacher.")}
    assert tuple(out.metrics) == Data2Vec.logged
    assert method.export() is method.backbone


@pytest.mark.parametrize("shares_embedding", [True, False])
def test_the_teacher_follows_and_has_the_students_embedding_where_it_is_shared(shares_embedding: bool) -> None:
    words = ("method.momentum=0.9", "method.momentum_start=0.5", "method.momentum_warmup=8st")
    method = small_data2vec("backbone.position=learned", f"method.shares_embedding={shares_embedding}", *words)
    before = copy.deepcopy(method.teacher.module)
    method.after_update(Step(2, 10, 5), batch_of(MASKED), {})
    student, then = dict(method.backbone.named_parameters()), dict(before.named_parameters())
    for name, now in method.teacher.module.named_parameters():
        averaged = 0.6 * then[name] + 0.4 * student[name]  # 2 of 8 steps from 0.5 to 0.9
        is_embedding = name in ("patch_embed.proj.weight", "patch_embed.proj.bias", "pos_embed")
        expected = student[name] if is_embedding and shares_embedding else averaged
        torch.testing.assert_close(now, expected)


def test_the_teacher_leaves_out_no_layers_and_sees_the_whole_image() -> None:
    method, batch = small_data2vec("backbone.drop_path=0.9"), batch_of(MASKED)
    images = batch.views["global"].flatten(0, 1)
    first, second = method._targets(images), method._targets(images)
    assert torch.equal(first, second)
    layers = method.teacher.module.eval().stages(images, ["block2", "block3"]).values()
    expected = sum(F.layer_norm(layer[:, 1:], (8,)) for layer in layers) / 2
    torch.testing.assert_close(first, expected)


@pytest.mark.thorough
def test_a_mask_of_none_and_flat_images_leave_the_loss_finite() -> None:
    for images in (torch.zeros(2, 1, 3, 16, 16), 1e6 * torch.randn(2, 1, 3, 16, 16)):
        method, batch = small_data2vec().float(), batch_of(MASKED, images)
        for mask in (batch.extras["global.mask"], torch.zeros(2, 1, 4, 4, dtype=torch.bool)):
            out = method(Batch(batch.views, batch.index, batch.label, extras={"global.mask": mask}), STEP)
            out.loss.backward()
            assert out.loss.isfinite()
            assert all(p.grad.isfinite().all() for p in method.parameters() if p.grad is not None)


def test_the_published_settings() -> None:
    setup = Setup.of(load_config("data2vec", ["data.path=/somewhere"]), 4096)
    Data2Vec.check(setup)
    (view,) = Data2Vec.views(setup).groups["global"]
    assert (view.crop.size, view.crop.scale) == (224, (0.08, 1.0))
    assert [type(transform).__name__ for transform in view.transforms] == ["HorizontalFlip", "ColorJitter"]
    assert view.transforms[1] == ColorJitter(p=1.0, brightness=0.4, contrast=0.4, saturation=0.4, hue=0.0)
    assert view.mask == BlockMask(patch_size=16, ratios=((0.6125, 0.0),))
    assert view.mask.most_masked(196) == 120
    method = setup.method
    assert (method.num_layers, method.beta, method.momentum_start, method.momentum) == (6, 2.0, 0.9998, 0.9998)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("method.num_layers=4",), "method.num_layers is 4, and the backbone has 3 blocks; give 3 or fewer"),
        (("method.mask_ratio=0.05",), "method.mask_ratio=0.05 masks none of the 16 patches"),
        (("backbone.mask_token=false",), "set backbone.mask_token=true"),
        (("method.views.size=18", "data.image_size=16"), "views of 18 pixels are not covered by patches of 4"),
    ],
)
def test_check_refuses_what_cannot_work(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        Data2Vec.check(setup_of("data2vec", *words))
