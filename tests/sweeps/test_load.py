"""What a sweep's file may hold, and what is refused before anything starts."""

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from raysl.cli.sweep import _load
from raysl.config.config_files import config_names
from raysl.config.load import load_config
from raysl.errors import ConfigError
from raysl.leaderboard.entry import Entry, Objective, SweepFacts
from raysl.leaderboard.leaderboard import Leaderboard
from raysl.runs.folder import RunFolder
from raysl.sweeps import load
from raysl.sweeps.claim import claim
from raysl.sweeps.load import dump_sweep, from_tree, load_starts, load_sweep, measured_starts
from raysl.sweeps.run import SweepRun, sweep
from raysl.sweeps.schema import SweepConfig
from raysl.tune.trial import ALONE, Note, Trial
from tests.data.samples import png

SPACE = """
config: quickstart
trials: 4
metric: knn_k20_top1
scheduler: none
space:
  optim.lr: {loguniform: [0.05, 1.0]}
"""
LR = {"optim.lr": {"uniform": [0.1, 1.0]}}


def _write(folder: Path, text: str) -> str:
    path = folder / "search.yaml"
    path.write_text(text)
    return str(path)


def _base(folder: Path, *more: str):
    return load_config("quickstart", [f"storage={folder}/runs", "name=s", "train.epochs=4", *more])


def test_a_space_and_its_overrides_load(tmp_path: Path) -> None:
    found, rest = load_sweep(_write(tmp_path, SPACE), ["trials=2", "optim.weight_decay=0", "seed=3"])
    assert found == SweepConfig(
        name="search", trials=2, scheduler="none", space={"optim.lr": {"loguniform": [0.05, 1.0]}}
    )
    assert rest == ["optim.weight_decay=0", "seed=3"]
    (tmp_path / "again.yaml").write_text(dump_sweep(found))
    assert load_sweep(str(tmp_path / "again.yaml"))[0] == found
    assert load_sweep(str(tmp_path / "again.yaml"), ["name=search #2"])[0].name == "search #2"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("space: {}", "space is empty"),
        ("trails: 3\nspace: {optim.lr: {choice: [1]}}", "unknown key 'trails'; did you mean 'trials'"),
        ("space: {optim.lr: {normal: [0, 1]}}", "is no distribution; write one of {choice"),
        ("space: {optim.lr: {uniform: [1, 0]}}", "is no range"),
        ("space: {optim.lr: {grid: []}}", "is no list of values"),
        ("trials: 0\nspace: {optim.lr: {choice: [1]}}", "trials: 0 is out of range"),
        ("configs: [digits/simklr]", "no configuration 'digits/simklr'; did you mean 'digits/simclr'"),
        ("configs: [nowhere/*]", r"configs: no configuration 'nowhere/\*'; `raysl list configs`"),
        ("configs: [moco, '!moco']", "leaves no configuration"),
        ("settings: [train.epochs=2]\ncheckpoints: [a, b]", "settings change how runs are trained"),
        ("metric: step_s\nearly_metric: knn/k20/top1\nspace: {optim.lr: {choice: [1]}}", "asha compares trials while"),
        ("metric: [a, b]\nmode: [max]\nspace: {optim.lr: {choice: [1]}}", "do not go together"),
        ("seeds: 2\nspace: {seed: {choice: [1, 2]}}", "seed is in the space"),
        ("search: optuna\nspace: {optim.lr: {grid: [1, 2]}}", "write choice in place of grid"),
        ("scheduler: pbt\nspace: {backbone.width: {choice: [8, 16]}}", "only settings of optim and method can vary so"),
        ("scheduler: pbt\nseeds: 2\nspace: {optim.lr: {choice: [1, 2]}}", "pbt needs two trials or more"),
        ("scheduler: ashaa\nspace: {optim.lr: {choice: [1, 2]}}", "scheduler: 'ashaa' is none; did you mean 'asha'"),
        ("checkpoints: [a]\nconfigs: [moco]", "configs are trained and checkpoints are measured"),
    ],
)
def test_bad_spaces_are_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_sweep(_write(tmp_path, text))


