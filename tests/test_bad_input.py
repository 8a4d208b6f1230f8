"""What is wrong with the input is told once, before any worker starts: exit code 2, one message, nothing lost."""

import json
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray
from PIL import Image

from raysl import cli
from raysl.config.load import load_config
from raysl.data.decode.images import read_images
from raysl.data.sources.image_folder import ImageFolder
from raysl.methods.simclr import SimCLR
from raysl.optim.build import lr_at, peak_lr
from raysl.plan.plan import TrainPlan
from raysl.plan.setup import Setup
from raysl.runs.folder import RunFolder
from raysl.storage.owner import own_folder
from raysl.train.state import TrainState

SMALL = ("backbone.num_stages=1", "backbone.width=4", "method.hidden_dim=8", "method.output_dim=4")
CHATTY = """
from raysl.methods.simclr import SimCLR

class Chatty(SimCLR):
    @classmethod
    def views(cls, setup):
        raise ValueError("3 views are too many")

    @classmethod
    def check(cls, setup):
        pass
"""
Refused = Callable[..., str]


def picture(folder: Path, name: str, mode: str = "RGB", size: tuple[int, int] = (20, 16)) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(len(name)).integers(0, 256, (size[1], size[0], 3), np.uint8)
    Image.fromarray(noise).convert(mode).save(path)


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory: some data, good and bad."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "read.me").write_text("no image")
    (tmp_path / "mine.py").write_text("class Mine: pass\n")
    (tmp_path / "broken.py").write_text("import nowhere_to_be_found\n")
    (tmp_path / "recipes.py").write_text(CHATTY)
    pq.write_table(pa.table({"picture": [b"x"], "label": [1]}), tmp_path / "columns.parquet")
    (tmp_path / "text.parquet").write_text("this is text, not Parquet")
    for number in range(6):
        for split in ("train", "val"):
            picture(tmp_path, f"flat/{split}/{number}.png")
    return tmp_path


