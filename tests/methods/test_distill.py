from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision import models

from raysl.config.load import load_config
from raysl.data.batch import Batch
from raysl.errors import ConfigError, StorageError
from raysl.methods.distill import Distill, hints, soft_labels
from raysl.nn.backbones.maps import features_and_map
from raysl.optim.groups import split_groups
from raysl.plan.setup import Setup
from raysl.schedule import Step
from raysl.train.state import TrainState
from tests.methods.properties import STOPS, Steps, exact_steps, restarted
from tests.rank_processes import RunRanks
from tests.weights.networks import shaken
from tests.weights.published import empty_cache, empty_hub_cache, publish

STEP = Step(0, 10, 5)
SMALL = ("backbone.num_stages=2", "backbone.width=4", "train.batch_size=4")
LABELS = ("method.target=labels", "method.is_crossed=false", "method.hidden_dims=[]")


def saved(folder: Path, name: str = "supervised", *words: str) -> str:
    """A checkpoint of a tiny network with other weights than a student of seed 0."""
    config = load_config(f"digits/{name}", [*SMALL, "seed=5", *words])
    TrainState.create(Setup.of(config, 60, 10)).save(folder / "checkpoint_000000003", {})
    return str(folder)


def setup_of(teacher: str, *words: str, num_classes: int = 10) -> Setup:
    views = ["method.views.num=2", "method.is_crossed=true"]
    config = load_config("digits/distill", [*SMALL, *views, f"method.teacher={teacher}", *words])
    return Setup.of(config, 60, num_classes)


def made(teacher: str, *words: str) -> Distill:
    setup = setup_of(teacher, *words)
    Distill.check(setup)
    method = TrainState.create(setup).method.double()
    assert isinstance(method, Distill)
    return method


def batch_of(num_views: int = 2) -> Batch:
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(4, num_views, 3, 8, 8, dtype=torch.float64, generator=generator)
    return Batch({"global": images}, torch.arange(4), torch.tensor([3, 0, -1, 9]))


def softmax(scores: Tensor) -> Tensor:
    return scores.exp() / scores.exp().sum()


@pytest.mark.thorough
@pytest.mark.parametrize("share", [0.0, 0.25])
def test_soft_labels_are_the_teachers_at_a_temperature(tmp_path: Path, share: float) -> None:
    method = made(saved(tmp_path), *LABELS, "method.temperature=3", f"method.label_weight={share}").eval()
    batch, total = batch_of(), torch.zeros((), dtype=torch.float64)
    agreement = 0
    for row, label in enumerate(batch.label.tolist()):
        for view in batch.views["global"][row]:
            student, teacher = method.head(method.backbone(view[None]))[0], method.teacher(view[None])[0]
            p, q = softmax(student / 3), softmax(teacher / 3)
            total += (1 - share) * 9 * (q * (q.log() - p.log())).sum()
            total -= share * softmax(student)[label].log() if label >= 0 else 0
            agreement += int(student.argmax() == teacher.argmax())
    out = method(batch, STEP)
    torch.testing.assert_close(out.loss, total / 8, rtol=1e-9, atol=0)
    assert out.metrics["agreement"] == pytest.approx(100 * agreement / 8)
    assert tuple(out.metrics) == Distill.logged


def test_a_teachers_gradient_keeps_its_size_at_high_temperatures_and_vanishes_where_they_agree() -> None:
    teacher = torch.tensor([[1.0, -1.0, 0.5]], dtype=torch.float64)
    sizes = []
    for temperature in (50.0, 100.0):
        student = torch.zeros(1, 3, dtype=torch.float64, requires_grad=True)
        (grad,) = torch.autograd.grad(soft_labels(student, teacher, temperature), student)
        expected = (student.detach() - teacher - (student.detach() - teacher).mean()) / 3  # equation 4
        torch.testing.assert_close(grad, expected, rtol=0.05, atol=0.01)
        sizes.append(grad.norm().item())
    assert sizes[0] == pytest.approx(sizes[1], rel=0.02)
    assert soft_labels(teacher + 3, teacher, 2.0).abs() < 1e-12
    for size in (1e4, -1e4):
        assert soft_labels(size * teacher, -size * teacher, 1e-4).isfinite()


@pytest.mark.parametrize("is_crossed", [True, False])
def test_hints_are_standardised_features_of_the_teacher(is_crossed: bool) -> None:
    method, batch = made("untrained", f"method.is_crossed={is_crossed}", "train.batch_size=4").eval(), batch_of()
    views = batch.views["global"]
    teacher = torch.stack([method.teacher(views[:, view]) for view in range(2)], dim=1)  # [4, 2, D]
    total = 0.0
    for row in range(4):
        for view in range(2):
            student = method.head(method.backbone(views[row, view][None]))[0]
            for d, value in enumerate(student.tolist()):
                column = teacher[:, :, d].flatten()
                center, spread = column.mean(), (column.var(correction=0) + 1e-6).sqrt()
                total += (value - (teacher[row, 1 - view if is_crossed else view, d] - center) / spread) ** 2 / 8
    out = method(batch, STEP)
    assert out.loss.item() == pytest.approx(float(total) / teacher.shape[-1], rel=1e-9)
    assert out.metrics["agreement"].item() == pytest.approx(100 - 100 * out.loss.item())


