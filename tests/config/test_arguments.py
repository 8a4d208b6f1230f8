"""The API tells what to give where it was given something else."""

import importlib.util
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import raysl
from raysl.components import ALIASES
from raysl.errors import ConfigError
from raysl.plan.setup import Setup
from raysl.sweeps.load import load_sweep

OWN = {slot: dict(names) for slot, names in ALIASES.items()}


@pytest.fixture(autouse=True)
def aliases(monkeypatch: pytest.MonkeyPatch) -> None:
    for slot, names in OWN.items():
        monkeypatch.setitem(ALIASES, slot, names)


def quickstart(*overrides: str) -> Any:
    return raysl.load_config("quickstart", list(overrides))


def with_inner(node: str, **changes: Any) -> Any:
    """The settings of the quickstart with fields of a node replaced in memory, which loading has not checked."""
    config = quickstart()
    return replace(config, **{node: replace(getattr(config, node), **changes)})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: raysl.load_config("simclr", "a=1"), "overrides: 'a=1' is a single text; give a list, ['a=1']"),
        (lambda: raysl.load_config("simclr", {"seed": 1}), "overrides: {'seed': 1} is not a list of texts; give .*"),
        (lambda: raysl.load_config("simclr", [1]), r"overrides: \[1\] is not a list of texts; .*\['optim.lr=0.1'\]"),
        (lambda: raysl.load_config(None), "name_or_path: None is not a name, path or URI; .*'quickstart'"),
        (lambda: raysl.load_config(quickstart()), "name_or_path: a RunConfig is not a name, path or URI; .*"),
        (lambda: raysl.pretrain("quickstart"), "config: 'quickstart' is not a RunConfig; give .*"),
        (lambda: raysl.pretrain("simclr"), r"config: .* give what raysl.load_config\('simclr'\) returns"),
        (lambda: raysl.pretrain("simcrl"), r"config: .* raysl.load_config\(NAME\) returns: .* did you mean 'simclr'.*"),
        (lambda: raysl.pretrain(quickstart(), data="x", seed=1), r"data, seed: .*\['data=...', 'seed=...'\]\)\)"),
        (lambda: raysl.pretrain(None), "config: None is not a RunConfig; give .*"),
        (lambda: raysl.pretrain(replace(quickstart(), seed=-1)), "seed: -1 is out of range; .*"),
        (lambda: raysl.pretrain(replace(quickstart(), data=None)), "data: null is no DataConfig; give an instance .*"),
        (lambda: raysl.pretrain(with_inner("train", epochs=2.5)), "train.epochs: 2.5 is not of type int; .*"),
        (lambda: raysl.pretrain(replace(quickstart(), train={"epochs": 3})), "train: {epochs: 3} is no Train.*"),
        (lambda: raysl.pretrain(replace(quickstart(), data=quickstart().optim)), "data: SGD.Config is no Data.*"),
        (lambda: raysl.pretrain(with_inner("method", name="mae")), "method.name: 'mae' takes MAE.Config, and .*"),
        (lambda: raysl.pretrain(with_inner("method", views=3)), "method.views: 3 is no .*; give an instance of .*"),
        (lambda: raysl.pretrain(with_inner("method", views={})), "method.views: {} is no .*; give an instance of .*"),
        (lambda: raysl.pretrain(quickstart(), until="2"), "until: '2' is not an epoch .*; give 1 to .*, or nothing"),
        (lambda: raysl.pretrain(quickstart(), until=1.5), "until: 1.5 is not an epoch to train to; .*"),
        (lambda: raysl.pretrain(quickstart(), until=True), "until: True is not an epoch to train to; .*"),
        (lambda: raysl.pretrain(quickstart(), stop=True), "stop: True is not an Event; give a threading.Event, .*"),
        (lambda: Setup.of("quickstart", 10), r"config: 'quickstart' .* raysl.load_config\('quickstart'\) returns"),
        (lambda: Setup.of(quickstart(), len), "num_samples: .* is not a number of images; give .* from 1 on"),
        (lambda: Setup.of(quickstart(), True), "num_samples: True is not a number of images; .*"),
        (lambda: Setup.of(quickstart(), 10, -1), "num_classes: -1 is not a number of classes; .* from 0 on"),
        (lambda: raysl.load_backbone(None), "None is no path or URI; give a string such as .*"),
        (lambda: raysl.benchmark(3), "3 is no path or URI; .*"),
        (lambda: raysl.benchmark("x", "knn"), r"benchmarks: 'knn' is a single text; give a list, \['knn'\]"),
        (lambda: raysl.benchmark("x", ["knn"], "knn.k=3"), "overrides: 'knn.k=3' is a single text; .*"),
        (lambda: raysl.extract(None), "None is no path or URI; .*"),
        (lambda: raysl.extract("x", "digits"), "source: 'digits' is not a DataConfig; give settings .*"),
        (lambda: raysl.extract("x", split=3), "split: 3 is not a str; give 'train' or 'test'"),
        (lambda: raysl.compare([]), r"checkpoints: the list is empty; give at least one, \['runs/mine'\]"),
        (lambda: raysl.compare([3]), r"checkpoints: \[3\] is not a list of texts; .*"),
        (lambda: raysl.compare(Path("runs/a")), r"checkpoints: 'runs/a' is a single text; give a list, .*"),
        (lambda: raysl.compare([Path("gone")]), "no checkpoint at '.*/gone'; .*"),
        (lambda: raysl.list_runs(".", where=None), r"where: None is not a list of texts; .*\['method=dino'\]"),
        (lambda: raysl.list_runs(".", where=[3]), r"where: \[3\] is not a list of texts; .*"),
        (lambda: raysl.convert(None, "out"), "None is no path or URI; .*"),
        (lambda: raysl.convert("in.pth", None), "None is no path or URI; .*"),
        (lambda: raysl.convert("in.pth", "out", overrides="data.image_size=64"), "overrides: .* is a single text; .*"),
        (lambda: raysl.convert("in.pth", "out", rules={"layout": "moco"}), "rules: {'layout': 'moco'} is not a Rul.*"),
        (lambda: raysl.sweep("quickstart", None), "space: None is not a SweepConfig; give a space, .*"),
        (lambda: raysl.sweep(None, load_sweep("sweep/quickstart")[0]), "config: None is not a RunConfig; .*"),
        (lambda: load_sweep("sweep/quickstart", "trials=3"), "overrides: 'trials=3' is a single text; .*"),
        (lambda: raysl.ingest(quickstart(), "out"), "data: a RunConfig is not a DataConfig; .*, or a ray.data.Dataset"),
        (lambda: raysl.ingest(quickstart().data, "out", resize="3"), "resize='3' is a str; give an integer"),
        (lambda: raysl.ingest(quickstart().data, None), "None is no path or URI; .*"),
    ],
)  # fmt: skip
def test_an_argument_of_another_kind_is_refused(
    call: Callable[[], object], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        call()
    assert re.fullmatch(message.replace("['a=1']", r"\['a=1'\]"), str(caught.value))
    assert not list(tmp_path.iterdir())


def test_the_package_shows_its_public_names_alone() -> None:
    assert set(dir(raysl)) == {*raysl.__all__, "__version__"}


def test_a_path_is_as_good_as_its_text(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("base: quickstart\nseed: 5\n")
    assert raysl.load_config(tmp_path / "mine.yaml").seed == 5
    with pytest.raises(ConfigError, match=re.escape(f"no checkpoint at '{tmp_path}'")):
        raysl.load_backbone(tmp_path)


def test_the_folder_of_a_run_is_answered_by_its_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs/a").mkdir(parents=True)
    (tmp_path / "runs/a/run.yaml").write_text("base: quickstart\nseed: 5\n")
    message = "no configuration 'runs/a'; it is the folder of a run; give its settings, 'runs/a/run.yaml'"
    with pytest.raises(ConfigError, match=f"^{message}$"):
        raysl.load_config("runs/a")
    with pytest.raises(ConfigError, match=f"{message}$"):
        raysl.pretrain("runs/a")
    assert raysl.load_config("runs/a/run.yaml").seed == 5


@pytest.mark.parametrize(
    "name", [name for name in raysl.__all__ if name not in ("methods", "losses", "transforms", "nn", "tune")]
)
def test_no_module_takes_the_place_of_a_function(name: str) -> None:
    assert importlib.util.find_spec(f"raysl.{name}") is None
    assert callable(getattr(raysl, name))
