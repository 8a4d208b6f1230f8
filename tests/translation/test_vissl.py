"""A configuration of VISSL becomes the recipe of raysl, but for what is listed; nothing of it gets lost."""

from pathlib import Path
from typing import Any

import pytest
import torch

from raysl.config.docs import describe
from raysl.config.load import load_config
from raysl.errors import ConfigError
from raysl.nn.backbones.resnet import ResNet
from raysl.optim.course import lr_at
from raysl.schedule import Step
from raysl.translation.translated import Translation
from raysl.translation.vissl import convert_config
from raysl.translation.vissl_settings import leaves, read_tree

FOLDER = Path(__file__).parent
FIXTURES = ("simclr", "moco", "swav", "dino", "linear")
OF_THE_RUN = ("name", "storage", "benchmarks", "data", "train.workers", "train.log_every", "train.checkpoint_every")
"""What is of a user's machines and images, or is measured beside."""
EQUAL = {"optim.warmup", "optim.decay_at", "method.views.blur_kernel_size", "optim.cosine_from", "optim.warmup_start"}
"""Settings that are compared by what they make, below."""
DIFFERENT = {
    "simclr": {
        "optim.name": ("larc", "lars"),
        "optim.exclude_norm_and_bias": (False, True),
        "method.projector_norm": (False, True),
        "method.output_norm": ("none", "scale"),
        "method.views.interpolation": ("bilinear", "bicubic"),
        "backbone.zero_init_residual": (False, True),
        "train.sync_bn_ranks": (8, None),
        "train.precision": ("fp32", "auto"),
    },
    "moco": {"train.precision": ("fp32", "auto")},
    "dino": {
        "method.teacher_temp_warmup": ("37530st", "30ep"),
        "method.freeze_last_layer": ("1251st", "1ep"),
        "method.views.interpolation": ("bilinear", "bicubic"),
        "method.views.jitter": ([0.4, 0.4, 0.4, 0.1], [0.4, 0.4, 0.2, 0.1]),
        "backbone.width": (384, None),
        "backbone.depth": (12, None),
        "backbone.heads": (6, None),
        "backbone.position_resize": ("antialias", "dino"),
        "optim.lr": (0.002, 0.0005),
        "optim.lr_scaling": ("none", "linear"),
        "optim.update_every": ("epoch", "step"),
        "optim.final_lr": (0.005, 0.0005),
        "train.clip_grad": (None, 3.0),
        "train.clip_grad_over": ("model", "tensor"),
        "train.sync_bn": (False, True),
        "train.precision": ("fp16", "auto"),
    },
    "swav": {
        "method.queue_start": ("random", "full"),
        "method.queue_from": ("0st", "15ep"),
        "train.sync_bn_ranks": (8, None),
        "train.precision": ("fp16", "auto"),
    },
}
"""(VISSL's, raysl's recipe's), by setting: MoCo's recipe is VISSL's, all others are the authors'."""


def translated(name: str, *words: str) -> Translation:
    return convert_config([str(FOLDER / f"{name}.yaml")], words)


def loaded(name: str, tmp_path: Path, *words: str) -> Any:
    path = tmp_path / f"{name}.yaml"
    path.write_text(translated(name, *words).text())
    return load_config(str(path))


