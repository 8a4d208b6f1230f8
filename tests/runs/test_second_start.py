"""What may change when a run is started again takes effect, whatever its checkpoint was saved with."""

import dataclasses
import json
import logging
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
import ray.cloudpickle

from raysl.benchmarks.online_knn import OnlineKNN
from raysl.benchmarks.suite.fitting import check_benchmarks
from raysl.benchmarks.suite.settings import load_benchmarks
from raysl.checkpoint.backbone import load_checkpoint
from raysl.checkpoint.checkpoint_folder import NewestCheckpoint, checkpoint_name, seal
from raysl.cluster.resources import Resources, worker_shape
from raysl.components import ALIASES, resolve
from raysl.config.fields import find_group, list_settings
from raysl.config.load import load_config, load_dumped
from raysl.config.schema import RunConfig, is_may_change
from raysl.config.view_presets import PRESETS
from raysl.data.dataset_note import DATASET_FILE
from raysl.data.stream.loader import LocalBatches
from raysl.errors import ConfigError, RunFailed
from raysl.plan.plan import TrainPlan
from raysl.plan.setup import Setup
from raysl.runs.begin import begin
from raysl.runs.folder import RunFolder
from raysl.runs.worker import _callbacks
from raysl.train.callbacks.callback import Callback
from raysl.train.callbacks.online_probe import OnlineProbe
from raysl.train.disk import Disk
from raysl.train.expected import check_expected
from raysl.train.file_names import METRICS_FILE, STARTUP_FILE
from raysl.train.prepare import Prepared, prepare
from raysl.train.state import TrainState
from raysl.transforms.recipes import Crops
from tests.runs.runs import SMALL, finish, start

STEP = 12  # in the second of 5 epochs of 8 steps


@dataclass
class Second:
    """A second start, after its checks.

    Args:
        prepared: what the driver sends to the workers.
        folder: of the run.
        found: the checkpoint that it goes on from.
    """

    prepared: Prepared
    folder: RunFolder
    found: NewestCheckpoint

    @property
    def config(self) -> RunConfig:
        return self.prepared.config

    @property
    def plan(self) -> TrainPlan:
        return self.prepared.setup.plan


def rate_of_expected(run: Second) -> str:
    with pytest.raises(RunFailed) as failed:
        check_expected(run.config, {"loss": 3.0})
    return str(failed.value)


def callbacks_of(run: Second) -> list[Callback]:
    job: Any = SimpleNamespace(run=run.prepared, board="board", is_alone=True)
    return _callbacks(job, run.folder, Disk(Path(run.folder.path)), LocalBatches(run.prepared.loader))


def knn_every(run: Second) -> list[str]:
    callbacks = callbacks_of(run)
    return [str(callback.every) for callback in callbacks if isinstance(callback, OnlineKNN)]


def knn_ranks(run: Second) -> list[bool]:
    callbacks = callbacks_of(run)
    return [callback.has_ranks for callback in callbacks if isinstance(callback, OnlineKNN)]


def probes(run: Second) -> list[OnlineProbe]:
    callbacks = callbacks_of(run)
    return [callback for callback in callbacks if isinstance(callback, OnlineProbe)]


def probe_every(run: Second) -> list[str]:
    return [str(probe.every) for probe in probes(run)]


def probe_rates(run: Second) -> list[float]:
    return [probe.lr for probe in probes(run)]