def test_everything_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    text = "trails: 3\nseeds: 0\nmode: up\nlr: 3\nconfigs: [digits/simklr]\nspace: {optim.lr: {normal: [0, 1]}}"
    with pytest.raises(ConfigError) as told:
        load_sweep(_write(tmp_path, text))
    lines = str(told.value).splitlines()
    assert all(line.startswith(f"{tmp_path}/search.yaml: ") for line in lines)
    for part in (
        "'trails'; did you mean 'trials'",
        "seeds: 0",
        "mode: 'up'",
        "'lr'; runs have optim.lr",
        "simklr",
        "normal",
    ):
        assert sum(part in line for line in lines) == 1, part
    with pytest.raises(ConfigError, match=r"search: 'optunaa' is none.*\n.*scheduler: 'ashaa' is none"):
        load_sweep(_write(tmp_path, "search: optunaa\nscheduler: ashaa\nspace: {optim.lr: {choice: [1, 2]}}"))


def test_configs_are_named_by_patterns_and_files_each_once(tmp_path: Path) -> None:
    mine = _write(tmp_path, SPACE)
    (tmp_path / "zoo.yaml").write_text(f"configs: [digits/mo*, digits/*, '!digits/[a-l]*', moco, {mine}]")
    found, _ = load_sweep(tmp_path / "zoo.yaml")
    *digits, moco, file = found.configs
    assert (moco, file) == ("imagenet/moco", mine)
    assert digits[0] == "digits/moco", "in the order in which they are named"
    assert len(set(digits)) == len(digits)
    assert set(digits) == {name for name in config_names() if name.startswith("digits/") and name[7] > "l"}


def test_patterns_of_files_are_searched_beside_the_sweeps_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rates").mkdir()
    files = [str(tmp_path / "rates" / f"{name}.yaml") for name in "abc"]
    for file in files:
        Path(file).write_text("base: digits/simclr\n")
    (tmp_path / "zoo.yaml").write_text("configs: [rates/*.yaml, '!rates/b.yaml']")
    assert load_sweep(tmp_path / "zoo.yaml")[0].configs == [files[0], files[2]]
    monkeypatch.chdir(tmp_path)
    assert load_sweep("zoo.yaml", ["configs=[rates/*.yaml, '!rates/a.yaml']"])[0].configs == [
        "rates/b.yaml",
        "rates/c.yaml",
    ]
    assert load_sweep("zoo.yaml", ["configs=[rates/z*.yaml]"])[0].configs == ["rates/z*.yaml"], "the next step says it"


@pytest.mark.parametrize("key", ["config: mine.yaml", "configs: [mine.yaml, digits/simclr]"])
def test_a_configuration_is_searched_beside_the_sweeps_file(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.yaml").write_text("base: digits/simclr\noptim: {lr: 0.125}\n")
    path = _write(tmp_path, f"{key}\nspace: {{seed: {{choice: [1, 2]}}}}\ntrials: 2\n")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    found, _ = load_sweep(path)
    assert found.first_config == str(tmp_path / "mine.yaml")
    assert load_config(found.first_config).optim.lr == 0.125
    (tmp_path / "elsewhere" / "mine.yaml").write_text("base: digits/simclr\n")
    typed, _ = load_sweep(path, [key.replace(": ", "=")])
    assert typed.first_config == "mine.yaml"


def test_settings_are_laid_over_each_config_and_what_is_wrong_is_told_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "zoo.yaml").write_text(
        "configs: [digits/simclr, digits/moco]\nsettings: [train.epochs=3, data.limit=64]"
    )
    found, rest = load_sweep(tmp_path / "zoo.yaml", ["train.epochs=4"])
    starts = load_starts(found, rest)
    assert {name: (start.method.name, start.train.epochs, start.data.limit) for name, start in starts.items()} == {
        "digits/simclr": ("simclr", 4, 64),
        "digits/moco": ("moco", 4, 64),
    }
    with pytest.raises(ConfigError, match=r"^digits/moco: .*queue_sizes") as told:
        load_starts(SweepConfig(configs=["digits/moco"]), ["method.queue_sizes=3"])
    assert "digits/simclr" not in str(told.value)