@pytest.mark.thorough
@pytest.mark.parametrize("name", DIFFERENT)
def test_a_translation_is_the_recipe_but_for_what_is_listed(name: str, tmp_path: Path) -> None:
    ours = {row.key: row.value for row in describe(load_config(name, ["data.path=."]))}
    theirs = {row.key: row.value for row in describe(loaded(name, tmp_path))}
    found = {
        key: (theirs.get(key), ours.get(key))
        for key in {**ours, **theirs}
        if theirs.get(key) != ours.get(key)
        and not any(key == other or key.startswith(f"{other}.") for other in OF_THE_RUN)
        and key not in EQUAL
        and not (key.startswith("optim.") and (key not in ours or key not in theirs))
        and key not in ("train.online_knn_every", "adapt")
    }
    assert found == DIFFERENT[name]


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["simclr", "moco", "swav"])
def test_learning_rates_are_those_that_vissl_computes(name: str, tmp_path: Path) -> None:
    config = loaded(name, tmp_path)
    total = {"simclr": 1000, "moco": 2000, "swav": 4000}[name]  # 10 updates an epoch
    rates = [
        lr_at(config.optim, Step(at, total=total, epoch_len=10), config.train.batch_size) for at in (0, 100, total // 2)
    ]
    expected = {
        # the warm-up begins at the rate of one node, 0.3 * 512 / 256, and the cosine with the run, not behind it
        "simclr": [0.6, 4.8 * 0.97552826, 2.4],
        "moco": [0.03, 0.03, 0.03],
        "swav": [0.6, 0.0048 + (4.8 - 0.0048) * 0.99845867, 2.4024],
    }
    assert rates == pytest.approx(expected[name], rel=1e-6)
    if name == "moco":
        late = [lr_at(config.optim, Step(at, total=total, epoch_len=10), 256) for at in (1199, 1200, 1599, 1600)]
        assert late == pytest.approx([0.03, 0.003, 0.003, 0.0003])


@pytest.mark.parametrize("name", FIXTURES)
def test_every_key_has_a_line_and_none_has_two(name: str) -> None:
    lines = [line.key for line in translated(name).lines if line.is_given]
    keys = [key.removeprefix("config.") for key, _ in leaves(read_tree(str(FOLDER / f"{name}.yaml")))]
    for key in keys:
        covering = {line for line in lines if key == line or key.startswith((f"{line}.", f"{line}["))}
        assert len(covering) == 1, key
    assert {line.key for line in translated(name).lines if line.kind == "missing"} <= {"MODEL.WEIGHTS_INIT"}


def test_groups_that_are_off_or_replaced_have_one_line() -> None:
    words = ["backbone=torchvision", "backbone.model=resnet18", "config.MODEL.TRUNK.RESNETS.STANDARDIZE_CONVOLUTIONS=0"]
    done = translated("moco", *words, "config.MODEL.ACTIVATION_CHECKPOINTING.NUM_ACTIVATION_CHECKPOINTING_SPLITS=2")
    keys = [line.key for line in done.lines if line.key.startswith(("MODEL.TRUNK", "MODEL.ACTIVATION_CHECKPOINTING"))]
    assert sorted(keys) == ["MODEL.ACTIVATION_CHECKPOINTING", "MODEL.TRUNK"]


@pytest.mark.parametrize(("schedule", "used"), [("linear", {"start_value", "end_value"}), ("step", {"values"})])
def test_numbers_of_another_schedule_are_not_listed_as_used(schedule: str, used: set[str]) -> None:
    group = "OPTIMIZER.param_schedulers.lr"
    numbers = "start_value: 0.3, end_value: 0.0, values: [0.3, 0.03], milestones: [100]"
    done = translated("moco", f"config.{group}={{name: {schedule}, update_interval: epoch, {numbers}}}")
    kinds = {line.key.removeprefix(f"{group}."): line.kind for line in done.lines if line.key.startswith(group)}
    assert {key for key, kind in kinds.items() if kind == "same"} == {"name", "update_interval", *used}
    assert {key for key, kind in kinds.items() if kind == "not needed"} == {*kinds} - {"name", "update_interval", *used}


def test_a_key_that_raysl_does_not_know_is_listed() -> None:
    done = translated("moco", "config.MODEL.GRAD_CLIP.USE_GRAD_CLIP=true", "config.MODEL.NEW.THING=3")
    assert {line.key for line in done.lines if line.kind == "missing"} == {"MODEL.NEW.THING"}
    assert "# No counterpart:\n# - MODEL.NEW.THING: 3\n" in done.text()
    assert done.settings["train.clip_grad"] == 1


@pytest.mark.thorough
def test_on_one_node_the_warm_up_is_dropped_as_vissl_drops_it(tmp_path: Path) -> None:
    config = loaded("simclr", tmp_path, "config.DISTRIBUTED.NUM_NODES=1")
    assert (config.train.batch_size, str(config.optim.warmup), config.optim.final_lr) == (512, "0ep", 0)
    assert any(
        "drops the warm-up" in line.note for line in translated("simclr", "config.DISTRIBUTED.NUM_NODES=1").lines
    )


@pytest.mark.parametrize(("bn", "bias", "excluded"), [(False, True, (True, False)), (True, False, (False, True))])
def test_what_is_not_regularised_is_excluded_and_larc_says_so(
    bn: bool, bias: bool, excluded: tuple[bool, bool]
) -> None:
    words = [f"config.OPTIMIZER.regularize_bn={bn}", f"config.OPTIMIZER.regularize_bias={bias}"]
    done = translated("simclr", *words)
    assert (done.settings["optim.exclude_norm"], done.settings["optim.exclude_bias"]) == excluded
    notes = {line.key: line.note for line in done.lines}
    assert ("LARC scales" in notes["OPTIMIZER.regularize_bn"]) == (not bn)
    assert ("LARC scales" in notes["OPTIMIZER.regularize_bias"]) == (not bias)


def test_vissl_leaves_out_a_relu_that_raysl_has() -> None:
    head = "config.MODEL.HEAD.PARAMS=[[mlp, {dims: [2048, 2048], use_relu: true}], [mlp, {dims: [2048, 128]}]]"
    note = next(line.note for line in translated("simclr", head).lines if line.key == "MODEL.HEAD.PARAMS")
    assert "skip_last_layer_relu_bn" in note


def test_swavs_queue_is_cut_to_the_batch_and_begins_at_an_update() -> None:
    queue = "config.LOSS.swav_loss.queue={queue_length: 9000, start_iter: 5000}"
    done = translated("swav", queue)
    assert (done.settings["method.queue_length"], done.settings["method.queue_from"]) == (8192, "5000st")


@pytest.mark.thorough
def test_the_linear_benchmark_has_the_stages_and_windows_of_vissl(tmp_path: Path) -> None:
    config = loaded("linear", tmp_path)
    assert [head.stage for head in config.method.heads] == ["conv1", "res2", "res3", "res4", "res5"]
    assert [(head.pool.kernel, head.pool.stride, head.pool.padding) for head in config.method.heads][:2] == [
        (10, 10, 4),
        (16, 8, 0),
    ]
    assert {head.classifier for head in config.method.heads} == {"norm_linear"}
    assert (config.backbone.freeze, config.optim.exclude_norm, config.optim.exclude_bias) == (("all",), True, False)


def test_the_linear_benchmark_is_what_the_page_of_benchmarks_says() -> None:
    (command,) = translated("linear").commands
    page = (FOLDER.parents[1] / "docs/benchmarks-that-train.md").read_text()
    row = next(line for line in page.splitlines() if line.startswith("| VISSL's linear evaluation |"))
    theirs = [part.strip("' ") for part in row.split("`")[1].split("linear_augmented.") if part.strip("' ")]
    told = command.replace("0.0005", "5e-4").replace("[8ep, 16ep, 24ep]", "[8ep,16ep,24ep]")
    assert [word for word in theirs if f"linear_augmented.{word}" not in told] == []


@pytest.mark.thorough
def test_stages_have_raysls_names() -> None:
    pools = "config.MODEL.FEATURE_EVAL_SETTINGS.LINEAR_EVAL_FEAT_POOL_OPS_MAP=[[res5avg, [Identity, []]]]"
    head = "config.MODEL.HEAD.PARAMS=[[mlp, {dims: [2048, 1000]}]]"
    (made,) = translated("linear", pools, head).settings["method.heads"]
    assert made == {"stage": "avgpool", "pool": {"kind": "none"}, "classifier": "linear"}
    (made,) = translated("linear", pools.replace("res5avg", "res1"), head).settings["method.heads"]
    assert made["stage"] == "stem"
    with pytest.raises(ConfigError, match=r"no counterpart of the stage 'res6'.*conv1"):
        translated("linear", pools.replace("res5avg", "res6"), head)


@pytest.mark.thorough
def test_the_first_classifier_of_the_linear_benchmark_sees_9216_values(tmp_path: Path) -> None:
    """VISSL's conv1 is in front of the max-pool: 112 x 112 places of 64 channels, pooled to 12 x 12."""
    config = loaded("linear", tmp_path)
    stage, pool = config.method.heads[0].stage, config.method.heads[0].pool
    network = ResNet(config.backbone).eval()
    with torch.no_grad():
        values = network.stages(torch.zeros(1, 3, 224, 224), [stage])[stage]
    assert values.shape == (1, 64, 112, 112)
    pooled = torch.nn.functional.avg_pool2d(values, pool.kernel, pool.stride, pool.padding)
    assert pooled.flatten(1).shape == (1, 9216)


@pytest.mark.parametrize(("is_excluded", "decays"), [(True, False), (True, True), (False, False)])
def test_lars_leaves_norms_and_biases_alone_as_barlow_twins_files_say(is_excluded: bool, decays: bool) -> None:
    options = {"name": "lars", "exclude_bias_and_norm": is_excluded, "regularize_bn": decays, "regularize_bias": decays}
    done = translated("simclr", *(f"config.OPTIMIZER.{key}={str(value).lower()}" for key, value in options.items()))
    line = next(line for line in done.lines if line.key == "OPTIMIZER.exclude_bias_and_norm")
    assert done.settings["optim.exclude_norm_and_bias"]
    assert (line.kind, "decay in VISSL" in line.note) == (
        ("differs" if decays else "same") if is_excluded else "not needed",
        decays,
    )
    assert any("LARS scales" in line.note for line in done.lines) == (not is_excluded)


def test_settings_of_raysl_hold_over_the_file() -> None:
    done = translated("simclr", "backbone=vit", "train.workers=4", "data={name: image_folder, path: .}")
    assert done.config().backbone.name == "vit"
    assert done.config().train.workers == 4


def test_another_method_leaves_out_what_it_and_its_views_do_not_know() -> None:
    config = translated("simclr", "method=byol", "data={name: image_folder, path: .}").config()
    assert (config.method.name, config.method.views.num) == ("byol", 2)


def test_files_and_overrides_may_have_the_root_or_not(tmp_path: Path) -> None:
    (tmp_path / "over.yaml").write_text("OPTIMIZER: {num_epochs: 7}\n")
    (tmp_path / "rooted.yaml").write_text("config: {SEED_VALUE: 5}\n")
    paths = [str(FOLDER / "simclr.yaml"), str(tmp_path / "over.yaml"), str(tmp_path / "rooted.yaml")]
    done = convert_config(paths, ["+OPTIMIZER.weight_decay=0.5", "data={name: image_folder, path: .}"])
    config = done.config()
    assert (config.train.epochs, config.seed, config.optim.weight_decay) == (7, 5, 0.5)


def test_settings_of_an_older_trunk_are_laid_over_one_by_one() -> None:
    older = "config.MODEL.TRUNK.TRUNK_PARAMS={RESNETS: {WIDTH_MULTIPLIER: 2}}"
    config = translated(
        "simclr", older, "config.MODEL.TRUNK.RESNETS.DEPTH=101", "data={name: image_folder, path: .}"
    ).config()
    assert (config.backbone.depth, config.backbone.width) == (101, 128)


def test_a_rate_of_the_head_needs_no_rate_of_the_trunk() -> None:
    lr = "config.OPTIMIZER.param_schedulers"
    words = ["config.OPTIMIZER.head_optimizer_params.use_different_lr=true", f"{lr}.lr.auto_lr_scaling.base_value=0"]
    done = translated(
        "simclr", *words, f"{lr}.lr_head.name=constant", f"{lr}.lr_head.value=0.5", "data={name: image_folder, path: .}"
    )
    assert done.settings["optim.head_lr"] == pytest.approx(0.5 / 16)


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("config.LOSS.name=my_loss", "LOSS.name: 'my_loss' is none of simclr_info_nce_loss"),
        ("config.MODEL.TRUNK.NAME=efficientnet", "add backbone=NAME"),
        ("config.OPTIMIZER.num_epochs=many", "OPTIMIZER.num_epochs: 'many' is not a whole number"),
        ("config.OPTIMIZER.param_schedulers.lr.auto_lr_scaling.scaling_type=cube", "'cube' is neither linear nor sqrt"),
        ("config.OPTIMIZER.param_schedulers.lr.name=cyclic", "no counterpart of 'cyclic'"),
        ("config.DATA.TRAIN.TRANSFORMS=[3]", "DATA.TRAIN.TRANSFORMS"),
        ("config.LOSS.simclr_info_nce_loss.temperature=-1", "raysl refuses what became of"),
    ],
)
def test_what_cannot_be_translated_is_an_error_with_its_key(word: str, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        translated("simclr", word)
    assert said in str(error.value)


@pytest.mark.thorough
def test_views_that_the_file_makes_alike_are_alike_where_the_method_has_two_kinds() -> None:
    words = ["config.LOSS={name: barlow_twins_loss}", "config.MODEL.HEAD.PARAMS=[[mlp, {dims: [2048, 64, 64, 64]}]]"]
    views = translated("simclr", *words).config().method.views
    assert (views.blur_p, views.second_blur_p, views.solarize_p, views.second_solarize_p) == (0.5, 0.5, 0, 0)
    by_crop = "{name: ImgPilMultiCropRandomApply, transforms: [{name: ImgPilGaussianBlur}], prob: [1.0, 0.1]}"
    views = translated("simclr", *words, f"config.DATA.TRAIN.TRANSFORMS=[{by_crop}]").config().method.views
    assert (views.num, views.blur_p, views.second_blur_p, views.flip) == (1, 1.0, 0.1, 0)


def test_settings_of_swav_that_are_used_are_listed_with_what_they_became() -> None:
    done = translated("swav", "config.LOSS.swav_loss.temp_hard_assignment_iters=300")
    line = next(line for line in done.lines if line.key == "LOSS.swav_loss.temp_hard_assignment_iters")
    assert (line.kind, line.words) == ("same", "method.hard_until=300st")


def test_settings_of_swav_with_momentum_are_listed_with_what_they_became() -> None:
    loss = "{queue: {queue_length: 0, start_iter: 0}, momentum: 0.9, momentum_eval_mode_iter_start: 7}"
    done = translated("swav", "config.LOSS.name=swav_momentum_loss", f"config.LOSS.swav_momentum_loss={loss}")
    words = {line.key.rpartition(".")[2]: line.words for line in done.lines if line.kind == "same"}
    assert words["momentum_eval_mode_iter_start"] == "method.eval_from=7st"
    assert "method.momentum=0.9" in [line.words for line in done.lines]


def test_settings_of_any_group_may_be_given_beside_the_file() -> None:
    text = translated("moco", "callbacks.wandb.project=mine", "views=cifar").text()
    assert "\ncallbacks:\n  wandb:\n    project: mine\n" in text
    assert "\nviews: cifar\n" in text


@pytest.mark.thorough
def test_the_head_has_the_command_and_no_setting_that_it_replaced() -> None:
    done = translated("simclr", "optim=sgd", "name=a b")
    first, *_ = done.text().splitlines()
    assert first.endswith("simclr.yaml optim=sgd 'name=a b'")
    assert done.config().optim.name == "sgd"
    assert "optim.name=larc" not in done.text()


def test_true_is_no_number() -> None:
    with pytest.raises(ConfigError, match=r"OPTIMIZER.weight_decay: 'True' is not a number"):
        translated("simclr", "config.OPTIMIZER.weight_decay=true")
