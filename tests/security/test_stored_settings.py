"""What a checkpoint's settings may do without `trust_code`: name places that are read, and nothing else."""

import json
import logging
import time
from pathlib import Path
from typing import Any

import pytest

from raysl.checkpoint.backbone import load_backbone, load_checkpoint
from raysl.config.config_files import read
from raysl.config.dump import to_dict, write
from raysl.config.load import apply_overrides, load_config, load_dumped
from raysl.data.sources.file_list import FileList
from raysl.errors import ConfigError
from raysl.plan.setup import Setup
from raysl.storage.addresses import open_uri
from raysl.storage.foreign import READ_ONLY, WITHHELD, problem
from raysl.train.state import TrainState

SETTINGS = ("backbone.num_stages=1", "backbone.width=4", "method.hidden_dim=8", "method.output_dim=4")


@pytest.fixture(scope="module")
def text() -> str:
    return write(to_dict(load_config("quickstart", SETTINGS)))


def changed(text: str, **changes: Any) -> str:
    tree = read(text, "")
    return write({**tree, **{key: {**tree[key], **value} for key, value in changes.items()}})


def source(name: str, **settings: Any) -> dict[str, Any]:
    return {"data": {"name": name, **settings}}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("uri", "reason"),
    [
        ("reference://::file:///tmp/refs.json", "chains clients with ::"),
        ("reference://x", "scheme reference://"),
        ("simplecache::s3://bucket/x", "chains"),
        ("zip://a.png::https://host/x.zip", "chains"),
        ("github://org:repo@main/x", "scheme github://"),
        ("sftp://host/x", "scheme sftp://"),
        ("hdfs://host/x", "scheme hdfs://"),
        ("s3://bucket/x?endpoint_override=evil.example", "parameter endpoint_override="),
        ("S3://bucket/x?scheme=http&region=us-east-1", "parameter scheme="),
        ("s3://bucket/x?endpoint%5Foverride=evil.example", "parameter endpoint_override="),
        ("s3://bucket/x?allow_bucket_deletion=true", "parameter allow_bucket_deletion="),
        ("gs://bucket/x?endpoint_override=evil.example", "parameter endpoint_override="),
        ("abfs://container@evil.example/x", "host evil.example"),
        ("abfs://container@account.core.windows.net.evil.example/x", "host account.core.windows.net.evil.example"),
        ("file://host/share", "host host"),
    ],
)
def test_a_place_that_is_more_than_read_is_refused_where_it_is_used(text: str, uri: str, reason: str) -> None:
    stored = changed(text, **source("image_folder", path=uri))
    config = load_dumped(stored, "the checkpoint x")
    with pytest.raises(ConfigError) as refused:
        open_uri(config.data.path)  # type: ignore[attr-defined]
    assert reason in str(refused.value)
    assert "trust_code=True" in str(refused.value)
    assert load_dumped(stored, trust_code=True).data.path == uri  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "path",
    [
        "/data/images",
        "/data/a::b",
        "file:///data/images",
        "s3://bucket/images?region=eu-west-1",
        "s3://***@bucket/images",
        "gs://bucket/images?retry_limit_seconds=5",
        "abfs://container@account.dfs.core.windows.net/x",
        "hf://datasets/org/name",
        "https://host/images?token=***&v=2",
    ],
)
def test_plain_places_stay_as_they_were_stored(text: str, path: str) -> None:
    assert load_dumped(changed(text, **source("image_folder", path=path))).data.path == path  # type: ignore[attr-defined]


def test_every_scheme_that_is_allowed_is_known_to_a_client() -> None:
    import fsspec

    arrow = {"file", "s3", "gs", "gcs", "abfs", "abfss"}
    assert set(READ_ONLY) - arrow <= set(fsspec.available_protocols())


def test_places_are_withheld_wherever_they_stand(text: str) -> None:
    evil = "reference://::file:///x"
    tree = read(text, "")
    tree["data"] = {
        "name": "concat",
        "sources": {
            "a": {"name": "file_list", "train": "/a.txt", "replace_prefix": {"/": evil}},
            "b": {"name": "webdataset", "path": "/b", "index": "/home/me"},
            "c": {"name": "torchvision", "dataset": "CIFAR10", "root": "/home/me", "download": True},
        },
    }
    tree["method"]["weights"] = evil
    tree["benchmarks"] = {"retrieval": {"path": evil}}
    config: Any = load_dumped(write(tree))
    sources = config.data.sources
    assert sources["a"].replace_prefix == {"/": WITHHELD + evil}
    assert sources["b"].index is None
    assert sources["c"].download is False
    assert config.method.weights == WITHHELD + evil
    assert config.benchmarks["retrieval"].path == WITHHELD + evil


@pytest.mark.thorough
def test_what_writes_is_left_out_with_a_word(text: str, caplog: pytest.LogCaptureFixture) -> None:
    stored = changed(text, **source("torchvision", dataset="CIFAR10", root="/nowhere", download=True))
    with caplog.at_level(logging.WARNING):
        assert load_dumped(stored, "the checkpoint x").data.download is False  # type: ignore[attr-defined]
    assert "the checkpoint x asks for data.download=True, which is left out" in caplog.text
    assert load_dumped(stored, trust_code=True).data.download is True  # type: ignore[attr-defined]