@pytest.mark.thorough
def test_settings_are_laid_over_a_single_config(tmp_path: Path) -> None:
    text = f"name: s\nstorage: {tmp_path}\nconfig: digits/simclr\nsettings: [train.epochs=3, data.limit=128]"
    path = _write(tmp_path, f"{text}\nscheduler: none\nspace: {{optim.lr: {{choice: [1]}}}}\n")
    loaded = _load(path, ["data.limit=64"], low_resource=False)
    assert (loaded.base.train.epochs, loaded.base.data.limit) == (3, 64), "the command line wins"
    assert loaded.bases[ALONE].train.epochs == 3
    space, _ = load_sweep(path)
    run = SweepRun.of(_base(tmp_path), space)
    assert (run.base.train.epochs, run.bases[ALONE].data.limit) == (3, 128)


def test_ranking_by_the_online_knn_needs_labels(tmp_path: Path) -> None:
    (tmp_path / "flat.png").write_bytes(png(0))
    base = load_config("quickstart", ["data=image_folder", f"data.path={tmp_path}", f"storage={tmp_path}/runs"])
    with pytest.raises(
        ConfigError, match="knn_k20_top1 cannot be measured, the images of 'image_folder' have no labels"
    ):
        sweep(base, SweepConfig(trials=1, space={"optim.lr": {"choice": [0.1]}}))
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"space": {"optim.lrr": {"uniform": [0, 1]}}}, "optim.lrr"),
        ({"space": {"optim.lr": {"uniform": [-1, 1]}}}, "optim.lr: -1.0 is out of range"),
        ({"space": {"method.temperature": {"choice": [0.1, "warm"]}}}, "method.temperature: 'warm'"),
        (
            {"space": {"method": {"choice": ["simclr", "simsiam"]}, "method.temperature": {"uniform": [0.1, 1]}}},
            "temperature",
        ),
        ({"space": LR, "metric": "knn/top3", "scheduler": "none"}, "metric: nothing will report 'knn/top3'"),
        ({"space": LR, "metric": "lss", "mode": "min"}, "metric: nothing will report 'lss'; did you mean 'loss'"),
        ({"space": {"optim.lr": {"choice": [1], "when": {"methud": 3}}}}, "there is no setting 'methud'"),
        (
            {"space": {**LR, "train.epochs": {"choice": [2], "when": {"method.name": "moco"}}}},
            "space.train.epochs.when: .* never holds, so train.epochs is never drawn; method.name is 'simclr'; change",
        ),
        (
            {"space": {**LR, "method.hidden_dim": {"choice": [64, 128]}}, "scheduler": "pbt"},
            "space.method.hidden_dim: .* makes other tensors than the configuration has",
        ),
    ],
)
def test_what_could_not_be_tried_is_refused_before_anything_starts(
    tmp_path: Path, settings: dict, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        SweepRun.of(_base(tmp_path), from_tree(settings, ""))
    assert not (tmp_path / "runs").exists()


def test_a_population_is_not_stored_at_an_address_with_credentials(tmp_path: Path) -> None:
    tree = {"space": LR, "scheduler": "pbt", "storage": "s3://KEY:SECRET@bucket/runs"}
    with pytest.raises(ConfigError, match="give its credentials as variables of the environment") as raised:
        SweepRun.of(_base(tmp_path), from_tree(tree, ""))
    assert "SECRET@" not in str(raised.value)


def test_a_setting_of_one_method_alone_stands_beside_the_others_with_a_condition(tmp_path: Path) -> None:
    space = {
        "method": {"choice": ["simclr", "simsiam"]},
        "method.temperature": {"uniform": [0.1, 1], "when": {"method.name": "simclr"}},
    }
    run = SweepRun.of(_base(tmp_path), from_tree({"space": space, "trials": 12, "scheduler": "none"}, ""))
    trials = list(run.planned.values())
    configs = [trial.run_of(run.bases, str(tmp_path)) for trial in trials]
    assert {config.method.name for config in configs} == {"simclr", "simsiam"}
    for trial, config in zip(trials, configs, strict=True):
        assert ("method.temperature" in trial.settings) == (config.method.name == "simclr")


@pytest.mark.thorough
def test_a_config_that_cannot_run_is_told_of_by_its_name(tmp_path: Path) -> None:
    uneven = SweepConfig(
        configs=["digits/simclr", "digits/moco"], settings=["train.batch_size=1"], scheduler="none", metric="loss"
    )
    with pytest.raises(ConfigError, match=r"^digits/simclr: train.batch_size is 1; SimCLR contrasts images"):
        SweepRun.of(_base(tmp_path), uneven)
    varied = SweepConfig(configs=["digits/simclr"], space={"method.queue_length": {"choice": [64]}}, scheduler="none")
    with pytest.raises(ConfigError, match=r"^digits/simclr: .*queue_length"):
        SweepRun.of(_base(tmp_path), varied)
    assert not (tmp_path / "runs").exists()


def _claimed(folder: Path, *more: str, **settings: object) -> list[str]:
    base = _base(folder, *more)
    run = RunFolder.of(base)
    run.make()
    return claim(run, base.name, {ALONE: base}, SweepConfig(**({"space": LR} | settings)))


@pytest.mark.thorough
def test_a_sweep_may_grow_and_may_not_become_another(tmp_path: Path) -> None:
    assert _claimed(tmp_path) == []
    assert _claimed(tmp_path) == []
    assert _claimed(tmp_path, trials=20, seeds=3) == ["seeds: 1 -> 3", "trials: 8 -> 20"]
    assert _claimed(tmp_path, "benchmarks=[knn]", trials=20, seeds=3) == [], "what is measured may change"
    (fewer,) = _claimed(tmp_path, trials=2, seeds=3)
    assert fewer == "trials: 20 -> 2; runs that it no longer has stay in its folder, and leave its table"
    other = {"optim.lr": {"uniform": [0.1, 2.0]}}
    with pytest.raises(ConfigError, match=r"another sweep named 's'[\s\S]*space: .*1.0.* -> .*2.0"):
        _claimed(tmp_path, space=other)
    with pytest.raises(ConfigError, match=r"scheduler: 'asha' -> 'none'"):
        _claimed(tmp_path, scheduler="none")
    with pytest.raises(ConfigError, match=r"optim.weight_decay: .* -> 0.25"):
        _claimed(tmp_path, "optim.weight_decay=0.25")
    with pytest.raises(ConfigError, match=r"train.epochs: \d+ -> 77"):
        _claimed(tmp_path, "train.epochs=77")
    with pytest.raises(
        ConfigError, match=r"what asha looks at: knn_k20_top1 \(max\) -> loss \(min\); early_metric= keeps it"
    ):
        _claimed(tmp_path, metric="loss", mode="min")
    kept = {"early_metric": "knn_k20_top1", "early_mode": "max"}
    assert len(_claimed(tmp_path, metric="loss", mode="min", **kept)) == 4, (
        "trials and seeds are those of the first one"
    )


def test_a_sweep_and_a_run_do_not_share_a_folder(tmp_path: Path) -> None:
    base = _base(tmp_path)
    run = RunFolder.of(base)
    run.claim(base)
    with pytest.raises(ConfigError, match=r"^a run named 's' is in .*/s; give this sweep another name=$"):
        _claimed(tmp_path)
    assert not run.exists("sweep.yaml")
    run.remove("run.yaml")
    _claimed(tmp_path)
    with pytest.raises(ConfigError, match=r"^a sweep named 's' is in .*/s; give this run another name=$"):
        run.claim(base)
    assert not run.exists("run.yaml")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"search": "optuna"}, {"search": "optuna", "configs": ["digits/simclr"]}),
        ({"search": "optuna", "scheduler": "none"}, {"search": "optuna", "scheduler": "none", "metric": "loss"}),
        ({"search": "optuna", "checkpoints": ["/a"]}, {"search": "optuna", "checkpoints": ["/a", "/b"]}),
        ({"scheduler": "pbt"}, {"scheduler": "pbt", "trials": 9}),
    ],
)
def test_what_would_make_all_draws_other_ones_may_not_change(tmp_path: Path, before: dict, after: dict) -> None:
    _claimed(tmp_path, **before)
    with pytest.raises(ConfigError, match="another sweep named 's'"):
        _claimed(tmp_path, **after)


