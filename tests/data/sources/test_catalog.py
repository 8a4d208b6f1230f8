from pathlib import Path

import pytest

from raysl.config.config_files import config_names
from raysl.config.load import load_config
from raysl.data.source import Source
from raysl.data.sources.catalog import Catalog, dataset_config, entries
from raysl.data.sources.image_folder import ImageFolder
from raysl.errors import ConfigError
from tests.data.samples import all_rows, png


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Datasets are below the test's folder, and there is no catalog but the packaged one."""
    monkeypatch.setenv("RAYSL_DATA", str(tmp_path))
    monkeypatch.delenv("RAYSL_CATALOG", raising=False)


def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> Path:
    file = tmp_path / "own.yaml"
    file.write_text(text)
    monkeypatch.setenv("RAYSL_CATALOG", str(file))
    return file


def source(dataset: str, **settings: object) -> Source:
    return Catalog(Catalog.Config(dataset=dataset, **settings))  # type: ignore[arg-type]


def images(tmp_path: Path, *files: str) -> None:
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_bytes(png(int(Path(file).stem)))


def test_a_packaged_name_reads_the_dataset_below_the_root(tmp_path: Path) -> None:
    images(tmp_path, "imagenet1k/train/n1/1.png", "imagenet1k/train/n2/2.png", "imagenet1k/val/n2/3.png")
    rows = all_rows(source("imagenet1k").required("train"))
    assert (rows.images, rows.labels.tolist()) == ([png(1), png(2)], [0, 1])
    assert all_rows(source("imagenet1k").required("test")).labels.tolist() == [1]


def test_a_list_of_one_percent_picks_training_images_alone(tmp_path: Path) -> None:
    images(tmp_path, "imagenet1k/train/n1/1.png", "imagenet1k/train/n2/2.png", "imagenet1k/val/n1/3.png")
    (tmp_path / "imagenet_subsets").mkdir()
    (tmp_path / "imagenet_subsets/1percent.txt").write_text("2.png\nn1/1\n")
    (tmp_path / "imagenet_subsets/10percent.txt").write_text("2.png\n")
    assert source("imagenet1k_1percent").required("train").num_samples == 2
    assert all_rows(source("imagenet1k_10percent").required("train")).images == [png(2)]
    assert all_rows(source("imagenet1k_10percent").required("test")).images == [png(3)]
    assert source("imagenet1k_1percent", limit=1).required("train").num_samples == 1


def test_every_packaged_entry_is_a_source_with_right_settings() -> None:
    names = list(entries())
    assert len(names) > 30
    for name in names:
        config, file = dataset_config(name)
        assert file.name == "catalog.yaml"
        assert config.name != "catalog"
    assert "catalog" not in config_names(), "it is no configuration of a run"


def test_the_root_is_data_in_the_home_folder_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAYSL_DATA")
    monkeypatch.setenv("HOME", "/home/ada")
    config, _ = dataset_config("imagenet1k")
    assert isinstance(config, ImageFolder.Config)
    assert config.path == "/home/ada/data/imagenet1k"


def test_own_entries_come_first_and_the_packaged_ones_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = own(tmp_path, monkeypatch, "imagenet1k: {name: parquet, path: '{root}/x.parquet'}\nmine: digits\n")
    config, where = dataset_config("imagenet1k")
    assert (config.name, where) == ("parquet", file)
    assert source("mine").required("train").classes == tuple("0123456789")
    assert dataset_config("places205")[0].name == "image_folder"


def test_an_unknown_name_comes_with_near_ones_and_both_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = own(tmp_path, monkeypatch, "imagenet9k: {name: digits}\n")
    with pytest.raises(ConfigError) as caught:
        source("imagenet2k").required("train")
    message = str(caught.value)
    assert message.startswith(f"no dataset 'imagenet2k' in {file} and /")
    assert "configs/catalog.yaml; did you mean 'imagenet" in message
    assert "imagenet9k" in message


def test_what_is_missing_is_told_with_its_path_and_catalog(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=rf"no folder '{tmp_path}/places205'.* \(dataset 'places205' of /.*/catalog.yaml\)"
    ):
        source("places205").required("train")
    with pytest.raises(ConfigError, match=r"catalog needs data.dataset="):
        Catalog(Catalog.Config()).required("train")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "mine: {name: image_folder, pth: /x}",
            r"own.yaml: mine: image_folder has no setting 'pth'; did you mean 'path'\? it has .*path, ",
        ),
        ("mine: {name: image_folder, optim: {lr: 1}}", r"own.yaml: mine: image_folder has no setting 'optim'; it has "),
        (
            "mine: {name: image_folder, path: 3}",
            r"own.yaml: mine: path: 3 is not of type text or null; put what you wrote in quotes$",
        ),
        ("mine: {name: image_fodler}", r"own.yaml: mine: unknown source 'image_fodler'; did you mean"),
        (
            "mine: {path: /x}",
            r"own.yaml: mine: the name of a source is missing; write {name: NAME, ...} with one of",
        ),
        ("mine: 3", r"own.yaml: mine: 3 is not a source; write {name: image_folder, path: ...}"),
        (
            "mine: {name: concat, sources: {a: {name: digits, mena: 3}}}",
            r"mine: sources.a: digits has no setting 'mena'",
        ),
        ("mine: {name: catalog, dataset: mine}", r"own.yaml: mine -> mine is a circle; give mine a source"),
        (
            "mine: {name: catalog, dataset: b}\nb: {name: catalog, dataset: mine}",
            r"mine -> b -> mine is a cir",
        ),
        ("mine: {name: concat, sources: {a: {name: catalog, dataset: mine}}}", r"mine -> mine is a circle"),
        ("mine: {name: digits, mean: [0.5, 0.5, 0.5]}", r"own.yaml: mine: mean has no effect there; set data.mean ins"),
        ("[mine]", r"own.yaml holds no datasets; write lines such as"),
        ("mine: {", r"own.yaml.*: not YAML"),
    ],
)
def test_wrong_entries_are_told_with_their_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    own(tmp_path, monkeypatch, text)
    with pytest.raises(ConfigError, match=message):
        source("mine").required("train")


def test_an_entry_may_stand_on_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own(tmp_path, monkeypatch, "few: {name: catalog, dataset: all, limit: 5}\nall: digits\n")
    assert source("few").required("train").num_samples == 5


def test_a_catalog_that_is_absent_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYSL_CATALOG", str(tmp_path / "gone.yaml"))
    with pytest.raises(ConfigError, match=r"no catalog '.*/gone.yaml'; the variable RAYSL_CATALOG names it"):
        source("imagenet1k").required("train")


def test_a_dataset_is_a_setting_of_a_run() -> None:
    config = load_config("quickstart", ["data=catalog", "data.dataset=imagenet1k", "data.limit=5"])
    assert config.data == Catalog.Config(dataset="imagenet1k", limit=5, image_size=config.data.image_size,
                                         mean=config.data.mean, std=config.data.std)  # fmt: skip