@pytest.mark.thorough
def test_a_network_that_is_fetched_by_its_name_asks_for_trust(text: str) -> None:
    pytest.importorskip("timm")
    for model in ("hf-hub:evil/net", "hf_hub:evil/net", "local-dir:/tmp/net"):
        tree = read(text, "")
        tree["backbone"] = {"name": "timm", "model": model}
        with pytest.raises(ConfigError, match="is fetched by that name"):
            load_dumped(write(tree))


@pytest.mark.thorough
def test_variables_of_the_environment_are_not_put_into_stored_places(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "hunter2")
    config = load_dumped(changed(text, **source("image_folder", path="https://evil.example/$SECRET/${oc.env:SECRET}")))
    for one in (config, apply_overrides(config, ["data.limit=5"])):
        assert "hunter2" not in repr(one)


@pytest.mark.thorough
def test_a_checkpoint_with_a_withheld_source_loads_and_takes_another(tmp_path: Path) -> None:
    from raysl.benchmarks.suite.settings import load_data

    config = load_config("quickstart", [*SETTINGS, f"storage={tmp_path}", "name=one"])
    folder = tmp_path / "checkpoint_000000001"
    TrainState.create(Setup.of(config, 64, 10)).save(folder, {})
    minio = "s3://mine/images?endpoint_override=http://minio:9000"
    settings = folder / "run.yaml"
    settings.write_text(changed(settings.read_text(), **source("image_folder", path=minio)))
    assert load_backbone(str(folder)).feature_dim == 4
    loaded = load_checkpoint(str(folder))
    assert load_data(loaded.config, ["data.path=/b"]).path == "/b"  # type: ignore[attr-defined]
    assert load_data(loaded.config, ["data=digits"]).name == "digits"
    assert load_checkpoint(str(folder), trust_code=True).config.data.path == minio  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "override",
    [
        "optim.name=/tmp/evil.py:Optim",
        "optim={name: evil:Optim}",
        'optim.name="/tmp/evil\\x2epy\\x3aOptim"',
        "callbacks.a={name: function, function: evil:f}",
        "storage=/home/me",
        "base=/tmp/evil.yaml",
        "data.path=/home/me",
        "data.download=true",
        "data.sources={a: {download: true}}",
        "method.weights=s3://b/x",
        "optim.lr=${oc.env:SECRET}",
        "optim.betas=[&a [*a]]",
    ],
)
def test_an_override_of_a_benchmark_names_no_code(text: str, override: str) -> None:
    stored = changed(text, benchmarks={"finetune": {"settings": [override]}})
    with pytest.raises(ConfigError, match=r"benchmarks\.finetune\.settings: .* could name code or a place"):
        load_dumped(stored)


def test_plain_overrides_of_a_benchmark_stay(text: str) -> None:
    plain = (
        "optim.lr=0.3",
        "optim=adamw",
        "train.log_every=1%",
        "optim.betas=[0.9, 0.99]",
        "optim={name: adamw, lr: 1e-3}",
    )
    stored = changed(text, benchmarks={"finetune": {"settings": list(plain)}})
    assert load_dumped(stored).benchmarks["finetune"].settings == plain  # type: ignore[attr-defined]


# lists of images


@pytest.mark.parametrize("line", ["reference://::file:///refs.json", "s3://b/x.png?endpoint_override=evil.example"])
def test_a_list_names_places_that_are_only_read(tmp_path: Path, line: str) -> None:
    listed = tmp_path / "list.jsonl"
    listed.write_text(json.dumps({"path": line}))
    with pytest.raises(ConfigError, match=r"list\.jsonl lists .* which (chains|has)"):
        FileList(FileList.Config(train=str(listed))).split("train")


def test_a_variable_in_a_query_is_no_reason_to_refuse() -> None:
    assert problem("https://host/x.png?sig=1%2F2&endpoint_override=3") is None


# YAML that grows


def bomb(levels: int, width: int = 9) -> str:
    lines = ["a0: &a0 [x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * width)}]" for n in range(1, levels)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    "stored",
    [bomb(9), bomb(60, 2), "a: &a [*a]", "a: &a {b: *a}", "a: &a {b: 1}\nc: {<<: *a}"],
    ids=["wide", "deep", "circle", "circle of a dict", "merge"],
)
def test_aliases_are_refused_at_once(stored: str) -> None:
    start = time.perf_counter()
    with pytest.raises(ConfigError, match=r"the checkpoint x line \d+: stored settings have no aliases"):
        load_dumped(stored, "the checkpoint x")
    assert time.perf_counter() - start < 1


@pytest.mark.parametrize("stored", ["[" * 100_000, "a: " + "{b: " * 5_000, "- " * 20_000])
def test_deep_nesting_is_refused_at_once(stored: str) -> None:
    start = time.perf_counter()
    with pytest.raises(ConfigError, match="nested more than 40 levels"):
        load_dumped(stored)
    assert time.perf_counter() - start < 2


def test_a_users_own_yaml_may_have_aliases_and_no_circles(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("base: quickstart\noptim: {lr: &lr 0.5, momentum: *lr}\n")
    assert load_config(str(file)).optim.lr == 0.5
    file.write_text("method: &a [*a]\n")
    with pytest.raises(ConfigError, match="nested too deeply, or an alias of itself"):
        load_config(str(file))


def test_settings_beyond_all_measure_are_refused() -> None:
    with pytest.raises(ConfigError, match="more than the 8,000,000"):
        load_dumped("a: " + "x" * 8_000_000)
