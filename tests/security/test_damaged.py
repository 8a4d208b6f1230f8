"""Files that a crash, a power loss or a stranger has changed: an error with the file's name, or a word and the rest."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from raysl.checkpoint.backbone import load_checkpoint
from raysl.checkpoint.checkpoint_folder import Damaged, Kept, newest_whole, read_meta, seal
from raysl.checkpoint.tensors import load_tensors
from raysl.config.load import load_config
from raysl.errors import ConfigError
from raysl.leaderboard.leaderboard_json import parse
from raysl.plan.setup import Setup
from raysl.report.report_json import parse_report_json
from raysl.storage.folder import Folder
from raysl.storage.records import fits, read_record
from raysl.train.callbacks.logs import parse_metrics
from raysl.train.state import TrainState
from raysl.tune.trial import NOTE_FILE, Note

SETTINGS = ("backbone.num_stages=1", "backbone.width=4", "method.hidden_dim=8", "method.output_dim=4")
NOT_JSON = [b"", b"{", b"\x00" * 64, b'{"format": 1, "\xff": 1}', b"[1, 2]", b"3", b'"text"', b"null", b"[" * 100_000]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tmp_path = tmp_path_factory.mktemp("saved")
    config = load_config("quickstart", [*SETTINGS, f"storage={tmp_path}", "name=one"])
    folder = tmp_path / "one" / "checkpoint_000000001"
    TrainState.create(Setup.of(config, 64, 10)).save(folder, {})
    return folder


@pytest.fixture
def copy(saved: Path, tmp_path: Path) -> Path:
    for file in saved.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def change_meta(folder: Path, **changes: Any) -> None:
    file = folder / "meta.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


@pytest.mark.parametrize("content", NOT_JSON)
def test_a_damaged_meta_json_is_named(copy: Path, content: bytes) -> None:
    (copy / "meta.json").write_bytes(content)
    with pytest.raises(Damaged, match=r"is not a checkpoint: .*meta\.json is damaged: "):
        read_meta(Folder(str(copy)))


@pytest.mark.parametrize(
    "changes",
    [
        {"files": [1]},
        {"files": {"backbone.safetensors": 3}},
        {"files": {"backbone.safetensors": {}}},
        {"files": {}},
        {"epochs": None},
        {"files": {"backbone.safetensors": {"size": "3", "sha256": "x"}}},
        {"step": "many"},
        {"step": None},
        {"method": 3},
        {"data": [1]},
    ],
)
def test_a_wrong_type_in_meta_json_is_named(copy: Path, changes: dict[str, Any]) -> None:
    change_meta(copy, **changes)
    with pytest.raises(Damaged, match=r"meta\.json.* is damaged: "):
        load_checkpoint(str(copy))


@pytest.mark.parametrize("data", [{}, {"num_samples": "3", "num_classes": 1}, {"num_samples": 3, "num_classes": None}])
def test_wrong_facts_of_the_images_are_named(copy: Path, data: dict[str, Any]) -> None:
    change_meta(copy, data=data)
    with pytest.raises(Damaged, match=r"meta\.json: data is damaged: "):
        _ = load_checkpoint(str(copy)).data


def test_a_checkpoint_of_wrong_types_is_passed_over(saved: Path, tmp_path: Path) -> None:
    for number in (1, 2):
        folder = tmp_path / f"checkpoint_{number:09d}"
        folder.mkdir()
        for file in saved.iterdir():
            (folder / file.name).write_bytes(file.read_bytes())
    change_meta(folder, files=3)
    newest = newest_whole(Folder(str(tmp_path)))
    assert newest.name == "checkpoint_000000001"
    assert "meta.json is damaged: 'files' is 3" in newest.passed_over[0]


@pytest.mark.parametrize("content", [b"", b"x" * 100, b"\xff" * 8 + b"{}", (8).to_bytes(8, "little") + b'{"a": 1}'])
def test_a_damaged_backbone_is_named(copy: Path, content: bytes) -> None:
    (copy / "backbone.safetensors").write_bytes(content)
    meta = json.loads((copy / "meta.json").read_text())
    seal(copy, {key: value for key, value in meta.items() if key not in ("format", "files")})
    with pytest.raises(ConfigError, match=r"cannot load the backbone of .*backbone\.safetensors"):
        load_checkpoint(str(copy))


def test_settings_that_are_not_utf_8_are_named(copy: Path) -> None:
    (copy / "run.yaml").write_bytes(b"name: \xff\n")
    with pytest.raises(ConfigError, match=r"run\.yaml is damaged: it is not UTF-8"):
        load_checkpoint(str(copy))


@pytest.mark.parametrize("tree", [[1, 2], torch.zeros(2), 3])
def test_a_state_of_another_type_is_named(tmp_path: Path, tree: Any) -> None:
    torch.save(tree, tmp_path / "train_state.pt")
    with pytest.raises(ConfigError, match=r"train_state\.pt is damaged: it is "):
        load_tensors(tmp_path / "train_state.pt")


@pytest.mark.parametrize("content", [*NOT_JSON[1:], b"{}", b'{"rule": 1, "best": [], "always": []}'])
def test_a_damaged_kept_json_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "kept.json").write_bytes(content)
    with pytest.raises(Damaged, match=r"kept\.json is damaged"):
        Kept.read(Folder(str(tmp_path)))


# files of a run and of a sweep

GOOD = b'{"step": 1, "epoch": 0.5, "loss": 2.5}\n'


@pytest.mark.parametrize(
    "bad", [b"\x00" * 40, b'{"step": 2, "lo\xff": 1}', b"[1]", b"3", b'{"loss": 1}', b'{"step": 2, "loss": "x"}', b"{"]
)
def test_metrics_are_read_without_the_damaged_line(bad: bytes, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert parse_metrics(GOOD + bad + b"\n" + GOOD, "runs/a/metrics.jsonl") == 2 * [json.loads(GOOD)]
    assert "runs/a/metrics.jsonl: 1 damaged line is left out: line 2: " in caplog.text
    assert parse_metrics(GOOD + bad) == [json.loads(GOOD)]


def test_metrics_that_are_not_finite_are_read() -> None:
    (line,) = parse_metrics(b'{"step": 1, "epoch": 0.5, "loss": NaN, "other": Infinity}\n')
    assert line["other"] == float("inf")


@pytest.mark.parametrize(
    "content",
    [
        *NOT_JSON,
        b'{"format": 1}',
        b'{"format": 1, "status": "finished", "until": 3, "metrics": [1]}',
        b'{"format": 1, "status": "finished", "until": 3, "metrics": {}, "intervals": {"a": 3}}',
        b'{"format": 1, "status": "odd", "until": 3, "metrics": {}, "intervals": {}}',
        b'{"format": 1, "status": "finished", "until": 3, "metrics": {"a": "x"}, "intervals": {}}',
    ],
)
def test_a_damaged_note_of_a_trial_counts_as_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / NOTE_FILE).write_bytes(content)
    assert Note.read(Folder(str(tmp_path))) is None


def test_a_note_reads_back(tmp_path: Path) -> None:
    note = Note("finished", 3, 2.5, {"a": 1.0}, {"a": (0.5, 1.5)}, {"a": "%"}, {"step_s": 0.1}, "", {"knn": ["x", "y"]})
    note.write(Folder(str(tmp_path)))
    assert Note.read(Folder(str(tmp_path))) == note


@pytest.mark.parametrize("content", [*NOT_JSON, b"{}", b'{"format": 1, "entries": 3, "facts": {}}'])
def test_a_damaged_leaderboard_is_named(content: bytes) -> None:
    text = content.decode("utf-8", "surrogateescape")
    with pytest.raises(ConfigError, match=r"x/leaderboard\.json is no leaderboard\.json of format 1"):
        parse(text, "x/leaderboard.json")


@pytest.mark.parametrize("change", [{"scores": 3}, {"scores": [3]}, {"scores": [{}]}, {"notes": [1]}, {"config": []}])
def test_a_damaged_report_is_named(change: dict[str, Any]) -> None:
    whole: dict[str, Any] = {"format": 1, "scores": [], "name": "a", "method": "b", "backbone": "c", "dataset": "d"}
    assert parse_report_json(json.dumps(whole), "x").name == "a"
    with pytest.raises(ConfigError, match=r"x/report\.json is damaged"):
        parse_report_json(json.dumps(whole | change), "x/report.json")


@pytest.mark.parametrize("content", NOT_JSON)
def test_one_function_reads_records(content: bytes) -> None:
    with pytest.raises(Damaged, match="x is damaged: "):
        read_record(content, "x")


@pytest.mark.parametrize(
    ("value", "kind", "does_fit"),
    [
        (1, float, True),
        (1.5, int, False),
        (True, float, False),
        (None, int | None, True),
        ([1, "a"], tuple[int, str], True),
        ([1], tuple[int, str], False),
        ([], tuple[int, ...], True),
        ({"a": "x"}, dict[str, float], False),
        ("a", list[str], False),
    ],
)
def test_types_are_those_of_annotations(value: Any, kind: Any, does_fit: bool) -> None:
    assert fits(value, kind) is does_fit
