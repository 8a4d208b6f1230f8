"""A path in the place of a name does what is meant, or is answered by the line to type."""

import re
from pathlib import Path

import pytest

import raysl
from raysl.benchmarks.suite.settings import other_data
from raysl.cli.arguments import load_run
from raysl.cli.benchmark import _one_checkpoint, _sort_arguments
from raysl.cli.locate import find_config
from raysl.cli.sweep import _load as load_plan
from raysl.config.dump import dump
from raysl.config.load import load_config
from raysl.config.places import IMAGES as ENDINGS
from raysl.config.places import has_images, is_place, kind_of, source_at
from raysl.data.sources.listing import is_image
from raysl.errors import ConfigError
from raysl.sweeps.load import load_sweep
from tests.console import Console
from tests.data.samples import png


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, with images of every kind, weights and a run."""
    monkeypatch.chdir(tmp_path)
    for name in ("pics/train/sun/a.png", "pics/train/moon/b.png", "rows/train-0.parquet", "tars/train-0.tar"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(0) if name.endswith("png") else b"")
    (tmp_path / "list.csv").write_text("path\n")
    (tmp_path / "net.pth").write_bytes(b"")
    config = load_config("quickstart", ["name=old", "storage=gone", "train.epochs=7"])
    (tmp_path / "runs/x/checkpoint_000000001").mkdir(parents=True)
    (tmp_path / "runs/x/run.yaml").write_text(dump(config))
    (tmp_path / "runs/x/checkpoint_000000001/meta.json").write_text("{}")
    return tmp_path


@pytest.mark.parametrize(
    ("place", "source"),
    [
        ("pics", {"name": "image_folder", "path": "pics"}),
        ("./rows", {"name": "parquet", "path": "./rows"}),
        ("rows/train-0.parquet", {"name": "parquet", "path": "rows/train-0.parquet"}),
        ("tars/", {"name": "webdataset", "path": "tars/"}),
        ("list.csv", {"name": "file_list", "train": "list.csv"}),
    ],
)
def test_images_are_read_by_the_source_of_their_kind(place: str, source: dict[str, str]) -> None:
    assert source_at(place) == source
    for words in (["simclr", place], ["simclr", f"data={place}"]):
        data = load_run(words, low_resource=False).data
        assert (
            data
            == load_config(
                "simclr", [f"data={source['name']}", *(f"data.{k}={v}" for k, v in list(source.items())[1:])]
            ).data
        )


def test_images_of_each_ending_that_is_read_make_a_folder_of_images(here: Path) -> None:
    for number, ending in enumerate(ENDINGS):
        folder = here / f"of/{number}"
        folder.mkdir(parents=True)
        (folder / f"a.{ending.upper()}").write_bytes(b"")
        assert has_images(str(folder))
        assert is_image(f"a.{ending.upper()}")


def test_images_in_a_bucket_are_listed() -> None:
    import fsspec

    fsspec.filesystem("memory").pipe("/raysl_places/set/train/a.parquet", b"")
    assert source_at("memory://raysl_places/set")["name"] == "parquet"


def test_a_file_of_settings_and_a_benchmark_take_a_path_too(here: Path) -> None:
    (here / "mine.yaml").write_text("base: simclr\ndata: pics\nname: emoji\nstorage: elsewhere\n")
    config = load_config("mine.yaml")
    assert (config.data.name, config.name, config.storage) == ("image_folder", "emoji", "elsewhere")
    assert load_config("mine.yaml", ["name=other", "storage=there"]).name == "other"
    assert other_data(config.data, "rows").name == "parquet"


def test_names_win_over_folders_and_classes_are_no_paths(here: Path) -> None:
    (here / "digits").mkdir()
    (here / "simclr").mkdir()
    assert load_config("simclr", ["data=digits"]).data.name == "digits"
    assert load_run(["simclr"], low_resource=False).name == "simclr"
    assert not is_place("mine/net.py:Net")
    assert not is_place("package.module:Net")


@pytest.mark.thorough
def test_a_run_goes_on_by_its_folder_where_it_lies_now(here: Path) -> None:
    config = load_run(["runs/x"], low_resource=False)
    assert (config.name, config.storage, config.train.epochs) == ("x", str(here / "runs"), 7)
    assert load_run(["runs/x", "train.epochs=9", "name=y"], low_resource=False).name == "y"
    again = load_config("quickstart", ["name=x", f"storage={here}/runs"])
    (here / "runs/x/run.yaml").write_text(dump(again))
    assert find_config("runs/x", [], "pretrain") == (str(here / "runs/x/run.yaml"), [])


def test_code_that_a_run_names_is_not_loaded_by_its_folder_alone(here: Path) -> None:
    text = (here / "runs/x/run.yaml").read_text()
    (here / "evil.py").write_text("raise SystemError\n")
    (here / "runs/x/run.yaml").write_text(text.replace("name: simclr", "name: evil.py:Evil", 1))
    with pytest.raises(ConfigError, match=r"type `raysl pretrain runs/x/run.yaml`"):
        load_run(["runs/x"], low_resource=False)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["config", "pics"], r"'pics' is images; .*`raysl config simclr pics`"),
        (["config", "runs/x/checkpoint_000000001"], "its run goes on by `raysl pretrain runs/x`"),
        (["config", "net.pth"], "`raysl config CONFIG method.weights=net.pth` begins with it"),
        (["config", "simclr", "gone/pics"], "data: 'gone/pics': nothing is there; give a folder of images"),
        (["config", "simclr", "data=gone/pics"], "data: 'gone/pics': nothing is there; give a folder of images"),
        (["config", "simclr", "runs/x"], "data: 'runs/x' is a run, not images"),
        (["plan", "sweep/quickstart"], "is a sweep, not a configuration of a run; type `raysl sweep sweep/quickstart`"),
        (["sweep", "simclr"], "is the configuration of a run, not a sweep; type `raysl pretrain simclr`"),
        (["benchmark", "net.pth"], "then type `raysl benchmark runs/theirs PATH_OF_IMAGES`"),
        (["benchmark", "gone.pth", "knm"], r"did you mean 'knn'\? .*\nerror: no checkpoint at '.*gone.pth'"),
        (["benchmark", "runs/x", "pics", "knn", "rows"], r"error: 'pics', 'rows' are 2 paths of images; give one"),
        (["benchmark", "runs/x", "it's"], r"error: unknown benchmark \"it's\"; known"),
        (["extract", "gone/x", "stray", "sage=1"], "no checkpoint at '.*gone/x'.*\nerror: 'stray' is neither"),
        (
            ["plan", "simclr", "stray", "data.path=gone/p", "seed=x"],
            r"'stray' is.*\n.*seed: 'x'.*\n.*nothing is at 'gone",
        ),
        (["ingest", "pics", "--quality", "9", "seed=x"], r"--quality has no .*\n.*--out is missing.*\n.*seed: 'x'"),
        (["extract"], "give a run or a checkpoint: `raysl extract runs/mine`"),
        (["extract", "x"], "no checkpoint at '.*/x'; did you mean runs/x\\? Else give the folder"),
        (["cluster", "pics"], "give one, and images after it: `raysl cluster runs/mine pics`"),
    ],
)
def test_what_cannot_be_meant_is_answered_by_the_line_to_type(console: Console, words: list[str], message: str) -> None:
    code, out, err = console(*words)
    assert (code, out) == (2, "")
    assert re.search(message, err), err


def test_benchmarks_and_features_take_a_run_and_images_by_their_paths() -> None:
    assert _sort_arguments(["runs/x", "pics", "knn", "knn.k=5"], []) == (
        ["runs/x"],
        ["knn"],
        ['data="pics"', "knn.k=5"],
    )
    assert _one_checkpoint(["runs/x", "rows", "seed=1"], None, "extract") == ("runs/x", ['data="rows"', "seed=1"])
    assert _one_checkpoint(["rows"], "runs/x", "extract") == ("runs/x", ['data="rows"'])


def test_ingest_needs_no_configuration_beside_images() -> None:
    assert load_run(["pics"], low_resource=False, command="ingest").data.name == "image_folder"


def test_ingest_says_nothing_of_settings_of_views(console: Console) -> None:
    _, _, err = console("ingest", "data=image_folder", "data.path=gone")
    assert "--out is missing" in err
    assert "dropped" not in err
    assert "views" not in err


def test_converted_weights_in_place_of_a_configuration_are_answered_by_the_line_to_type(
    console: Console, here: Path
) -> None:
    checkpoint = here / "c/theirs/checkpoint_000000000"
    checkpoint.mkdir(parents=True)
    (checkpoint / "meta.json").write_text('{"method": "imported", "step": 0}')
    (checkpoint / "run.yaml").write_text("name: theirs\n")
    for place in ("c/theirs", "c/theirs/checkpoint_000000000"):
        code, _, err = console("pretrain", place)
        assert code == 2
        assert f"type `raysl pretrain CONFIG method.weights={place}`" in err


def test_a_sweep_is_printed_with_the_meaning_of_each_setting_and_loads_back(console: Console, here: Path) -> None:
    code, out, err = console("config", "sweep/quickstart", "trials=9", "name=mine", "train.epochs=3")
    assert (code, err) == (0, "")
    assert re.search(r"^trials: 9 +# Number of choices to draw from the space", out, re.MULTILINE)
    assert re.search(r"^storage: null +# Folder or URI", out, re.MULTILINE)
    assert "\n# beside them, of its runs: train.epochs=3\n# Ray Tune gets\n" in out
    assert re.search(r"^#   scheduler: ray.tune.schedulers.ASHAScheduler\(.*max_t=3, ", out, re.MULTILINE)
    (here / "printed.yaml").write_text(out)
    assert load_sweep("printed.yaml") == (load_sweep("sweep/quickstart", ["trials=9", "name=mine"])[0], [])


@pytest.mark.thorough
def test_name_and_storage_of_a_sweep_stand_in_its_file_and_the_command_line_wins(here: Path) -> None:
    (here / "search.yaml").write_text("name: mine\nstorage: here\nspace: {optim.lr: {choice: [0.1, 0.2]}}\n")
    assert load_sweep("search.yaml")[0].name == "mine"
    plan = load_plan("search.yaml", ["storage=there"], low_resource=False)
    assert (plan.base.name, plan.base.storage) == ("mine", str(here / "there"))
    (here / "search.yaml").write_text("space: {optim.lr: {choice: [0.1, 0.2]}}\n")
    assert load_plan("search.yaml", [], low_resource=False).base.name == "search"
    (here / "search.yaml").write_text("name: [a]\nspace: {optim.lr: {choice: [0.1, 0.2]}}\n")
    with pytest.raises(ConfigError, match=r"name: .* is not of type text"):
        load_sweep("search.yaml")


def test_a_file_of_weights_in_place_of_a_checkpoint_is_told() -> None:
    assert kind_of("net.pth") == "weights"
    with pytest.raises(ConfigError, match=r"raysl convert .*net\.pth --out runs/theirs"):
        raysl.load_backbone("net.pth")