def test_features_that_are_all_alike_leave_the_loss_finite() -> None:
    for scale in (0.0, 1e6):
        student = torch.randn(4, 2, 3, requires_grad=True)
        loss, _ = hints(student, torch.full((4, 2, 3), scale))
        loss.backward()
        assert loss.isfinite()
        assert student.grad is not None
        assert student.grad.isfinite().all()


@pytest.mark.thorough
def test_the_teacher_is_that_of_the_checkpoint_and_never_trains(tmp_path: Path) -> None:
    uri = saved(tmp_path)
    setup = setup_of(uri, *LABELS)
    state = TrainState.create(setup)
    kept = TrainState.create(Setup.of(load_config("digits/supervised", [*SMALL, "seed=5"]), 60, 10)).method
    teacher = state.method.teacher
    assert all(
        torch.equal(mine, theirs)
        for mine, theirs in zip(teacher.state_dict().values(), kept.state_dict().values(), strict=True)
    )
    state.method.double().train()
    before = {name: value.clone() for name, value in teacher.state_dict().items()}
    state.method(batch_of(), STEP).loss.backward()
    assert all(torch.equal(value, before[name]) for name, value in teacher.state_dict().items())  # statistics, too
    assert all(parameter.grad is None for parameter in teacher.parameters())
    trained = {
        id(parameter) for group in split_groups(state.method, setup.config.optim) for parameter in group["params"]
    }
    assert not trained & {id(parameter) for parameter in teacher.parameters()}
    assert state.method.export() is state.method.backbone


@pytest.mark.thorough
def test_a_run_that_goes_on_has_the_teacher_that_it_began_with(tmp_path: Path) -> None:
    uri = saved(tmp_path / "teacher")
    setup = setup_of(uri, *LABELS)
    state = TrainState.create(setup)
    state.save(tmp_path / "checkpoint_000000001", {})
    newer = load_config("digits/supervised", [*SMALL, "seed=6"])
    TrainState.create(Setup.of(newer, 60, 10)).save(tmp_path / "teacher" / "checkpoint_000000009", {})
    again = TrainState.create(setup)
    first, second = (each.method.teacher.state_dict()["0.conv1.weight"] for each in (state, again))
    assert not torch.equal(first, second)
    again.load(tmp_path / "checkpoint_000000001")
    assert torch.equal(first, again.method.teacher.state_dict()["0.conv1.weight"])


@pytest.mark.thorough
def test_features_of_another_kind_of_network_may_be_learned(tmp_path: Path) -> None:
    uri = saved(tmp_path, "simclr", "backbone.width=6")
    method = made(uri, "method.target=features").train()
    out = method(batch_of(), STEP)
    out.loss.backward()
    assert method.head[-1].out_features == 12
    assert all(parameter.grad is not None for parameter in method.head.parameters())


@pytest.mark.thorough
def test_tokens_are_the_features_and_those_of_each_place(tmp_path: Path) -> None:
    uri = saved(tmp_path, "simclr", "backbone.width=6")
    words = ["method.target=tokens", "method.is_crossed=false", "method.hidden_dims=[7]"]
    method = made(uri, *words).eval()
    images = batch_of().views["global"].flatten(0, 1)
    h, own = features_and_map(method.backbone, images, "res3")
    h_teacher, theirs = features_and_map(method.teacher, images, "res3")
    cosine, places = F.cosine_similarity(method.head(h), h_teacher, dim=-1), []
    for n in range(len(images)):
        for y in range(own.shape[2]):
            for x in range(own.shape[3]):
                student = method.place_head(own[n, :, y, x][None])[0].detach()
                teacher = theirs[n, :, y, x]
                near = float(student @ teacher / student.norm() / teacher.norm())
                gaps = (student - teacher).abs().tolist()
                smooth = sum(gap**2 / 2 if gap < 1 else gap - 0.5 for gap in gaps) / len(gaps)
                places.append(0.9 * (1 - near) + 0.1 * smooth)
    out = method(batch_of(), STEP)
    assert out.loss.item() == pytest.approx(1 - cosine.mean().item() + sum(places) / len(places), rel=1e-9)
    assert tuple(out.metrics) == Distill.logged
    out.loss.backward()
    assert all(p.grad is not None for name, p in method.named_parameters() if not name.startswith("teacher."))