@pytest.fixture
def refused(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Refused:
    """Runs a command that must be refused; gives its message."""

    def run(command: str, code: int = 2) -> str:
        before = files(here)
        monkeypatch.setattr(sys, "argv", ["raysl", *shlex.split(command)])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        printed = capsys.readouterr()
        if ray.is_initialized():
            ray.shutdown()
            pytest.fail("Ray was started before the input was checked")
        assert (caught.value.code, printed.out) == (code, ""), printed.err
        lines = printed.err.splitlines()
        assert lines
        assert all(line.startswith("error: ") for line in lines), printed.err
        assert {name: content for name, content in files(here).items() if name in before} == before
        return "\n".join(line.removeprefix("error: ") for line in lines)

    return run


@pytest.mark.parametrize(
    ("words", "message"),
    [
        # settings
        ("optim.learning_rate=1", r"optim\.learning_rate: no such setting; .*\blr\b.*"),
        ("trian.epochs=1", r"trian\.epochs: no such setting; did you mean train\.epochs\?"),
        ("train.epochs=many", r"train\.epochs: 'many' is not of type int; write a whole number"),
        ("train.batch_size=0", r"train\.batch_size: 0 is out of range; give a finite number of at least 1"),
        ("optim.warmup=5", r"optim\.warmup: 5 is not of type duration; write epochs \(10ep\), steps .*"),
        ("optim.warmup=101%", r"optim\.warmup: 101% is longer than the run; give at most 100%"),
        (
            "mixd.py:Both",
            r"no configuration 'mixd\.py:Both'; a method of one's own is given as method\.name=mixd\.py:Both",
        ),
        ("nosuch", r"no configuration 'nosuch'; `raysl list configs` shows all; or give a path .*"),
        (
            "quickstart 'train.expect={a: [2, 1]}'",
            r"train\.expect\.a: \[2\.0, 1\.0\] holds no number: 2 is above 1; .*",
        ),
        # components
        ("method=simclrr", r"method\.name: unknown method 'simclrr'; did you mean 'simclr'\?.*"),
        (
            "method.name=gone.py:X",
            r"method\.name: .*no file 'gone\.py'; it is looked for at /.*/gone\.py; give the path .*, or start in .*",
        ),
        ("method.name=mine.py:Other", r"method\.name: .*mine\.py has no class 'Other'; its classes: Mine"),
        ("method.name=mine.py:Mine", r"method\.name: .*Mine has no settings; nest a frozen dataclass Config.*"),
        ("'benchmarks=[knnn]'", r"benchmarks\.knnn\.name: unknown benchmark 'knnn'; did you mean 'knn'\?.*"),
        # images
        ("data=image_folder", r"image_folder needs data\.path= or data\.train=.*"),
        ("data=image_folder data.path=gone", r"no folder '/.*/gone'; give data\.path= a folder of images"),
        (
            "data=image_folder data.path=notes",
            r"no images in '/.*/notes'; it is searched for \.jpg, .*",
        ),
        ("data=image_folder data.path=foo://x", r"cannot open 'foo://x': .*foo.*"),
        ("data=parquet data.path=gone", r"no file or folder '/.*/gone'; give a Parquet file.*"),
        ("data=parquet data.path=empty", r"no \.parquet files in '/.*/empty', sub-folders included"),
        ("data=parquet data.path=text.parquet", r"cannot read /.*/text\.parquet as Parquet: .*"),
        (
            "data=parquet data.path=columns.parquet",
            r".*/columns\.parquet has no column 'image'; its columns: picture, label; set data\.image_column=",
        ),
        (
            "data.limit=100 train.batch_size=128",
            r"100 training images do not fill a batch of 128; set train\.batch_size=32, or another of at most 100",
        ),
        # sizes
        (
            "train.batch_size=100 train.workers=8",
            r"batch 100 is not divisible by 8 workers; try train\.batch_size=96 or 104, or train\.uneven=true .*",
        ),
        (
            "train.workers=3 train.batch_size=96",
            r"the 64 lanes of a batch of 96 are not shared evenly by 3 workers; try data\.lanes=63, .*",
        ),
        ("train.batch_size=1", r"train\.batch_size is 1; SimCLR contrasts images: at least 2, better 256"),
        ("method.temperature=0", r"method\.temperature: 0\.0 is out of range; give a number in \[0\.0001, 10000\]"),
        ("method.views.num=0", r"method\.views\.num: 0 is out of range; give a number in \[1, 64\]"),
        ("method.views.size=0", r"method\.views\.size: 0 is out of range; .*"),
        ("method.name=recipes.py:Chatty", r"method\.views: 3 views are too many"),
        # places
        ("storage=foo://x", r"cannot open 'foo://x/quickstart': .*foo.*"),
        ("storage=mine.py/runs", r"cannot (create|read) '/.*/mine\.py/runs/quickstart.*': .*"),
        ("name=a/b", r"name: 'a/b' is not the name of a folder; leave out slashes, and give folders in storage"),
    ],
)
def test_pretrain_refuses(refused: Refused, here: Path, words: str, message: str) -> None:
    assert re.fullmatch(message, refused(f"pretrain {words}"))
    assert not list(here.glob("runs/*/run.yaml")), "a run that never began left its settings behind"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("method.views.num=0", r"method\.views\.num: .*"),
        ("method.name=recipes.py:Chatty", r"method\.views: 3 views are .*"),
    ],
)
def test_views_that_cannot_be_made_are_not_shown(refused: Refused, here: Path, words: str, message: str) -> None:
    assert re.fullmatch(message, refused(f"report views quickstart {words}"))
    assert not (here / "views.html").exists()


def test_all_that_is_wrong_is_told_at_once(refused: Refused) -> None:
    told = refused("pretrain optim.lr=fast train.epochs=0.5 seeed=1").splitlines()
    assert [line.split(":")[0] for line in sorted(told)] == ["optim.lr", "seeed", "train.epochs"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        "data=image_folder data.path=s3://raysl-no-such-bucket/x",
        "storage=s3://raysl-no-such-bucket/x",
        "data=parquet data.path=gs://raysl-no-such-bucket/x",
    ],
)
def test_a_bucket_that_does_not_answer_ends_soon(refused: Refused, monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    for name, value in {"AWS_EC2_METADATA_DISABLED": "true", "HTTPS_PROXY": "http://127.0.0.1:9"}.items():
        monkeypatch.setenv(name, value)
    start = time.monotonic()
    told = refused(f"pretrain {words}")
    assert re.fullmatch(
        r"cannot (open|read|create) '(s3|gs)://raysl-no-.*; check the address, the network and .*", told
    )
    assert time.monotonic() - start < 60


# runs and checkpoints that are there already


@pytest.fixture
def run(here: Path) -> RunFolder:
    """A run that was interrupted at step 3."""
    config = load_config("quickstart", [*SMALL, f"storage={here}/runs", "name=old"])
    folder = RunFolder.of(config)
    setup = Setup.of(config, 1442, 10)
    folder.claim(setup.as_written)
    state = TrainState.create(setup)
    state.step = 3
    state.save(Path(folder.path) / "checkpoint_000000003", {})
    return folder


def edit_meta(run: RunFolder, **changes: object) -> None:
    path = Path(run.path) / "checkpoint_000000003" / "meta.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


SAME = f"pretrain {' '.join(SMALL)} name=old"


@pytest.mark.thorough
def test_a_name_that_is_taken_says_what_differs(refused: Refused, run: RunFolder) -> None:
    told = refused(f"{SAME} optim.lr=0.7 seed=3")
    assert told.splitlines()[0] == f"a run named 'old' with other settings is in {run.uri}:"
    assert "optim.lr" in told
    assert "0.7" in told
    assert "seed" in told
    assert told.splitlines()[-1] == "give this one another name=, or go back to those settings to resume it"


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"format": 99, "raysl": "9.0"},
            r".*has checkpoint format 99, this raysl reads format 1; open it with raysl 9\.0",
        ),
        ({"method": "byol"}, r".*is a checkpoint of the method 'byol', not of 'simclr'; give the run another name"),
    ],
)
def test_a_checkpoint_that_cannot_be_resumed_is_found_before_training(
    refused: Refused, run: RunFolder, changes: dict[str, object], message: str
) -> None:
    edit_meta(run, **changes)
    assert re.fullmatch(message, refused(SAME))