@pytest.mark.thorough
def test_a_condition_may_hold_for_one_of_several_configs(tmp_path: Path) -> None:
    space = {"method.temperature": {"choice": [0.1], "when": {"method.name": "moco"}}}
    varied = SweepConfig(configs=["digits/simclr", "digits/moco"], space=space, metric="loss", mode="min")
    run = SweepRun.of(_base(tmp_path), varied)
    assert [len(trial.settings) for trial in run.planned.values()] == [0, 1]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"scheduler_args": {"grace_period": 4}},
            "no trial is longer than 4 epochs, so asha, which looks first at epoch 4, changes nothing; give fewer",
        ),
        (
            {"scheduler": "pbt", "scheduler_args": {"perturbation_interval": 4}},
            "no trial is longer than 4 epochs, so pbt, which looks first at epoch 4, changes nothing",
        ),
        (
            {"space": {"optim.lr": {"quniform": [0.1, 0.3, 0.1]}}},
            r"space.optim.lr: {quniform: \[0.1, 0.3, 0.1\]} has 3 distinct values for 8 trials",
        ),
    ],
)
def test_what_a_sweep_will_not_do_is_said_plainly(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, settings: dict, message: str
) -> None:
    SweepRun.of(_base(tmp_path), from_tree({"metric": "loss", "mode": "min", "space": LR, **settings}, ""))
    assert re.search(message, caplog.text)
    caplog.clear()
    SweepRun.of(_base(tmp_path), from_tree({"metric": "loss", "mode": "min", "space": LR}, ""))
    assert "changes nothing" not in caplog.text
    assert "distinct values" not in caplog.text


