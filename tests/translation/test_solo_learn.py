"""A configuration of solo-learn becomes settings of raysl; keys without a counterpart are listed."""

from pathlib import Path

import pytest

from raysl.config.load import load_config
from raysl.errors import ConfigError
from raysl.optim.course import lr_at
from raysl.schedule import Step
from raysl.translation.convert import convert_config
from raysl.translation.solo_methods import METHODS

FILE = str(Path(__file__).parent / "solo_simclr.yaml")


def test_simclr_on_cifar_10_has_its_colours_its_lars_and_its_rate(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(convert_config([FILE]).text())
    config = load_config(str(path))
    views, optim = config.method.views, config.optim
    assert (views.size, views.num, views.jitter, views.jitter_p) == (32, 2, (0.8, 0.8, 0.8, 0.2), 0.8)
    assert (views.blur_p, views.flip, views.grayscale_p, views.solarize_p) == (0.5, 0.5, 0.2, 0)
    assert (optim.name, optim.clip, optim.trust_coefficient, optim.exclude_norm_and_bias) == ("larc", True, 0.02, True)
    assert (config.method.temperature, config.method.projector_norm, config.backbone.stem) == (0.2, False, "cifar")
    rates = [lr_at(optim, Step(at, total=10_000, epoch_len=10), 256) for at in (0, 100, 9_999)]
    assert rates == pytest.approx([3e-5, 0.4, 0.0], abs=1e-6)


def test_plain_sgd_decays_everything() -> None:
    words = ["+optimizer.name=sgd", "+optimizer.kwargs={momentum: 0.8}"]
    done = convert_config([FILE], words)
    assert done.settings["optim.name"] == "sgd"
    assert done.settings["optim.exclude_norm_and_bias"] is False
    assert done.settings["optim.momentum"] == 0.8


def test_devices_make_the_batch_larger_and_the_rate_with_it() -> None:
    done = convert_config([FILE], ["+devices=[0, 1, 2, 3]"])
    assert (done.settings["train.batch_size"], done.settings["train.workers"]) == (1024, 4)
    assert done.settings["optim.warmup_start"] == pytest.approx(3e-5 / 1.6)


def test_two_kinds_of_views_are_asymmetric_and_small_ones_local() -> None:
    view = "{crop_size: 32, num_crops: 1, gaussian_blur: {prob: 1.0}, horizontal_flip: {prob: 0.5}}"
    second = view.replace("prob: 1.0", "prob: 0.1").replace("horizontal", "solarization: {prob: 0.2}, horizontal")
    words = ["+method=byol", "+method_kwargs={proj_hidden_dim: 4096, proj_output_dim: 256, pred_hidden_dim: 4096}"]
    words.append("+momentum={base_tau: 0.99, final_tau: 1.0}")
    done = convert_config([FILE], [*words, f"+augmentations=[{view}, {second}]"])
    views = done.config().method.views
    assert (views.num, views.blur_p, views.second_blur_p, views.second_solarize_p) == (2, 1.0, 0.1, 0.2)
    small = view.replace("crop_size: 32", "crop_size: 16").replace("num_crops: 1", "num_crops: 4")
    crops = convert_config([FILE], [f"+augmentations=[{view}, {small}]"]).config().method.views
    assert (crops.num, crops.num_local, crops.local_size) == (1, 4, 16)


def test_a_key_without_counterpart_is_listed() -> None:
    done = convert_config([FILE], ["+knn_eval.enabled=true"])
    assert {line.key for line in done.lines if line.kind == "missing"} == {
        "knn_eval.enabled",
        "optimizer.classifier_lr",
    }


def test_weights_and_biases_are_named_where_the_file_asks_for_them() -> None:
    done = convert_config([FILE], ["+wandb={enabled: true, project: mine, entity: me, offline: true}"])
    words = "callbacks.wandb.project=mine callbacks.wandb.entity=me callbacks.wandb.mode=offline"
    (note,) = [line.note for line in done.lines if line.key == "wandb"]
    assert note == f"add 'callbacks=[wandb]' {words} to `raysl pretrain`, with the client of the extra `wandb`"
    assert "add 'callbacks=[wandb]'" in done.text()
    assert "callbacks=" not in convert_config([FILE], ["+wandb={enabled: false}"]).text()


def test_settings_of_any_group_may_be_given_beside_the_file() -> None:
    text = convert_config([FILE], ["callbacks.wandb.project=mine", "views=cifar"]).text()
    assert "\ncallbacks:\n  wandb:\n    project: mine\n" in text
    assert "\nviews: cifar\n" in text


def test_the_head_has_the_command_and_no_setting_that_it_replaced() -> None:
    done = convert_config([FILE], ["optim=sgd", "name=a b", "+devices=[0, 1]"])
    first, *_ = done.text().splitlines()
    assert first.endswith(f": raysl convert-config {FILE} optim=sgd 'name=a b' '+devices=[0, 1]'")
    assert "larc" not in done.text()
    (line,) = [line for line in done.lines if line.key == "optimizer.batch_size"]
    assert (line.kind, line.settings) == ("differs", {"train.batch_size": 512})


@pytest.mark.parametrize("method", METHODS)
def test_every_method_becomes_settings_that_raysl_takes(method: str) -> None:
    kwargs = "{proj_hidden_dim: 512, proj_output_dim: 512, pred_hidden_dim: 512, temperature: 0.1, queue_size: 4096}"
    momentum = "+momentum={base_tau: 0.99, final_tau: 1.0}"
    done = convert_config([FILE], [f"+method={method}", f"+method_kwargs={kwargs}", momentum])
    assert done.config().method.name in ("moco", "moco_v3", "ssl_ey", method)


def test_another_method_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(ConfigError, match=r"'deepclusterv2' is none of simclr, "):
        convert_config([FILE], ["+method=deepclusterv2"])


def test_true_is_no_number() -> None:
    with pytest.raises(ConfigError, match=r"optimizer.weight_decay: 'True' is not a number"):
        convert_config([FILE], ["+optimizer.weight_decay=true"])