@pytest.mark.thorough
def test_a_run_that_is_in_use_is_left_alone(refused: Refused, run: RunFolder) -> None:
    with own_folder(run):
        told = refused(SAME)
    assert re.fullmatch(
        rf"the run in {run.uri} is in use by process \d+ on .*; wait for it, stop it, or .* name=", told
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "--checkpoint empty",
            r"no checkpoint at '/.*/empty'; give the folder of a checkpoint or of a run that has one; these come .*",
        ),
        ("--checkpoint gone", r"no checkpoint at '/.*/gone'; give the folder of .*"),
        ("--checkpoint foo://x", r"cannot open 'foo://x': .*foo.*"),
        ("--checkpoint runs/old knnn", r"unknown benchmark 'knnn'; did you mean 'knn'\?.*"),
        ("--checkpoint runs/old kNN", r"unknown benchmark 'kNN'; did you mean 'knn'\?.*"),
        ("--checkpoint runs/old linear,kNN", r"unknown .* 'linear,kNN'; did you mean several\? .* as linear knn, .*"),
        ("old", r"'old' is no benchmark, but a run: type `raysl benchmark runs/old`"),
        ("--checkpoint runs/old knn.k=few", r"benchmarks\.knn\.k\[0\]: 'few' is not of type int; write a whole number"),
        ("--checkpoint runs/old runs/gone knn", r"no checkpoint at '/.*/runs/gone'; give the folder of .*"),
        (
            "--checkpoint runs/old linear linear.stages=[res9]",
            r"no stage 'res9' in the backbone of .*; it has conv1, stem, .*",
        ),
        (
            "--checkpoint runs/old linear_augmented 'linear_augmented.stages=[{stage: res9}]'",
            r"linear_augmented\.stages: no stage 'res9' in resnet; its stages: conv1, stem, res2, avgpool",
        ),
        ("knn", r"name a run or a checkpoint to measure, or --watch RUN, as in `raysl benchmark runs/mine`; .*"),
    ],
)
def test_benchmark_refuses(refused: Refused, run: RunFolder, words: str, message: str) -> None:
    assert re.fullmatch(message, refused(f"benchmark {words}"))


@pytest.mark.thorough
def test_a_backbone_whose_weights_are_not_finite_is_not_measured(refused: Refused, run: RunFolder, here: Path) -> None:
    config = load_config("quickstart", [*SMALL])
    state = TrainState.create(Setup.of(config, 64))
    next(state.method.backbone.parameters()).data[0] = float("nan")
    state.save(here / "checkpoint", {})
    told = refused("benchmark --checkpoint checkpoint linear_augmented")
    assert re.fullmatch(r"1 of the \d+ tensors of the backbone in .*/checkpoint have values that .*: .*", told)


@pytest.mark.thorough
def test_benchmark_extract_and_cluster_refuse_another_format(refused: Refused, run: RunFolder) -> None:
    edit_meta(run, format=99)
    for command in ("benchmark", "extract", "cluster"):
        assert "has checkpoint format 99" in refused(f"{command} --checkpoint runs/old")


def test_benchmarks_that_are_asked_for_need_labels_which_is_found_before_training(refused: Refused) -> None:
    words = "data=image_folder data.path=flat train.batch_size=4 train.epochs=1 benchmarks=[knn]"
    assert refused(f"pretrain {words}") == (
        "benchmarks.knn: the images of 'image_folder' have no labels; benchmarks=[] leaves it out"
    )