CROPS = {field.name for field in dataclasses.fields(Crops)}
DIGITS = [f"method.views.{name}={value}" for name, value in PRESETS["digits"].items() if name in CROPS]
"""The numbers that the preset of the quickstart gives."""
CHANGES: dict[str, tuple[list[str], Callable[[Second], Any], Any]] = {
    # setting: words of the second start, what uses it, what comes of it
    "name": (["name=other"], lambda run: run.folder.uri.rpartition("/")[2], "other"),
    "storage": (["storage={tmp}/moved"], lambda run: run.folder.uri.split("/")[-2], "moved"),
    "adapt": (["adapt=[]"], lambda run: run.config.adapt, ()),
    "views": (["views=null", *DIGITS], lambda run: run.config.views, None),
    "benchmarks": (
        ["benchmarks.knn.k=[3]", "benchmarks=[knn]"],
        lambda run: [(name, node.k) for name, node in measured(run).items()],
        [("knn", (3,))],
    ),
    "callbacks": (
        ["callbacks.profiler.start=5"],
        lambda run: [(type(callback).__name__, callback.config.start) for callback in run.prepared.callbacks],
        [("Profiler", 5)],
    ),
    "cluster": (["cluster.max_gpus=8"], lambda run: Resources.of([], None, run.config.cluster, "", 0).gpus, 8.0),
    "train.epochs": (["train.epochs=6", "train.extend=true"], lambda run: run.plan.total_steps, 48),
    "train.extend": (["train.extend=true", "train.epochs=7"], lambda run: run.plan.total_steps, 56),
    "train.workers": (["train.workers=2"], lambda run: run.plan.rows, [16, 16]),
    "train.uneven": (["train.uneven=true", "train.workers=3"], lambda run: run.plan.rows, [10, 11, 11]),
    "train.parallel": (["train.parallel=fsdp", "train.workers=2"], lambda run: run.config.train.parallel, "fsdp"),
    "train.recompute": (["train.recompute=all"], lambda run: run.config.train.recompute, "all"),
    "train.device": (["train.device=cpu"], lambda run: worker_shape(run.config.train, Resources(8, 8)).device, "cpu"),
    "train.threads": (["train.threads=3"], lambda run: run.config.train.threads, 3),
    "train.cpus_per_worker": (
        ["train.cpus_per_worker=0.25"],
        lambda run: worker_shape(run.config.train, Resources(8, 0)).cpus,
        0.25,
    ),
    "train.gpus_per_worker": (
        ["train.gpus_per_worker=0.25"],
        lambda run: worker_shape(run.config.train, Resources(8, 1)).resources["GPU"],
        0.25,
    ),
    "train.log_every": (["train.log_every=7st"], lambda run: str(run.plan.log_every), "7st"),
    "train.checkpoint_every": (["train.checkpoint_every=9st"], lambda run: str(run.plan.checkpoint_every), "9st"),
    "train.keep_checkpoints": (["train.keep_checkpoints=9"], lambda run: run.config.train.keep_checkpoints, 9),
    "train.online_knn_every": (["train.online_knn_every=2ep"], knn_every, ["2ep"]),
    "train.online_rank": (["train.online_rank=true", "train.online_knn_every=1ep"], knn_ranks, [True]),
    "train.online_probe": (["train.online_probe=2ep"], probe_every, ["2ep"]),
    "train.online_probe_lr": (["train.online_probe=1ep", "train.online_probe_lr=0.5"], probe_rates, [0.5]),
    "train.eval_every": (["train.eval_every=2ep"], lambda run: str(run.config.train.eval_every), "2ep"),
    "train.reconstruct_every": (
        ["train.reconstruct_every=2ep"],
        lambda run: str(run.config.train.reconstruct_every),
        "2ep",
    ),
    "train.patch_pictures": (["train.patch_pictures=false"], lambda run: run.config.train.patch_pictures, False),
    "train.max_failures": (["train.max_failures=8"], lambda run: run.config.train.max_failures, 8),
    "train.hang_timeout": (["train.hang_timeout=60"], lambda run: run.config.train.hang_timeout, 60.0),
    "train.expect": (
        ["train.expect={loss: [1, 2]}"],
        rate_of_expected,
        "train.expect: loss is 3, outside [1, 2]",
    ),
    "data.augment_on": (["data.augment_on=task"], lambda run: run.prepared.loader.augment_in_task, True),
    "data.max_corrupt": (["data.max_corrupt=0.5"], lambda run: run.prepared.setup.max_corrupt, 128),
    "data.max_pixels": (["data.max_pixels=9999"], lambda run: run.prepared.loader.split.limits.max_pixels, 9999),
    "data.max_file_bytes": (
        ["data.max_file_bytes=999"],
        lambda run: run.prepared.loader.split.limits.max_file_bytes,
        999,
    ),
    "data.changed": (["data.changed=accept"], lambda run: run.found.step, STEP),
    "data.buffer_gb": (["data.buffer_gb=0.5"], lambda run: run.config.data.buffer_gb, 0.5),
}


def measured(run: Second) -> dict[str, Any]:
    """The settings that benchmarks of the run's checkpoint are measured with."""
    return load_benchmarks(load_checkpoint(run.folder.uri, config=run.config).config, None)


def marked(kind: Any, prefix: str = "") -> Iterator[str]:
    """Dotted names of the fields of a class of settings that may change, with those of the groups in it."""
    hints = list_settings(kind)
    for field in dataclasses.fields(kind):
        group = find_group(hints[field.name].kind) if field.name in hints else None
        if is_may_change(field.metadata):
            yield prefix + field.name
        elif group is not None:
            yield from marked(group, f"{prefix}{field.name}.")


