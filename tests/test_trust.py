"""A checkpoint names components and brings none: what code its settings may have imported."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import raysl
from raysl import cli
from raysl.checkpoint.backbone import load_backbone, load_checkpoint
from raysl.config.config_files import read
from raysl.config.dump import to_dict, write
from raysl.config.load import load_config, load_dumped
from raysl.errors import ConfigError
from raysl.plan.setup import Setup
from raysl.runs.folder import RunFolder
from raysl.train.state import TrainState, untrained_backbone

SETTINGS = ("backbone.num_stages=1", "backbone.width=4", "method.hidden_dim=8", "method.output_dim=4")
MINE = """
from pathlib import Path
from raysl.methods.simclr import SimCLR
from raysl.nn.backbones.resnet import ResNet
from raysl.benchmarks.knn import KNN
from raysl.data.sources.digits import Digits
from raysl.optim.sgd import SGD

with Path({mark!r}).open("a") as file:
    file.write("imported ")


class Method(SimCLR): pass
class Net(ResNet): pass
class Bench(KNN): pass
class Pictures(Digits): pass
class Optim(SGD): pass
"""


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    return tmp_path / "mark"


@pytest.fixture
def mine(tmp_path: Path, mark: Path) -> str:
    """A file of components that leaves a mark when it is imported."""
    path = tmp_path / "mine.py"
    path.write_text(MINE.format(mark=str(mark)))
    return str(path)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A checkpoint that names nothing but raysl's own."""
    config = load_config("quickstart", [*SETTINGS, f"storage={tmp_path}/runs", "name=one"])
    folder = RunFolder.of(config)
    folder.claim(config)
    TrainState.create(Setup.of(config, 64, 10)).save(Path(folder.path) / "checkpoint_000000001", {})
    return Path(folder.path)


def rewrite(file: Path, **changes: Any) -> None:
    """Change stored settings; a dict is laid over what was there."""
    tree = read(file.read_text(), str(file))
    for key, value in changes.items():
        tree[key] = {**tree[key], **value} if isinstance(value, dict) else value
    file.write_text(write(tree))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"backbone": {"name": "{mine}:Net"}}, "backbone.name: backbone"),
        ({"backbone": "{mine}:Net"}, "backbone.name: backbone"),
        ({"method": {"name": "{mine}:Method"}}, "method.name: method"),
        ({"optim": {"name": "{mine}:Optim"}}, "optim.name: optimizer"),
        ({"data": {"name": "{mine}:Pictures"}}, "data.name: source"),
        ({"data": {"name": "concat", "sources": {"a": {"name": "{mine}:Pictures"}}}}, "data.sources.a.name: source"),
        ({"data": {"name": "paired", "sources": {"a": "{mine}:Pictures"}}}, "data.sources.a.name: source"),
        ({"benchmarks": {"b": {"name": "{mine}:Bench"}}}, "benchmarks.b.name: benchmark"),
        ({"benchmarks": {"b": "{mine}:Bench"}}, "benchmarks.b.name: benchmark"),
    ],
)
def test_code_that_a_checkpoint_names_is_not_imported(
    saved: Path, mine: str, mark: Path, changes: dict[str, Any], key: str
) -> None:
    def filled(value: Any) -> Any:
        if isinstance(value, dict):
            return {filled(name): filled(item) for name, item in value.items()}
        return value.replace("{mine}", mine)

    rewrite(saved / "checkpoint_000000001" / "run.yaml", **filled(changes))
    with pytest.raises(ConfigError) as refused:
        load_backbone(str(saved))
    told = str(refused.value)
    assert filled(key) in told
    assert f"is code that is not raysl's, of the file {mine}, and the checkpoint {saved}/checkpoint_000000001" in told
    assert "trust_code=True" in told
    assert not mark.exists()