@pytest.mark.thorough
def test_epochs_may_vary_and_each_trial_has_its_own(tmp_path: Path) -> None:
    space = {"train.epochs": {"grid": [2, 6]}}
    run = SweepRun.of(_base(tmp_path), from_tree({"space": space, "metric": "loss", "mode": "min"}, ""))
    run.current_board()
    assert [record.epochs for record in run.ledger.records.values()] == [2, 6]


@pytest.mark.thorough
def test_no_credentials_of_checkpoints_are_kept_and_others_make_no_other_trial(tmp_path: Path) -> None:
    names = [f"s3://{who}@bucket/runs/a/checkpoint_000000001" for who in ("KEY:SECRET", "OTHER:PASSWORD")]
    base = _base(tmp_path)
    run = RunFolder.of(base)
    run.make()
    sweep = SweepConfig(checkpoints=names[:1], scheduler="none", metric="knn/k20/top1")
    claim(run, "s", {names[0]: base}, sweep)
    assert "SECRET" not in (tmp_path / "runs" / "s" / "sweep.yaml").read_text()
    assert claim(run, "s", {names[1]: base}, replace(sweep, checkpoints=names[1:])) == []
    with pytest.raises(ConfigError, match=r"s3://\*\*\*@bucket\S*: optim.weight_decay"):
        claim(run, "s", {names[1]: _base(tmp_path, "optim.weight_decay=0.25")}, replace(sweep, checkpoints=names[1:]))
    assert Trial({}, 0, names[0]).name == Trial({}, 0, names[1]).name
    board = Leaderboard([Entry("trial_1", config=names[0])], SweepFacts("s", (Objective("knn/k20/top1"),)))
    assert "SECRET" not in str(board.entries)
    Note("finished", 1, checkpoint=names[0]).write(run)
    assert "SECRET" not in (tmp_path / "runs" / "s" / "trial.json").read_text()


def test_checkpoints_are_measured_with_what_they_were_trained_with_and_settings_laid_over_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = _base(tmp_path, "optim.lr=0.3")
    monkeypatch.setattr(load, "load_checkpoint", lambda uri: SimpleNamespace(uri=uri, config=trained))
    (found,) = measured_starts(SweepConfig(checkpoints=["runs/a"]), ["data.limit=50"]).values()
    assert (found.optim.lr, found.data.limit) == (0.3, 50)
