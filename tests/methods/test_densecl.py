import pytest
import torch
from torch.nn import functional as F

from raysl.config.load import load_config
from raysl.data.batch import Batch
from raysl.errors import ConfigError
from raysl.methods.densecl import DenseCL
from raysl.nn.backbones.maps import features_and_map, last_map
from raysl.nn.backbones.resnet import ResNet
from raysl.nn.backbones.vit import ViT
from raysl.plan.setup import Setup
from raysl.schedule import Step

STEP = Step(0, 10, 5)
NUM = 6


def setup_of(*words: str) -> Setup:
    small = ["backbone.num_stages=2", "backbone.width=4", "method.hidden_dims=[16]", "method.dense_hidden_dim=7"]
    own = ["method.output_dim=5", "method.queue_size=9", f"train.batch_size={NUM}"]
    return Setup.of(load_config("digits/densecl", [*small, *own, *words]), NUM)


def small_densecl(*words: str) -> DenseCL:
    torch.manual_seed(0)
    setup = setup_of(*words)
    return DenseCL(setup, ResNet(setup.config.backbone)).double()


def whole_batch() -> Batch:
    images = torch.randn(NUM, 2, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return Batch({"global": images}, torch.arange(NUM), torch.full((NUM,), -1))


def cross_entropy(query: torch.Tensor, key: torch.Tensor, queue: torch.Tensor, temperature: float) -> float:
    """Of picking a key among the queue."""
    query = query / query.norm() / temperature
    scores = torch.stack([query @ (key / key.norm()), *(query @ row for row in queue)])
    return (scores.logsumexp(dim=0) - scores[0]).item()


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("words", [(), ("method.key_bn=shuffle", "train.sync_bn=false")], ids=["sync", "shuffle"])
def test_loss_is_equation_3(share: float, words: tuple[str, ...]) -> None:
    method, batch = small_densecl(f"method.dense_share={share}", *words), whole_batch()
    method.teacher.module[1][0].weight.data += 0.05  # keys of another network than the queries'
    method.dense_teacher.module[0].weight.data += 0.05
    out = method(batch, STEP)
    first, second = batch.views["global"].unbind(dim=1)
    h, f = features_and_map(method.backbone, first, "res3")  # of the network that the step has trained nothing of
    h_key, f_key = features_and_map(method.teacher.module[0], second, "res3")
    q, k = method.projector(h), method.teacher.module[1](h_key)
    places, keys = method.dense_projector(f).flatten(2), method.dense_teacher.module(f_key).flatten(2)  # [NUM, 5, S]
    f, f_key = f.flatten(2), f_key.flatten(2)
    of_images, of_places = [], []
    for n in range(NUM):
        of_images.append(cross_entropy(q[n], k[n], method.queue.keys, 0.2))
        for place in range(f.shape[2]):
            cosines = [float(F.cosine_similarity(f[n, :, place], f_key[n, :, j], dim=0)) for j in range(f.shape[2])]
            matched = keys[n, :, cosines.index(max(cosines))]
            of_places.append(cross_entropy(places[n, :, place], matched, method.dense_queue.keys, 0.2))
    expected = (1 - share) * sum(of_images) / NUM + share * sum(of_places) / len(of_places)
    assert out.loss.item() == pytest.approx(expected, rel=1e-9)
    assert tuple(out.metrics) == DenseCL.logged


def test_the_teachers_begin_as_the_networks_with_kaimings_weights_in_the_projector_of_images() -> None:
    method = small_densecl("method.hidden_dims=[512]")
    student = [*method.backbone.parameters(), *method.projector.parameters()]
    for one, other in zip(student, method.teacher.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    for one, other in zip(method.dense_projector.parameters(), method.dense_teacher.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    first, last = method.projector[0], method.projector[2]
    assert [layer.bias.abs().max().item() for layer in (first, last)] == [0, 0]
    for layer in (first, last):
        assert layer.weight.std().item() == pytest.approx((2 / layer.in_features) ** 0.5, rel=0.05)
    assert method.dense_projector[0].bias.abs().min() > 0


def test_means_of_places_enter_a_queue_of_their_own_and_both_teachers_follow() -> None:
    method, batch = small_densecl("method.momentum=0.9"), whole_batch()
    out = method(batch, STEP)
    before = method.dense_teacher.module[0].weight.clone()
    method.dense_projector[0].weight.data += 1.0
    _, f_key = features_and_map(method.teacher.module[0], batch.views["global"][:, 1], "res3")
    means = method.dense_teacher.module(f_key).mean(dim=(2, 3))
    method.after_update(STEP, batch, out.carry)
    torch.testing.assert_close(method.dense_queue.keys[:NUM], F.normalize(means, dim=-1), rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(method.dense_teacher.module[0].weight, before + 0.1)
    assert method.queue.num_filled == method.dense_queue.num_filled == NUM


def test_the_map_is_the_stage_in_front_of_the_features_of_any_backbone() -> None:
    resnet, vit = ResNet.Config(depth=18, width=8), ViT.Config(size="nano", patch_size=8, image_size=32)
    assert (last_map(ResNet.info(resnet)), last_map(ViT.info(vit))) == ("res5", "norm")
    network, images = ViT(vit).eval(), torch.randn(2, 3, 32, 32)
    features, values = features_and_map(network, images, "norm")
    torch.testing.assert_close(features, network(images))
    assert values.shape == (2, network.token_dim, 4, 4)


@pytest.mark.parametrize("output", ["class", "mean", "class_mean", "classes"])
def test_the_map_of_a_vit_are_its_tokens_whatever_its_output_is(output: str) -> None:
    extra = {"num_registers": 2} if output == "classes" else {}
    config = ViT.Config(size="nano", width=24, depth=2, heads=2, patch_size=8, image_size=32, output=output, **extra)
    network, images = ViT(config).eval(), torch.randn(2, 3, 32, 32)
    features, values = features_and_map(network, images, last_map(ViT.info(config)))
    patches = network.tokens(images)[:, network.num_prefix_tokens :]  # [2, 16, 24]
    torch.testing.assert_close(values.flatten(2).transpose(1, 2), patches)
    torch.testing.assert_close(features, network(images))


def test_check_refuses_a_stage_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match=r"method\.stage is 'res9'; the stages of the backbone are conv1, stem, res2"):
        DenseCL.check(setup_of("method.stage=res9"))
    DenseCL.check(setup_of())