@pytest.mark.thorough
def test_code_that_is_trusted_is_imported(saved: Path, mine: str, mark: Path) -> None:
    rewrite(saved / "checkpoint_000000001" / "run.yaml", backbone={"name": f"{mine}:Net"})
    backbone = raysl.load_backbone(str(saved), trust_code=True)
    assert type(backbone).__name__ == "Net"
    assert mark.read_text() == "imported "
    assert backbone(torch.zeros(1, 3, 16, 16)).shape == (1, backbone.feature_dim)
    assert untrained_backbone(load_checkpoint(str(saved), trust_code=True)).feature_dim == backbone.feature_dim
    with pytest.raises(ConfigError, match="trust_code=True"):
        load_backbone(str(saved))  # though it is imported by now


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["antigravity:X", "raysl_user_1:X", "raysl.mine.py:Net", "raysl.a/b:X"])
def test_modules_outside_raysl_are_not_imported(saved: Path, name: str) -> None:
    before = set(sys.modules)
    rewrite(saved / "checkpoint_000000001" / "run.yaml", backbone={"name": name})
    with pytest.raises(ConfigError, match=f"{name!r} is code that is not raysl's, of the (file|module) "):
        load_backbone(str(saved))
    rewrite(saved / "checkpoint_000000001" / "run.yaml", backbone={"name": "resnet"}, benchmarks={name: {}})
    with pytest.raises(ConfigError, match="is code that is not raysl's"):
        load_backbone(str(saved))
    assert "antigravity" not in set(sys.modules) - before


@pytest.mark.thorough
def test_raysls_own_components_are_known_by_module_too(saved: Path) -> None:
    rewrite(saved / "checkpoint_000000001" / "run.yaml", backbone={"name": "raysl.nn.backbones.resnet:ResNet"})
    assert load_backbone(str(saved)).feature_dim == 4


def test_damaged_settings_are_told() -> None:
    with pytest.raises(ConfigError, match=r"run\.yaml has no settings"):
        load_dumped("[1, 2]")


@pytest.mark.thorough
@pytest.mark.parametrize("command", ["benchmark", "extract", "cluster"])
def test_the_command_line_refuses_and_says_what_to_write(
    saved: Path,
    mine: str,
    mark: Path,
    command: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rewrite(saved / "checkpoint_000000001" / "run.yaml", method={"name": f"{mine}:Gone"})
    messages = []
    for words in ([], ["--trust-code"]):
        monkeypatch.setattr(sys, "argv", ["raysl", command, "--checkpoint", str(saved), *words])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        assert caught.value.code == 2
        messages.append((capsys.readouterr().err, mark.exists()))
    (refused, was_imported), (failed, is_imported) = messages
    assert "--trust-code" in refused
    assert not was_imported
    assert "has no class 'Gone'" in failed
    assert is_imported


# a run that is started again


@pytest.mark.thorough
def test_a_run_trusts_the_code_that_its_present_settings_name(tmp_path: Path, mine: str) -> None:
    words = [
        *SETTINGS,
        f"storage={tmp_path}/runs",
        "name=two",
        f"method.name={mine}:Method",
        f"data.name={mine}:Pictures",
    ]
    config = load_config("quickstart", words)
    folder = RunFolder.of(config)
    folder.claim(config)
    folder.claim(load_config("quickstart", words))
    with pytest.raises(ConfigError, match=r"\n  optim\.lr: .* -> 0\.7\n"):
        folder.claim(load_config("quickstart", [*words, "optim.lr=0.7"]))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"method": {"name": "{mine}:Method"}}, "method.name: {mine}:Method -> simclr"),
        ({"data": {"sources": {"a": {"name": "{mine}:Net"}}}}, "data.sources.a.name: {mine}:Net -> unset"),
    ],
)  # fmt: skip
def test_a_run_of_other_code_is_refused_and_the_code_not_imported(
    saved: Path, mine: str, mark: Path, changes: dict[str, Any], line: str
) -> None:
    config = load_config("quickstart", [*SETTINGS, f"storage={saved.parent}", "name=one"])
    rewrite(saved / "run.yaml", **read(write(changes).replace("{mine}", mine), ""))
    with pytest.raises(ConfigError) as refused:
        RunFolder.of(config).claim(config)
    assert line.replace("{mine}", mine) in str(refused.value)
    assert "go back to those settings" in str(refused.value)
    assert not mark.exists()


@pytest.mark.thorough
def test_benchmarks_may_change_also_from_code_of_ones_own(saved: Path, mine: str, mark: Path) -> None:
    config = load_config("quickstart", [*SETTINGS, f"storage={saved.parent}", "name=one"])
    rewrite(saved / "run.yaml", benchmarks={"b": {"name": f"{mine}:Bench"}})
    RunFolder.of(config).claim(config)
    assert not mark.exists()
    assert load_dumped((saved / "run.yaml").read_text()) == config
    assert to_dict(config)["benchmarks"].keys() == {"knn", "low_shot"}
