"""A new run may begin with another run's weights: read once, checked before any worker starts, and noted."""

import copy
import hashlib
import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import fsspec
import pytest
import ray
import torch
from torch import Tensor
from typer.testing import CliRunner

from raysl.checkpoint.backbone import load_checkpoint
from raysl.checkpoint.checkpoint_folder import checkpoint_name, checkpoint_names
from raysl.cli import app
from raysl.config.docs import annotate
from raysl.config.load import load_config
from raysl.config.schema import RunConfig
from raysl.errors import ConfigError
from raysl.methods.simclr import SimCLR
from raysl.nn.backbones.backbone import Backbone
from raysl.plan.setup import Setup
from raysl.pretraining import pretrain
from raysl.process.waiting import waiting
from raysl.runs.begin import begin, check_weights
from raysl.runs.folder import RunFolder
from raysl.train.prepare import prepare
from raysl.train.state import TrainState, untrained_backbone
from tests.runs.runs import SMALL, finish, start
from tests.test_trust import MINE, rewrite

IMAGES = (256, 10)  # and classes


class Taught(SimCLR):
    """SimCLR with a teacher, which begins as a copy of the backbone."""

    @dataclass(frozen=True, kw_only=True)
    class Config(SimCLR.Config):
        """Those of SimCLR."""

    def __init__(self, setup: Setup, backbone: Backbone) -> None:
        super().__init__(setup, backbone)
        self.teacher = copy.deepcopy(backbone)


TAUGHT = "method.name=tests.train.test_weights:Taught"


def config_of(tmp_path: Path, *words: str) -> RunConfig:
    return load_config("quickstart", [*SMALL, f"storage={tmp_path}", "name=new", *words])


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """The folder of a run with a checkpoint at step 7 whose weights are like no fresh ones."""
    state = TrainState.create(Setup.of(config_of(tmp_path, "seed=5"), *IMAGES))
    state.step = 7
    folder = tmp_path / "source" / checkpoint_name(7)
    state.save(folder, {})
    return folder.parent


def tensors(folder: Path) -> dict[str, Tensor]:
    state: dict[str, Tensor] = torch.load(folder / "train_state.pt", weights_only=True)["method"]
    return state


def same(left: dict[str, Tensor], right: dict[str, Tensor], prefix: str = "") -> bool:
    names = [name for name in left if name.startswith(prefix)]
    assert names
    return all(torch.equal(left[name], right[name]) for name in names)


def started(config: RunConfig) -> tuple[RunFolder, int]:
    """What the driver does before workers start; the run's folder and the step that it goes on from."""
    run, folder = prepare(config), RunFolder.of(config)
    folder.make()
    return folder, begin(run, folder).step


@pytest.mark.thorough
def test_a_new_run_begins_with_all_weights_of_the_same_method(tmp_path: Path, source: Path) -> None:
    config = config_of(tmp_path, f"method.weights={source}")
    state = TrainState.create(Setup.of(config, *IMAGES))
    assert same(state.method.state_dict(), tensors(source / checkpoint_name(7)))
    assert not same(
        TrainState.create(Setup.of(config, *IMAGES), is_new=False).method.state_dict(),
        tensors(source / checkpoint_name(7)),
        "backbone",
    )
    assert (state.step, state.optimizer.state_dict()["state"]) == (0, {}), "nothing but weights is taken"


@pytest.mark.thorough
def test_a_part_that_does_not_fit_is_left_at_its_seed_and_named(tmp_path: Path, source: Path) -> None:
    words = [f"method.weights={source}", "method.output_dim=8"]
    state = TrainState.create(Setup.of(config_of(tmp_path, *words), *IMAGES))
    mine, theirs = state.method.state_dict(), tensors(source / checkpoint_name(7))
    assert same({name: value for name, value in mine.items() if name.startswith("backbone")}, theirs)
    assert not torch.equal(mine["projector.0.weight"], theirs["projector.0.weight"]), "a part is taken whole or not"
    assert state.weights is not None
    assert [text.split(" ")[0] for text in state.weights["taken"]] == ["backbone"]
    (left,) = state.weights["left_out"]
    assert left.startswith("projector (projector.3.weight is [16, 32] there and [8, 32] here")


@pytest.mark.thorough
def test_another_method_takes_the_backbone_and_makes_its_teacher_of_it(tmp_path: Path, source: Path) -> None:
    state = TrainState.create(Setup.of(config_of(tmp_path, TAUGHT, f"method.weights={source}"), *IMAGES))
    theirs = tensors(source / checkpoint_name(7))
    for part in ("backbone", "teacher"):
        mine = {f"backbone.{name}": value for name, value in state.method.get_submodule(part).state_dict().items()}
        assert same(mine, theirs)
    assert state.weights is not None
    assert state.weights["left_out"] == [
        f"{part} (the checkpoint is of the method 'simclr')" for part in ("projector", "teacher")
    ]