@pytest.mark.thorough
def test_a_published_network_teaches_on_images_as_it_knows_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty_cache(tmp_path, monkeypatch)
    theirs = shaken(models.shufflenet_v2_x0_5()).eval()
    publish("shufflenet_v2_x0_5", theirs.state_dict(), tmp_path, monkeypatch)
    words = ["method.target=features", "method.is_crossed=false", "method.teacher_size=32", "data.mean=[0.1,0.2,0.3]"]
    method = made("torchvision:shufflenet_v2_x0_5", *words)
    raw = torch.rand(2, 3, 8, 8, dtype=torch.float64)
    data, known = method.setup.config.data, ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    mean, std = (torch.tensor(values)[:, None, None] for values in (data.mean, data.std))
    wanted_mean, wanted_std = (torch.tensor(values)[:, None, None] for values in known)
    theirs.fc = nn.Identity()
    large = F.interpolate((raw - wanted_mean) / wanted_std, (32, 32), mode="bilinear", antialias=True)
    out = method.teacher.eval()(method.images_of_teacher((raw - mean) / std))
    torch.testing.assert_close(out, theirs.double()(large), rtol=1e-4, atol=1e-5)
    assert method.head[-1].out_features == 1024
    assert method(batch_of(), STEP).loss.isfinite()


@pytest.mark.thorough
def test_several_teachers_have_heads_of_their_own_and_the_loss_is_the_sum(tmp_path: Path) -> None:
    first, second = saved(tmp_path / "first", "simclr", "backbone.width=6"), saved(tmp_path / "second")
    teachers = [
        f"{{teacher: {first}, weight: 0.5, place_weight: 2, size: 16}}",
        f"{{teacher: {second}, target: features, weight: 3}}",
    ]
    method = made(
        "null", "method.is_crossed=false", "method.hidden_dims=[7]", f"method.teachers=[{','.join(teachers)}]"
    )
    batch, cosine, places = batch_of(), torch.zeros(8), []
    images = batch.views["global"].flatten(0, 1)
    out = method.eval()(batch, STEP)
    large = F.interpolate(images, (16, 16), mode="bilinear", antialias=True)
    h, own = features_and_map(method.backbone, images, "res3")
    h_first, theirs = features_and_map(method.teachers[0], large, "res3")
    own = F.interpolate(own, theirs.shape[-2:], mode="bilinear", align_corners=False)
    for n in range(8):
        cosine[n] = F.cosine_similarity(method.heads[0](h[n : n + 1]), h_first[n : n + 1]).detach()
        for y in range(theirs.shape[2]):
            for x in range(theirs.shape[3]):
                student, teacher = method.place_heads[0](own[n, :, y, x][None])[0].detach(), theirs[n, :, y, x]
                gaps = (student - teacher).abs().tolist()
                smooth = sum(gap**2 / 2 if gap < 1 else gap - 0.5 for gap in gaps) / len(gaps)
                places.append(0.9 * (1 - float(F.cosine_similarity(student, teacher, dim=0))) + 0.1 * smooth)
    of_first = 0.5 * (1 - cosine.mean().item()) + 2 * sum(places) / len(places)
    columns = method.teachers[1](images).T
    normal = [(column - column.mean()) / (column.var(correction=0) + 1e-6).sqrt() for column in columns]
    errors = [(one - other).square().mean() for one, other in zip(method.heads[1](h).T, normal, strict=True)]
    of_second = 3 * torch.stack(errors).mean().item()
    assert out.metrics["first_loss"].item() == pytest.approx(of_first, rel=1e-6)
    assert out.metrics["second_loss"].item() == pytest.approx(of_second, rel=1e-9)
    assert out.loss.item() == pytest.approx(out.metrics["first_loss"].item() + of_second, rel=1e-9)
    assert out.metrics["first_agreement"].item() == pytest.approx(100 * cosine.mean().item(), rel=1e-6)
    assert set(out.metrics) == set(Distill.logged_by(method.config))
    out.loss.backward()
    assert all(p.grad is not None for name, p in method.named_parameters() if not name.startswith("teachers."))
    assert method.given_parts == {"teachers": "teachers"}


@pytest.mark.thorough
def test_one_teacher_in_a_list_teaches_as_one_alone(tmp_path: Path) -> None:
    uri = saved(tmp_path, "simclr", "backbone.width=6")
    same = ("method.is_crossed=false", "method.hidden_dims=[7]")
    alone = made(uri, "method.target=tokens", *same)
    listed = made("null", f"method.teachers=[{{teacher: {uri}}}]", *same)
    assert torch.equal(alone(batch_of(), STEP).loss, listed(batch_of(), STEP).loss)
    assert next(name for name, _ in alone.named_parameters()) == "backbone.conv1.weight"
    assert {"teacher.conv1.weight", "head.0.weight", "place_head.0.weight"} <= alone.state_dict().keys()