def every_marked_setting() -> set[str]:
    """Those of a run and of every component that a name stands for."""
    nodes = {"method": "method", "backbone": "backbone", "source": "data", "optimizer": "optim"}
    found = set(marked(RunConfig))
    for slot, node in nodes.items():
        for name in ALIASES[slot]:
            found |= set(marked(resolve(slot, name).Config, f"{node}."))
    return found


def test_every_setting_that_may_change_is_tried_here() -> None:
    assert every_marked_setting() == set(CHANGES)


def test_the_page_on_runs_names_every_setting_that_may_change() -> None:
    page = (Path(__file__).parents[2] / "docs" / "runs.md").read_text()
    section = page.partition("## What may change")[2].partition("\n## ")[0]
    told = {name.rpartition(".")[2] for name in re.findall(r"`([\w.]+)(?:=\w+)?`", section)} - {"data", "train"}
    assert told == {name.rpartition(".")[2] for name in every_marked_setting()}


def words(tmp_path: Path, *changes: str) -> list[str]:
    changes = tuple(change.replace("{tmp}", str(tmp_path)) for change in changes)
    return [*SMALL, f"storage={tmp_path}", "name=one", *changes]


def first_start(tmp_path: Path, *changes: str) -> RunFolder:
    """A run that was cut off at step 12; nothing but the checks can read the settings in its checkpoint."""
    config = load_config("quickstart", words(tmp_path, *changes))
    run, folder = prepare(config), RunFolder.of(config)
    folder.make()
    begin(run, folder)
    state = TrainState.create(run.setup)
    state.step = STEP
    checkpoint = Path(folder.path) / checkpoint_name(STEP)
    state.save(checkpoint, {"loss": 3.0})
    (checkpoint / "run.yaml").write_text("{{ nobody reads this")
    meta = json.loads((checkpoint / "meta.json").read_text())
    seal(checkpoint, {key: value for key, value in meta.items() if key not in ("format", "files")})
    return folder


def second_start(tmp_path: Path, *changes: str) -> Second:
    config = load_config("quickstart", words(tmp_path, *changes))
    run, folder = prepare(config, check_benchmarks), RunFolder.of(config)
    folder.make()
    found = begin(run, folder)
    return Second(ray.cloudpickle.loads(ray.cloudpickle.dumps(run)), folder, found)


@pytest.mark.thorough
@pytest.mark.parametrize("setting", sorted(CHANGES))
def test_what_may_change_takes_effect_on_a_second_start(tmp_path: Path, setting: str) -> None:
    changes, used, expected = CHANGES[setting]
    before = first_start(tmp_path)
    if setting == "name":
        Path(before.path).rename(tmp_path / "other")
    if setting == "storage":
        (tmp_path / "moved").mkdir()
        Path(before.path).rename(tmp_path / "moved" / "one")
    if setting == "data.changed":
        note = json.loads(before.read(DATASET_FILE)) | {"fingerprint": "another"}
        before.write(DATASET_FILE, json.dumps(note).encode())
        with pytest.raises(ConfigError, match=r"data\.changed=accept"):
            second_start(tmp_path)
    run = second_start(tmp_path, *changes)
    assert run.found.step == STEP
    assert used(run) == expected
    assert load_dumped(run.folder.read("run.yaml").decode(), trust_code=True) == run.config, (
        "the next start compares with this one"
    )
    state = TrainState.create(run.prepared.setup, is_new=False)
    state.load(Path(run.folder.path) / checkpoint_name(STEP))
    state.save(tmp_path / "next", {})
    assert load_dumped((tmp_path / "next" / "run.yaml").read_text(), trust_code=True) == run.config, (
        "what is saved has the new ones"
    )


@pytest.mark.thorough
def test_what_may_not_change_is_refused_with_its_name_and_both_values(tmp_path: Path) -> None:
    first_start(tmp_path)
    with pytest.raises(ConfigError) as refused:
        second_start(tmp_path, "seed=3", "optim.lr=0.7", "method.temperature=0.2", "data.limit=128")
    lines = str(refused.value).splitlines()[1:-1]
    assert [line.strip() for line in lines] == [
        "seed: 0 -> 3",
        "method.temperature: 0.5 -> 0.2",
        "data.limit: 256 -> 128",
        "optim.lr: 1.0 -> 0.7",
    ]
    assert second_start(tmp_path).found.step == STEP, "a refusal changes nothing"