@pytest.mark.thorough
def test_the_run_keeps_them_as_its_first_checkpoint_and_tells_what_was_taken(tmp_path: Path, source: Path) -> None:
    folder, step = started(config_of(tmp_path, f"method.weights={source}"))
    first = Path(folder.path) / checkpoint_name(0)
    assert (checkpoint_names(folder), step) == ([checkpoint_name(0)], 0)
    assert same(tensors(first), tensors(source / checkpoint_name(7)))
    origin = json.loads((first / "meta.json").read_text())["weights"]
    hashes = {
        name: hashlib.sha256((source / checkpoint_name(7) / name).read_bytes()).hexdigest()
        for name in ("backbone.safetensors", "train_state.pt")
    }
    assert (origin["uri"], origin["step"], origin["sha256"]) == (f"{source}/{checkpoint_name(7)}", 7, hashes)
    (event,) = [json.loads(line)["event"] for line in folder.read("events.jsonl").splitlines()]
    assert event.startswith(f"begins with the weights of {source}/{checkpoint_name(7)} (simclr, step 7): backbone (")
    assert event.endswith("projector (8 tensors)")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("words", "rates"),
    [((), "0.12 to 0.5"), (("optim.head_lr=20",), "0.12 to 0.5"), (("backbone.freeze=[all]",), "0 to 0")],
)
def test_the_rates_of_layers_are_said_and_those_of_heads_are_none_of_them(
    tmp_path: Path, source: Path, words: tuple[str, ...], rates: str
) -> None:
    folder, _ = started(config_of(tmp_path, f"method.weights={source}", "optim.layer_decay=0.5", *words))
    (event,) = [json.loads(line)["event"] for line in folder.read("events.jsonl").splitlines()]
    assert event.endswith(f"projector (8 tensors); optim.layer_decay=0.5: layers learn at {rates} of the peak")


@pytest.mark.thorough
def test_a_run_that_goes_on_has_its_own_weights_and_remembers_where_it_began(tmp_path: Path, source: Path) -> None:
    config = config_of(tmp_path, f"method.weights={source}")
    folder, _ = started(config)
    state = TrainState.create(Setup.of(config, *IMAGES), is_new=False)
    state.load(Path(folder.path) / checkpoint_name(0))
    state.step = 3
    with torch.no_grad():
        state.method.get_parameter("backbone.conv1.weight").zero_()
    state.save(Path(folder.path) / checkpoint_name(3), {})
    shutil.rmtree(source)
    assert started(config)[1] == 3, "the other run is not asked again"
    again = TrainState.create(Setup.of(config, *IMAGES), is_new=False)
    again.load(Path(folder.path) / checkpoint_name(3))
    assert again.method.get_parameter("backbone.conv1.weight").count_nonzero() == 0
    assert again.weights == state.weights
    assert again.weights is not None
    with pytest.raises(ConfigError, match=r"method\.weights: .* -> null"):
        started(replace(config, method=replace(config.method, weights=None)))


@pytest.mark.thorough
def test_untrained_means_without_another_runs_weights_too(tmp_path: Path, source: Path) -> None:
    config = config_of(tmp_path, f"method.weights={source}")
    folder, _ = started(config)
    shutil.rmtree(source)
    untrained = untrained_backbone(load_checkpoint(folder.uri))
    fresh = TrainState.create(Setup.of(config_of(tmp_path), *IMAGES)).method.export()
    assert same(untrained.state_dict(), fresh.state_dict())


@pytest.mark.thorough
def test_a_start_says_when_it_reads_the_weights(tmp_path: Path, source: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "raysl"), waiting() as waits:
        waits.enter("reading the dataset")
        started(config_of(tmp_path, f"method.weights={source}"))
    waited = [text.split("s  ")[-1] for record in caplog.records if (text := record.getMessage()).endswith(" ...")]
    assert waited == ["reading the dataset ...", "reading the weights that training begins with ..."]


def refusal(config: RunConfig) -> str:
    with pytest.raises(ConfigError) as refused:
        pretrain(config)
    assert not ray.is_initialized()
    assert not (Path(config.storage) / config.name / "run.yaml").exists(), "a run that never began left its settings"
    return str(refused.value)


@pytest.mark.thorough
def test_another_backbone_is_refused_with_what_to_set(tmp_path: Path, source: Path) -> None:
    words = [f"method.weights={source}", "backbone.width=4", "backbone.num_stages=1"]
    text = refusal(config_of(tmp_path, *words))
    assert text == (
        f"method.weights: the backbone of {source}/{checkpoint_name(7)} is another one: conv1.weight is [8, 3, 3, 3] "
        "there and [4, 3, 3, 3] here, and 32 more such tensors; set backbone.num_stages=2 backbone.width=8, "
        "or give other weights"
    )


