import math
import re
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from raysl.config.load import load_config
from raysl.data.batch import Batch
from raysl.errors import ConfigError
from raysl.losses import batch_info_nce, masked_patch_mse, negative_cosine, patchify
from raysl.methods.cmae import CMAE
from raysl.nn.backbones.vit import ViT
from raysl.plan.setup import Setup
from raysl.schedule import Step
from raysl.transforms.masking import UnitMask

STEP = Step(0, 10, 5)
NUM = 4
VISIBLE = ((1, 4, 8, 15), (0, 2, 5, 11), (3, 6, 9, 12), (7, 10, 13, 14))  # of 16 patches


def setup_of(*words: str) -> Setup:
    small = ["backbone.width=8", "backbone.heads=2", "backbone.depth=2", f"train.batch_size={NUM}"]
    own = [
        "method.decoder_width=12",
        "method.decoder_heads=2",
        "method.hidden_dim=7",
        "method.output_dim=5",
        "method.mask_ratio=0.75",
    ]
    return Setup.of(load_config("digits/cmae", [*small, *own, *words]), 6)


def small_method(*words: str) -> CMAE:
    torch.manual_seed(0)
    setup = setup_of(*words)
    return CMAE(setup, ViT(setup.config.backbone)).double()


def batch_of(dtype: torch.dtype = torch.float64) -> Batch:
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(2, NUM, 1, 3, 16, 16, dtype=dtype, generator=generator)
    mask = torch.ones(NUM, 16, dtype=torch.bool)
    for image in range(NUM):
        mask[image, list(VISIBLE[image])] = False
    extras = {"global.mask": mask.view(NUM, 1, 4, 4)}
    views = {"global": images[0], "shifted": images[1]}
    return Batch(views, torch.arange(NUM), torch.full((NUM,), -1), extras=extras)


@pytest.mark.parametrize("words", [(), ("method.target_norm=true", "method.contrast_weight=0.3")])
def test_loss_is_the_error_of_hidden_pixels_and_the_contrast_of_images(words: tuple[str, ...]) -> None:
    method, batch = small_method(*words), batch_of()
    with torch.no_grad():
        method.teacher.module[0].cls_token += 0.5  # another network than the student's
        method.teacher.module[0].norm.weight += torch.linspace(0, 1, 8)
    out = method(batch, STEP)
    keep = torch.tensor(VISIBLE)
    tokens = method.backbone.visible_tokens(batch.views["global"][:, 0], keep)
    said, patches = method.decoder(tokens, keep), patchify(batch.views["global"][:, 0], 4)
    errors = []
    for image in range(NUM):
        for place in set(range(16)) - set(VISIBLE[image]):
            pixels = patches[image, place]
            target = (pixels - pixels.mean()) / (pixels.var() + 1e-6).sqrt()
            errors.append((said[image, place] - target).square().mean())
    q = method.predictor(method.projector(method.feature_decoder(tokens, keep).mean(dim=1)))
    teacher, projector = method.teacher.module
    whole = teacher.stages(batch.views["shifted"][:, 0], ["block2", "norm"])
    k = projector(whole["norm" if method.config.target_norm else "block2"][:, 1:].mean(dim=1))
    terms = []
    for image in range(NUM):
        scores = [F.cosine_similarity(q[image], k[other], dim=0).item() / 0.2 for other in range(NUM)]
        terms.append(-math.log(math.exp(scores[image]) / sum(map(math.exp, scores))))
    pixels, contrast = torch.stack(errors).mean().item(), 2 * 0.2 * sum(terms) / NUM
    assert out.loss.item() == pytest.approx(pixels + method.config.contrast_weight * contrast, rel=1e-9)
    assert out.metrics["reconstruction"].item() == pytest.approx(pixels, rel=1e-9)
    assert out.metrics["contrast"].item() == pytest.approx(contrast, rel=1e-9)
    assert tuple(out.metrics) == CMAE.logged


