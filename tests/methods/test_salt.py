import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from raysl.config.load import load_config
from raysl.data.batch import Batch
from raysl.errors import ConfigError
from raysl.losses import patchify
from raysl.methods.salt import SALT
from raysl.plan.setup import Setup
from raysl.schedule import Step
from raysl.train.state import TrainState
from raysl.transforms.multi_block import MultiBlockMask
from raysl.transforms.random import SampleRandom

STEP = Step(0, 10, 5)
SMALL = (
    "backbone.width=8",
    "backbone.heads=2",
    "backbone.depth=2",
    "method.predictor_width=12",
    "method.predictor_heads=2",
    "train.batch_size=3",
    "method.target=latents",
    "method.teacher=untrained",
)
PIXELS = ("method.target=pixels", "method.teacher=null")


def setup_of(*words: str) -> Setup:
    return Setup.of(load_config("digits/salt", [*SMALL, *words]), 6)


def small_method(*words: str) -> SALT:
    setup = setup_of(*words)
    SALT.check(setup)
    method = TrainState.create(setup).method.double()
    assert isinstance(method, SALT)
    return method


def batch_of(images: Tensor | None = None) -> Batch:
    if images is None:
        images = torch.randn(3, 1, 3, 16, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    extras = MultiBlockMask(patch_size=4, min_context=4).extras(SampleRandom(0, 0, np.arange(3), 0).at(1), (16, 16))
    told = {f"global.{name}": value[:, None] for name, value in extras.items()}
    return Batch({"global": images}, torch.arange(3), torch.full((3,), -1), extras=told)


def predicted(method: SALT, batch: Batch, image: int) -> tuple[list[int], Tensor]:
    """The hidden patches of an image, and what is predicted of them, without padding."""
    pixels, predictor = batch.views["global"][image], method.predictor
    seen = (~batch.extras["global.mask"][image].flatten()).nonzero()[:, 0]
    places = sorted(
        {int(place) for block in batch.extras["global.targets"][image, 0] for place in block.flatten().nonzero()}
    )
    context = method.backbone.visible_tokens(pixels, seen[None])[0, 1:]
    told = predictor.embed(context) + predictor.positions[seen]
    x = torch.cat([told, predictor.mask_token + predictor.positions[places]])[None]
    for layer in predictor.blocks:
        x = layer(x)
    return places, predictor.head(predictor.norm(x))[0, len(seen) :]


def test_the_student_learns_the_teachers_output_for_the_whole_image() -> None:
    method, batch = small_method(), batch_of()
    terms, sizes = [], set()
    for image in range(3):
        places, told = predicted(method, batch, image)
        wanted = method.teacher.tokens(batch.views["global"][image])[0, 1:][places]
        terms.append((told - wanted).abs().mean())
        sizes.add(len(places))
    assert len(sizes) > 1
    out = method(batch, STEP)
    torch.testing.assert_close(out.loss, torch.stack(terms).mean(), rtol=1e-9, atol=0)
    assert tuple(out.metrics) == SALT.logged


@pytest.mark.parametrize("is_normalised", [True, False])
def test_the_teacher_learns_pixels_of_the_same_patches(is_normalised: bool) -> None:
    method, batch = small_method(*PIXELS, f"method.is_normalised={is_normalised}"), batch_of()
    terms = []
    for image in range(3):
        places, told = predicted(method, batch, image)
        pixels = patchify(batch.views["global"][image], 4)[0, places]
        if is_normalised:
            pixels = torch.stack([(row - row.mean()) / (row.var() + 1e-6).sqrt() for row in pixels])
        terms.append((told - pixels).square().mean())
    torch.testing.assert_close(method(batch, STEP).loss, torch.stack(terms).mean(), rtol=1e-9, atol=0)
    assert method.teacher is None


@pytest.mark.thorough
def test_the_loss_is_stable_pretrainings(monkeypatch: pytest.MonkeyPatch) -> None:
    peers = pytest.importorskip("stable_pretraining.methods.salt")
    batch = batch_of()
    for values in batch.extras.values():  # the peer hides the same blocks of all images
        values[:] = values[:1].clone()
    method = small_method()
    images = batch.views["global"][:, 0]
    hidden = batch.extras["global.targets"][0, 0].any(dim=0).flatten().nonzero()[:, 0]
    seen = (~batch.extras["global.mask"][0].flatten()).nonzero()[:, 0]
    given = torch.randn(3, len(hidden), 8, dtype=torch.float64)

    class Encoder(torch.nn.Module):
        """raysl's ViT by the names that the peer calls."""

        num_prefix_tokens, embed_dim, default_grid_h, default_grid_w = 1, 8, 4, 4

        def __init__(self, network: torch.nn.Module) -> None:
            super().__init__()
            self.network = network

        def forward(self, images: Tensor) -> object:
            return type("Output", (), {"encoded": self.network.tokens(images)})

        def patch_embed(self, images: Tensor) -> Tensor:
            return self.network.patch_embed(images)

        def _get_grid_size(self, images: Tensor) -> tuple[int, int]:
            return 4, 4

    peer = peers.SALT.__new__(peers.SALT)
    torch.nn.Module.__init__(peer)
    peer.teacher, peer.student, peer.embed_dim = Encoder(method.teacher), Encoder(method.backbone), 8
    monkeypatch.setattr(peer, "_generate_masks", lambda *_: (seen, hidden), raising=False)
    monkeypatch.setattr(peer, "_encode", lambda *_: method.backbone.visible_tokens(images, seen.expand(3, -1)))
    peer.predictor = lambda **_: given
    theirs = peers.SALT.forward(peer, images)

    def padded(*_: Tensor) -> Tensor:
        return F.pad(given, (0, 0, 0, method.num_hidden - len(hidden)))[:, None]

    monkeypatch.setattr(method.predictor, "forward", padded)
    assert method(batch, STEP).loss.item() == pytest.approx(theirs.loss.item(), rel=1e-9)


def test_the_student_knows_nothing_of_what_is_hidden() -> None:
    method, batch = small_method(), batch_of()
    images = batch.views["global"].clone().requires_grad_()
    targets = method._targets(images.flatten(0, 1)).detach()
    method._targets = lambda _: targets  # type: ignore[method-assign]
    method(Batch({"global": images}, batch.index, batch.label, extras=batch.extras), STEP).loss.backward()
    assert images.grad is not None
    patches = images.grad.unfold(3, 4, 4).unfold(4, 4, 4).abs().sum(dim=(2, 5, 6))
    assert torch.equal(patches == 0, batch.extras["global.mask"])


@pytest.mark.thorough
def test_a_smaller_run_of_pixels_teaches_a_larger_student_and_stays_as_it_is(tmp_path: Path) -> None:
    words = ("backbone.width=12", "backbone.heads=3", "seed=5")
    first = TrainState.create(setup_of(*PIXELS, *words))
    first.save(tmp_path / "checkpoint_000000003", {})
    method = small_method(f"method.teacher={tmp_path}")
    assert method.given_parts == {"teacher": "teacher"}
    weights = {name: value.double() for name, value in first.method.backbone.state_dict().items()}
    batch = batch_of()
    method(batch, STEP).loss.backward()
    assert method.predictor.head.out_features == 12
    assert all(torch.equal(value, weights[name]) for name, value in method.teacher.state_dict().items())
    trained = {name for name, parameter in method.named_parameters() if parameter.grad is not None}
    assert trained == {name for name, _ in method.named_parameters() if not name.startswith("teacher.")}
    assert method.export() is method.backbone


@pytest.mark.thorough
def test_check_refuses_a_missing_teacher_and_one_of_other_patches(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"method\.teacher is not given; SALT has two runs: first method"):
        SALT.check(setup_of("method.teacher=null"))
    with pytest.raises(ConfigError, match=r"method\.teacher is untrained, and pixels need none"):
        SALT.check(setup_of("method.target=pixels"))
    TrainState.create(setup_of(*PIXELS, "backbone.patch_size=8", "method.min_context=1")).save(
        tmp_path / "checkpoint_000000003", {}
    )
    with pytest.raises(ConfigError, match=r"method\.teacher has patches of 8, and the student patches of 4 pixels"):
        SALT.check(setup_of(f"method.teacher={tmp_path}"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("method.min_context=16",), "a context has at most"),
        (("method.predictor_heads=5",), "method.predictor_width is 12, and has to be a multiple of 4"),
        (("method.views.size=18", "data.image_size=16"), "views of 18 pixels are not covered by patches of 4"),
    ],
)
def test_check_refuses_what_cannot_work(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        SALT.check(setup_of(*words))


@pytest.mark.slow
def test_a_student_of_a_trained_teacher_beats_the_untrained_network(tmp_path: Path) -> None:
    import raysl

    settings = [f"storage={tmp_path}", "benchmarks=[low_shot]"]
    raysl.pretrain(load_config("digits/salt", [*settings, "name=salt_teacher", "benchmarks={}"]))
    words = [*settings, f"method.teacher={tmp_path}/salt_teacher"]
    result = raysl.pretrain(load_config("continue/salt_digits", words))
    assert result.report is not None
    scores = result.report.metrics
    assert scores["low_shot/5_shot"] > scores["low_shot/5_shot/untrained"] + 20