@pytest.mark.thorough
def test_a_plan_refuses_weights_that_a_start_refuses(tmp_path: Path, source: Path) -> None:
    check_weights(config_of(tmp_path, f"method.weights={source}"))
    with pytest.raises(ConfigError, match=r"conv1.weight is \[8, 3, 3, 3\] there and \[4, 3, 3, 3\] here"):
        check_weights(config_of(tmp_path, f"method.weights={source}", "backbone.width=4"))
    done = CliRunner().invoke(app, ["plan", "quickstart", *SMALL, f"storage={tmp_path}", "method.weights=/gone"])
    assert isinstance(done.exception, ConfigError)
    assert str(done.exception).startswith("method.weights: no checkpoint at '/gone'")


@pytest.mark.thorough
def test_another_stem_is_not_advised_where_weights_are_made_for_this_one(
    tmp_path: Path, source: Path, caplog: pytest.LogCaptureFixture
) -> None:
    prepare(config_of(tmp_path, "backbone.stem=imagenet", f"method.weights={source}"))
    assert "backbone.stem=cifar" not in caplog.text
    prepare(config_of(tmp_path, "backbone.stem=imagenet"))
    assert "set backbone.stem=cifar" in caplog.text


@pytest.mark.thorough
def test_weights_that_are_missing_or_damaged_are_refused(tmp_path: Path, source: Path) -> None:
    text = refusal(config_of(tmp_path, f"method.weights={tmp_path}/gone"))
    assert text.startswith(
        f"method.weights: no checkpoint at '{tmp_path}/gone'; give the folder of a checkpoint or of a run that has one"
    )
    path = source / checkpoint_name(7) / "train_state.pt"
    content = bytearray(path.read_bytes())
    content[-1000] ^= 1
    path.write_bytes(content)
    text = refusal(config_of(tmp_path, f"method.weights={source}/{checkpoint_name(7)}"))
    assert text.startswith(f"method.weights: {path} is not what was written, its SHA-256 differs; ")
    assert refusal(config_of(tmp_path, f"method.weights={source}")).startswith("method.weights: no checkpoint at ")


@pytest.mark.thorough
def test_no_code_that_the_checkpoint_names_is_imported_for_its_tensors(tmp_path: Path, source: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE.format(mark=str(tmp_path / "mark")))
    folder = source / checkpoint_name(7)
    rewrite(folder / "run.yaml", backbone={"name": f"{tmp_path}/mine.py:Net"}, method={"name": f"{tmp_path}/mine.py:M"})
    state = TrainState.create(Setup.of(config_of(tmp_path, f"method.weights={folder}"), *IMAGES))
    assert same(state.method.state_dict(), tensors(folder))
    assert not (tmp_path / "mark").exists()


@pytest.mark.thorough
def test_weights_behind_a_uri_are_noted_without_credentials(tmp_path: Path, source: Path) -> None:
    config = config_of(tmp_path, f"method.weights=file://{source}?secret_key=SeCrEt")
    folder, _ = started(config)
    files = [path for path in Path(folder.path).rglob("*") if path.is_file()]
    assert not any(b"SeCrEt" in path.read_bytes() for path in files)
    assert same(tensors(Path(folder.path) / checkpoint_name(0)), tensors(source / checkpoint_name(7)))


@pytest.mark.thorough
def test_weights_and_runs_may_be_remote(tmp_path: Path, source: Path) -> None:
    memory = fsspec.filesystem("memory")
    memory.put(str(source), "/raysl_weights/source", recursive=True)
    try:
        words = ["method.weights=memory://raysl_weights/source", "storage=memory://raysl_weights/runs"]
        folder, _ = started(config_of(tmp_path, *words))
        folder.download(tmp_path / "copy")
        assert same(tensors(tmp_path / "copy" / checkpoint_name(0)), tensors(source / checkpoint_name(7)))
    finally:
        memory.rm("/raysl_weights", recursive=True)


def test_the_setting_is_told_and_its_path_does_not_depend_on_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = load_config("quickstart", ["method.weights=runs/before"])
    assert config.method.weights == f"{tmp_path}/runs/before"
    assert f"  weights: {tmp_path}/runs/before" in annotate(config)
    assert "# Initial weights, by path or URI. Of a run or checkpoint of raysl" in annotate(config)


@pytest.mark.slow
def test_a_whole_run_begins_with_the_weights_of_another(tmp_path: Path) -> None:
    finish(start(tmp_path, "before", "train.epochs=1"))
    words = [f"method.weights={tmp_path}/before", "train.epochs=1", "optim.lr=0", "train.keep_checkpoints=9"]
    output = finish(start(tmp_path, "after", *words))
    assert "begins with the weights of" in output
    assert "started on 1 worker" in output
    first, last = (tensors(tmp_path / "after" / checkpoint_name(step)) for step in (0, 8))
    trained = {name: value for name, value in last.items() if "running" not in name and "num_batches" not in name}
    assert same(trained, tensors(tmp_path / "before" / checkpoint_name(8)))
    assert same(trained, first), "with a learning rate of 0 they stay"
    assert json.loads((tmp_path / "after" / checkpoint_name(8) / "meta.json").read_text())["weights"]["step"] == 8