SEVERAL = (
    "method.teacher=null",
    "method.teachers=[{teacher: untrained, name: a}, {teacher: untrained, name: b, target: features, size: 24}]",
)


def steps(words: Sequence[str]) -> Steps:
    return exact_steps("distill", *words)


def again(folder: str, words: Sequence[str]) -> dict[int, list[str]]:
    return restarted("distill", folder, *words)


@pytest.mark.parametrize("words", [("method.target=tokens",), SEVERAL], ids=["tokens", "several"])
def test_two_ranks_learn_as_one_process_does(run_ranks: RunRanks, words: tuple[str, ...]) -> None:
    alone, *ranks = steps(words), *run_ranks(2, steps, words)
    for many in ranks:
        for own, expected in zip(many["grads"], alone["grads"], strict=True):
            assert own.keys() == expected.keys()
            for key, grad in expected.items():
                torch.testing.assert_close(own[key], grad, rtol=1e-7, atol=1e-9)


def test_a_restart_with_several_teachers_changes_no_bit(run_ranks: RunRanks, tmp_path: Path) -> None:
    for differing in run_ranks(2, again, str(tmp_path), SEVERAL):
        assert differing == {stop: [] for stop in STOPS}


@pytest.mark.thorough
def test_what_cannot_teach_is_refused(tmp_path: Path) -> None:
    supervised, simclr = saved(tmp_path / "a"), saved(tmp_path / "b", "simclr")
    other = saved(tmp_path / "c", "supervised", "data.mean=[0.5,0.5,0.5]")
    for setup, message in (
        (setup_of("null"), "method.teacher is not given"),
        (setup_of("untrained", *LABELS), "untrained knows no classes"),
        (setup_of(str(tmp_path / "none")), "method.teacher: no checkpoint at"),
        (setup_of("torchvision:resnet18", *LABELS), "method.teacher=torchvision:resnet18 knows no classes"),
        (setup_of("torchvision:resnet", "method.target=features"), "did you mean 'resnet"),
        (setup_of("timm:vit_tiny_patch16_224", "method.target=features"), "images of 16x16 pixels do not fit"),
        (setup_of("untrained", "method.target=tokens"), "set method.is_crossed=false"),
        (setup_of("untrained", SEVERAL[1]), "method.teacher and method.teachers are both set"),
        (setup_of("null", "method.teachers=[{teacher: untrained},{teacher: untrained}]"), "'untrained' is the name of"),
        (setup_of("null", "method.teachers=[{teacher: untrained}]"), "set method.is_crossed=false"),
        (setup_of("null", f"method.teachers=[{{teacher: {tmp_path}/no, target: features}}]"), "no checkpoint at"),
        (setup_of(simclr, *LABELS), "is of method=simclr, which knows no classes"),
        (setup_of(other), r"set data.mean=\[0.5, 0.5, 0.5\]"),
        (setup_of(supervised, "method.views.num=1"), "set method.views.num=2"),
        (setup_of(supervised, "method.label_weight=0.5"), "features are not classes"),
        (
            setup_of(supervised, *LABELS, "method.label_weight=0.5", num_classes=4),
            "the teacher knows 10 classes, and the images have 4",
        ),
    ):
        with pytest.raises(ConfigError, match=message):
            Distill.check(setup)
    Distill.check(setup_of(supervised, *LABELS, num_classes=4))


@pytest.mark.thorough
def test_a_published_teacher_that_cannot_be_downloaded_is_refused_on_the_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = empty_hub_cache(tmp_path, monkeypatch)
    words = ("method.is_crossed=false", "method.target=features")
    for setup, key in (
        (setup_of("timm:test_resnet", *words), "teacher"),
        (setup_of("null", *words, "method.teachers=[{teacher: timm:test_resnet, target: features}]"), "teachers[0]"),
    ):
        with pytest.raises(StorageError, match=r"cannot download .*/timm/test_resnet") as raised:
            Distill.check(setup)
        for part in (f"method.{key}: ", str(cache), "HF_HUB_OFFLINE=1", "HF_ENDPOINT", "backbone.model=test_resnet"):
            assert part in str(raised.value)


def test_the_teachers_path_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Distill.Config(teacher="runs/a").teacher == str(tmp_path / "runs/a")
    assert replace(Distill.Config(teacher="untrained")).teacher == "untrained"
    assert Distill.Config(teacher="timm:resnet18.a1_in1k").teacher == "timm:resnet18.a1_in1k"
    words = ["method.teachers=[{teacher: runs/a}, {teacher: timm:resnet18.a1_in1k}]"]
    teachers = load_config("digits/distill", words).method.teachers
    assert [each.teacher for each in teachers] == [str(tmp_path / "runs/a"), "timm:resnet18.a1_in1k"]
    assert [each.title for each in teachers] == ["a", "resnet18_a1_in1k"]