@pytest.mark.thorough
def test_benchmarks_need_labels(refused: Refused, here: Path) -> None:
    config = load_config("quickstart", [*SMALL, "data=image_folder", "data.path=flat"])
    TrainState.create(Setup.of(config, 64)).save(here / "checkpoint", {})
    assert refused("benchmark --checkpoint checkpoint") == (
        "nothing can be measured: the images of 'image_folder' have no labels"
    )
    reason = "the images of 'image_folder' have no labels"
    assert refused("benchmark --checkpoint checkpoint knn") == f"benchmarks.knn: {reason}"
    assert refused("benchmark --checkpoint checkpoint knn low_shot geometry") == (
        f"benchmarks.knn, low_shot: {reason}; without them, geometry can be measured"
    )
    assert "no split 'foo'; write train or test (val means test)" in refused(
        "extract --checkpoint checkpoint --split foo"
    )
    for command in ("benchmark", "extract --split train"):
        told = refused(f"{command} --checkpoint checkpoint data=image_folder data.path=gone")
        assert re.fullmatch(r"no folder '/.*/gone'; give data\.path= a folder of images", told)


# a first try with images of one's own


def test_a_few_odd_images_of_ones_own(refused: Refused, here: Path) -> None:
    picture(here, "my_images/a.png", "L", (300, 7))
    picture(here, "my_images/b.jpg", "CMYK", (5, 90))
    picture(here, "my_images/c.gif", "P", (64, 64))
    told = refused("pretrain data=image_folder data.path=my_images train.batch_size=64")
    assert re.fullmatch(
        r"3 training images do not fill a batch of 64; set train\.batch_size=2, or another of at most 3", told
    )


def test_odd_images_become_views_like_any_other(here: Path) -> None:
    picture(here, "my_images/a.png", "L", (300, 7))
    picture(here, "my_images/b.jpg", "CMYK", (5, 90))
    picture(here, "my_images/c.gif", "P", (64, 64))
    config = load_config("quickstart", ["data=image_folder", "data.path=my_images"])
    read = read_images(ImageFolder(config.data).required("train"), np.arange(3))
    images = read.pictures[0].images
    assert [list(image.shape) for image in images] == [[3, 7, 300], [3, 90, 5], [3, 64, 64]]
    assert (read.labels.tolist(), read.corrupt) == ([-1, -1, -1], ())
    assert isinstance(config.method, SimCLR.Config)
    views = config.method.views.recipe()(images, np.arange(3), seed=0, epoch=0)["global"]
    assert list(views.shape) == [3, 2, 3, 16, 16]


@pytest.mark.thorough
def test_an_expected_metric_that_nobody_measured_fails_a_finished_run(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*SMALL, "data.limit=64", "train.batch_size=64", "train.epochs=1", "benchmarks=[]", "name=done"]
    config = load_config("quickstart", [*words, f"storage={here}/runs"])
    folder = RunFolder.of(config)
    folder.claim(config)
    state = TrainState.create(Setup.of(config, 64, 10))
    state.step = 1
    state.save(Path(folder.path) / "checkpoint_000000001", {})
    folder.write("metrics.jsonl", b'{"step": 1, "loss": 2.5}\n')
    for expected, message in (
        ("{lr: [0, 1]}", "error: train.expect: no metric 'lr'; there are: loss, step\n"),
        ("{loss: [0, 1]}", "error: train.expect: loss is 2.5, outside [0, 1]\n"),
    ):
        monkeypatch.setattr(sys, "argv", ["raysl", "pretrain", *words, f"train.expect={expected}"])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        assert (caught.value.code, capsys.readouterr().err) == (1, message)


@pytest.mark.slow
def test_more_workers_than_the_cluster_can_ever_have() -> None:
    words = ["pretrain", "train.workers=64", "storage=runs"]
    done = subprocess.run([sys.executable, "-m", "raysl", *words], capture_output=True, text=True, timeout=90)
    assert done.returncode == 2, done.stderr
    (message,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert re.search(r"64 workers .* this cluster can (ever|never) have.*; set train\.workers=\d+", message)
    assert "Traceback" not in done.stderr


def test_a_warm_up_longer_than_the_run_does_no_harm() -> None:
    config = load_config("quickstart", ["train.epochs=2", "train.batch_size=128", "optim.lr=0.2", "optim.warmup=10ep"])
    optim, plan = config.optim, TrainPlan.from_config(config, 1442)
    rates = [lr_at(optim, plan.step(index), plan.batch_size) for index in range(plan.total_steps)]
    assert rates == sorted(rates)
    assert rates[0] > 0
    assert rates[-1] == pytest.approx(0.2 * peak_lr(optim, 128))