@pytest.mark.thorough
def test_the_error_of_pixels_is_stable_pretrainings_whose_contrast_is_byols(monkeypatch: pytest.MonkeyPatch) -> None:
    peers = pytest.importorskip("stable_pretraining.methods.cmae")
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    sizes = {"img_size": 16, "patch_size": 4, "embed_dim": 8, "depth": 1, "num_heads": 2, "num_classes": 0}
    network = timm.models.vision_transformer.VisionTransformer(**sizes)
    peer = peers.CMAE(network, patch_size=4, image_size=16, projector_dim=6).double()
    batch, seen = batch_of(), {}
    mask = batch.extras["global.mask"].flatten(1)
    monkeypatch.setattr(peer, "_random_mask", lambda *_, **__: mask.double())

    def keep(name: str) -> None:
        getattr(peer, name).register_forward_hook(lambda _, __, output: seen.setdefault(name, output))

    keep("recon_head")
    keep("predictor")
    peer.projector.teacher.register_forward_hook(lambda _, __, output: seen.setdefault("target", output))
    theirs = peer(batch.views["global"][:, 0], batch.views["shifted"][:, 0])
    pixels = peers.patchify(batch.views["global"][:, 0], (3, 4, 4))
    ours = masked_patch_mse(seen["recon_head"], pixels, mask)
    assert ours.item() == pytest.approx(theirs.loss_recon.item(), rel=1e-9)
    byols = negative_cosine(seen["predictor"], seen["target"])
    assert theirs.loss_contrast.item() == pytest.approx(byols.item(), rel=1e-9)


def test_contrast_with_the_batch_is_a_cross_entropy() -> None:
    q, keys = torch.randn(3, 5, dtype=torch.float64), torch.randn(7, 5, dtype=torch.float64)
    rows = torch.tensor([2, 6, 0])
    loss, hits = batch_info_nce(q, keys, rows, 0.3)
    scores = torch.stack([F.cosine_similarity(query[None], keys) / 0.3 for query in q])
    own = scores[torch.arange(3), rows]
    assert loss.item() == pytest.approx((scores.exp().sum(dim=1).log() - own).mean().item(), rel=1e-9)
    assert hits.item() == pytest.approx((own == scores.max(dim=1).values).float().mean().item())


def test_the_contrast_sees_no_hidden_pixel_of_the_masked_image() -> None:
    method, batch = small_method(), batch_of()
    images = batch.views["global"][:, 0].requires_grad_()
    keep = torch.tensor(VISIBLE)
    tokens = method.backbone.visible_tokens(images, keep)
    method.feature_decoder(tokens, keep).square().sum().backward()
    assert images.grad is not None
    sums = patchify(images.grad, 4).abs().sum(dim=2)  # [NUM, 16]
    for image, visible in enumerate(VISIBLE):
        assert {place for place in range(16) if sums[image, place] > 0} == set(visible)


def test_backbone_and_projector_are_followed_and_all_else_trains_in_half_precision_too() -> None:
    method = small_method("method.momentum=0.9", "method.momentum_end=0.9").float()
    batch = batch_of(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        out = method(batch, STEP)
    out.loss.backward()
    assert out.loss.dtype == torch.float32
    assert all(p.grad is not None for p in method.parameters() if p.requires_grad)
    assert all(p.grad is None for p in method.teacher.parameters())
    before = method.teacher.module[1][0].weight.clone()
    method.projector[0].weight.data += 1.0
    method.after_update(STEP, batch, out.carry)
    torch.testing.assert_close(method.teacher.module[1][0].weight, before + 0.1)


@pytest.mark.thorough
def test_views_are_those_of_the_authors() -> None:
    setup = Setup.of(load_config("cmae", ["data.path=/somewhere"]), 8192)
    CMAE.check(setup)
    groups = CMAE.views(setup).groups
    (masked,), (whole,) = groups["global"], groups["shifted"]
    assert masked.mask == UnitMask(patch_size=16, unit_size=32, ratio=0.65)
    assert whole.mask is None
    backbone = ViT.without_weights(setup.config.backbone)
    with torch.device("meta"):
        assert CMAE(setup, backbone).num_visible == 17 * 4


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("method.views.num=2",), "method.views.num is 2; CMAE contrasts one pair an image"),
        (("method.mask_size=6",), "method.mask_size is 6, and has to be a multiple of patches of 4 pixels"),
        (("method.mask_ratio=0.99",), "masks 16 of the 16 patches"),
        (("method.mask_size=8", "method.mask_ratio=0.8"), "masks 16 of the 16 patches"),
        (("train.batch_size=1",), "CMAE contrasts images: at least 2"),
    ],
)
def test_check_refuses_what_cannot_work(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        CMAE.check(setup_of(*words))


def test_a_backbone_that_names_no_blocks_takes_the_final_norm() -> None:
    setup = setup_of()
    setup = replace(setup, backbone=replace(setup.backbone, stages={"norm": 8}))
    with pytest.raises(ConfigError, match=r"set method\.target_norm=true, or backbone=vit"):
        CMAE.check(setup)