@pytest.mark.thorough
@pytest.mark.parametrize("left", [None, METRICS_FILE, STARTUP_FILE, checkpoint_name(STEP)])
def test_a_start_without_a_first_step_does_not_bind_the_next_one(
    tmp_path: Path, left: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "raysl")
    config = load_config("quickstart", words(tmp_path, "train.workers=2", "train.reference_workers=2"))
    folder = RunFolder.of(config)
    folder.make()
    begin(prepare(config), folder)  # no cluster answered
    if left is not None:
        file = Path(folder.path) / left / ("meta.json" if left.startswith("checkpoint") else "")
        file.parent.mkdir(exist_ok=True)
        file.write_text("{")
        with pytest.raises(ConfigError, match="seed: 0 -> 3"):
            second_start(tmp_path, "seed=3")
        return
    run = second_start(tmp_path, "seed=3", "data.limit=128")
    line = "the run one made no step with other settings, so it takes those of this start"
    assert caplog.messages.count(line) == 1
    assert load_dumped(run.folder.read("run.yaml").decode(), trust_code=True) == run.config
    assert json.loads(run.folder.read(DATASET_FILE))["num_samples"] == 128


@pytest.mark.slow
def test_a_finished_run_is_measured_as_its_second_start_says(tmp_path: Path) -> None:
    changes = ["train.epochs=1", "benchmarks={knn: {}}"]
    finish(start(tmp_path, "one", *changes))
    report = tmp_path / "one" / "report.json"
    assert set(json.loads(report.read_text())["metrics"]) >= {"knn/k20/top1"}
    command = [sys.executable, "-m", "raysl", "pretrain", "quickstart", *SMALL, *changes]
    command += [f"storage={tmp_path}", "name=one", "benchmarks={low_shot: {shots: [1]}}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr
    assert "is finished" in done.stderr
    assert "1_shot" in done.stdout
    assert "low_shot/1_shot" in json.loads(report.read_text())["metrics"]


@pytest.mark.slow
def test_a_run_goes_on_as_its_second_start_says(tmp_path: Path) -> None:
    folder = first_start(tmp_path)
    changes = ["train.workers=2", "train.cpus_per_worker=0.3", "train.threads=2", "train.log_every=2st"]
    changes += ["train.checkpoint_every=3st", "train.keep_checkpoints=4", "train.online_knn_every=1ep"]
    changes += ["data.augment_on=device", "data.buffer_gb=0.2", "benchmarks={knn: {}}"]
    output = finish(start(tmp_path, "one", *changes, "train.expect={loss: [0, 100]}"))
    assert f"resumed at step {STEP} on 2 workers" in output
    assert "2 threads" in output
    run = Path(folder.path)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "loss" in line] == list(range(14, 41, 2))
    assert [line["step"] for line in lines if "knn_k20_top1" in line] == [16, 24, 32, 40]
    assert sorted(path.name for path in run.glob("checkpoint_*")) == [checkpoint_name(n) for n in (33, 36, 39, 40)]
    assert set(json.loads((run / "report.json").read_text())["config"]["benchmarks"]) == {"knn"}


@pytest.mark.parametrize(("names", "way"), [(["knn"], "knn.k=[3]"), (None, "low_shot.k=[3] or knn.k=[3]")])
def test_a_setting_of_no_benchmark_is_refused_with_the_way_to_write_it(names: list[str] | None, way: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"'k=[3]': of which benchmark? write {way}")):
        load_benchmarks(load_config("quickstart"), names, ["k=[3]"])


@pytest.mark.thorough
def test_other_images_are_refused_to_a_method_that_keeps_something_of_each(tmp_path: Path) -> None:
    small = ["backbone.depth=10", "backbone.width=8", f"storage={tmp_path}", "name=bank", "data.limit=200"]
    config = load_config("digits/npid", [*small, "train.batch_size=16", "data.changed=accept"])
    run, folder = prepare(config), RunFolder.of(config)
    folder.make()
    begin(run, folder)
    of_190 = json.dumps(json.loads(folder.read(DATASET_FILE)) | {"num_samples": 190}).encode()
    folder.write(DATASET_FILE, of_190)
    state = TrainState.create(Setup.of(config, 190, 10))
    state.step = 11
    state.save(Path(folder.path) / checkpoint_name(11), {"loss": 3.0})
    with pytest.raises(ConfigError, match=r"npid stores .*bank \[190, .* it cannot .* 200 images in place of 190"):
        begin(run, folder)
    assert folder.read(DATASET_FILE) == of_190
