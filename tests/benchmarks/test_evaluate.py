"""Results are kept one by one, of one checkpoint and one set of images; what fails costs nothing else."""

import json
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from raysl.benchmarks.suite.evaluate import benchmark
from raysl.config.load import load_config
from raysl.config.schema import RunConfig
from raysl.errors import ConfigError, RunFailed
from raysl.plan.setup import Setup
from raysl.pretraining import pretrain
from raysl.runs.folder import RunFolder
from raysl.train.costs import Costs
from raysl.train.state import TrainState
from tests.benchmarks.test_fitting import folder_of
from tests.data.samples import png

pytestmark = pytest.mark.usefixtures("shared_ray")

SMALL = ("backbone.num_stages=1", "backbone.width=4", "method.hidden_dim=8", "method.output_dim=4")
FRAGILE = """
from dataclasses import dataclass
from pathlib import Path
from raysl.benchmarks.benchmark import Benchmark, Metric
from raysl.config.schema import BenchmarkConfig

class Fragile(Benchmark):
    @dataclass(frozen=True, kw_only=True)
    class Config(BenchmarkConfig):
        needs: str

    @classmethod
    def metrics(cls, config, num_classes):
        return ["length"]

    def run(self, train, test, num_classes, seed):
        num = len(Path(self.config.needs).read_text())
        return [Metric("length", num / 4, 0.5, unit="s", title="Time to read it", is_lower_better=True)]
"""


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    (tmp_path / "fragile.py").write_text(FRAGILE)
    fragile = f"{{name: {tmp_path}/fragile.py:Fragile, needs: {tmp_path}/needed}}"
    words = ["data.limit=60", "train.batch_size=60", "train.epochs=2", f"benchmarks.fragile={fragile}"]
    return load_config("quickstart", [*SMALL, *words, "benchmarks.low_shot.draws=2", f"storage={tmp_path}", "name=run"])


def save(config: RunConfig, step: int) -> Path:
    """A checkpoint of a run; the weights are those of the seed `step`."""
    folder = RunFolder.of(config)
    folder.claim(config)
    state = TrainState.create(Setup.of(replace(config, seed=step), 60, 10))
    state.setup, state.step = replace(state.setup, config=config), step
    path = Path(folder.path) / f"checkpoint_{step:09d}"
    state.save(path, {})
    (Path(folder.path) / "metrics.jsonl").write_text('{"step": 1, "loss": 2.5}\n{"step": 2, "loss": 2.0}\n')
    return path


def stamps(run: Path) -> dict[str, int]:
    """When each result and report was written."""
    results = [path for path in run.rglob("benchmarks/**/*.json") if "features" not in path.parts]
    files = [*results, run / "report.html"]
    return {path.name.removesuffix(".json"): os.stat(path).st_mtime_ns for path in files if path.exists()}


def names_in(report: Path) -> set[str]:
    return {score["benchmark"] for score in json.loads(report.read_text())["scores"]}


def test_one_that_fails_costs_no_other_its_result_and_the_next_start_measures_what_is_missing(
    config: RunConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(config, 2)
    run = tmp_path / "run"
    failed = r"fragile failed: fragile\.py, line \d+, in run: FileNotFoundError"
    with pytest.raises(RunFailed, match=rf"(?s)the benchmark {failed}: .*needed.*next start"):
        pretrain(config)
    printed = capsys.readouterr().out
    assert "1_shot" in printed
    assert "report.html" in printed
    assert names_in(run / "report.json") == {"low_shot", "knn"}
    assert re.search(failed, (run / "report.html").read_text())
    first = stamps(run)
    assert set(first) == {"low_shot", "knn", "report.html"}

    (tmp_path / "needed").write_text("12345")
    (run / "costs.json").write_text('{"seconds": 1000.0, "gpu_hours": 0.0, "began": 1.0}')
    done = pretrain(config)
    report = json.loads((run / "report.json").read_text())
    assert 1000 < report["times"]["total"] <= Costs.read(RunFolder.of(config)).seconds, "both starts have measured"
    assert done.metrics["fragile/length"] == 1.25
    assert done.metrics["fragile/length/deviation"] == 0.5
    text = (run / "report.html").read_text()
    assert '<h3>Time to read it</h3><div class="big">1.25<small> s ± 0.5</small></div>' in text
    assert "<h3>kNN, top-1, k = 20</h3>" in text
    assert {"knn/k20/top1", "low_shot/1_shot/untrained"} <= set(done.metrics)
    second = stamps(run)
    assert {name: second[name] for name in ("low_shot", "knn")} == {name: first[name] for name in ("low_shot", "knn")}
    assert names_in(run / "report.json") == {"low_shot", "knn", "fragile"}

    assert pretrain(config).metrics == done.metrics
    assert stamps(run) == second, "nothing was missing, nothing was written"


def test_what_the_second_start_of_a_finished_run_asks_for_is_measured(config: RunConfig, tmp_path: Path) -> None:
    save(config, 2)
    knn = config.benchmarks["knn"]
    assert "knn/k20/top1" not in pretrain(replace(config, benchmarks={})).metrics
    assert set(pretrain(replace(config, benchmarks={"knn": knn})).metrics) >= {"knn/k20/top1", "knn/k20/top5"}
    more = pretrain(replace(config, benchmarks={"knn": replace(knn, k=(5, 1))})).metrics
    assert {"knn/k5/top1", "knn/k1/top1"} <= set(more)
    assert json.loads(next((tmp_path / "run").rglob("knn.json")).read_text())["basis"]["settings"]["k"] == [5, 1]


def test_results_add_up_and_belong_to_their_checkpoint_settings_and_images(config: RunConfig, tmp_path: Path) -> None:
    old, new = save(config, 1), save(config, 2)
    run = tmp_path / "run"
    facts = {"times": {"total": 7.0}, "events": ["resumed at step 1"], "command": "raysl pretrain mine"}
    trusted = {"trust_code": True}
    benchmark(str(run), ["low_shot"], facts=facts, **trusted)
    benchmark(str(new), ["knn"], **trusted)
    assert names_in(run / "report.json") == {"low_shot", "knn"}
    low_shot = run / "benchmarks" / new.name / "low_shot.json"
    low_shot.write_text(low_shot.read_text().replace("digits:test", "digits:other"))
    further = benchmark(str(run), ["knn"], ["knn.k=[20,3]"], **trusted)
    assert {score.benchmark for score in further.scores} == {"knn"}, "the k is in the names of the numbers"
    assert {"knn/k3/top1", "knn/k20/top1"} <= set(further.metrics)
    names = [(score.benchmark, score.metric) for score in further.scores]
    assert len(set(names)) == len(names)
    other = benchmark(str(run), ["knn"], ["knn.temperature=0.5"], **trusted)
    (variant,) = {score.benchmark for score in other.scores} - {"knn"}
    assert re.fullmatch(r"knn@\w{6}", variant)
    assert {score.note for score in other.scores if score.benchmark == variant} == {"temperature=0.5"}
    (leading,) = (score for score in other.scores if (score.benchmark, score.metric) == (variant, "k20/top1"))
    assert leading.is_headline
    assert leading.heading == "kNN, top-1, k = 20 (temperature=0.5)"
    report = json.loads((run / "report.json").read_text())
    assert names_in(run / "report.json") == {"knn", variant}, "low-shot was measured on other images"
    assert {name: report[name] for name in facts} == facts
    kept = json.loads((run / "benchmarks" / new.name / "knn.json").read_text())["basis"]
    assert (kept["step"], kept["settings"]["k"]) == (2, [20])

    before = (run / "report.html").read_bytes()
    images = folder_of(tmp_path / "images", cat=5, dog=4)
    elsewhere = benchmark(str(run), ["knn"], ["knn.k=[3]", "data=image_folder", f"data.path={images}"], **trusted)
    assert re.fullmatch(rf"{run}/benchmarks/{new.name}/image_folder-\w{{6}}/report.html", elsewhere.path)
    earlier = benchmark(str(old), ["knn"], **trusted)
    assert earlier.path == f"{run}/benchmarks/{old.name}/report.html"
    assert {score.benchmark for score in earlier.scores} == {"knn"}
    assert (run / "report.html").read_bytes() == before


def test_unlabelled_images_get_a_report_that_says_what_was_left_out(tmp_path: Path) -> None:
    (tmp_path / "flat").mkdir()
    for number in range(12):
        (tmp_path / "flat" / f"{number}.png").write_bytes(png(20 * number))
    words = ["data=image_folder", f"data.path={tmp_path}/flat", "train.batch_size=6", "train.epochs=1"]
    config = load_config("quickstart", [*SMALL, *words, f"storage={tmp_path}", "name=run"])
    save(config, 2)
    done = pretrain(config)
    assert done.report is not None
    assert done.report.scores == []
    text = (tmp_path / "run" / "report.html").read_text()
    assert "knn is left out: the images of &#x27;image_folder&#x27; have no labels" in text
    headings = re.findall("<h2>(.*?)</h2>", text)
    assert {"Results", "Course of training", "Map of the embeddings", "Views", "Nearest neighbours"} <= set(headings)
    assert "N = 12 training images" in text
    before = stamps(tmp_path / "run")
    pretrain(config)
    assert stamps(tmp_path / "run") == before
    with pytest.raises(ConfigError, match="nothing can be measured: the images of 'image_folder' have no labels"):
        benchmark(str(tmp_path / "run"))


@pytest.fixture
def on_files(tmp_path: Path) -> RunConfig:
    """A run with a checkpoint, on images that are files."""
    images = folder_of(tmp_path / "images", cat=12, dog=12)
    words = ["data=image_folder", f"data.path={images}", "train.batch_size=6", "train.epochs=1"]
    config = load_config("quickstart", [*SMALL, *words, f"storage={tmp_path}", "name=run"])
    save(config, 2)
    return config


@pytest.mark.usefixtures("on_files")
def test_replaced_images_of_equal_size_are_measured_again_and_older_numbers_leave_the_report(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = tmp_path / "run"
    caplog.set_level("INFO", "raysl")
    benchmark(str(run), ["knn", "geometry"])
    assert names_in(run / "report.json") == {"knn", "geometry"}
    before = json.loads((run / "report.json").read_text())["measured_on"]
    caplog.clear()
    benchmark(str(run), ["knn"])
    assert "knn was measured before; --again measures it anew" in caplog.messages
    image = tmp_path / "images" / "val" / "cat" / "1.png"
    written, size = image.stat().st_mtime_ns, image.stat().st_size
    image.write_bytes(png(201))
    os.utime(image, ns=(written, written + 10**9))
    assert image.stat().st_size == size
    benchmark(str(run), ["knn"])
    assert "knn is measured again: other test images: files were modified" in caplog.messages
    left_out = "geometry is not shown: since it was measured there are other test images: files were modified"
    assert left_out in caplog.messages
    assert names_in(run / "report.json") == {"knn"}
    assert json.loads((run / "report.json").read_text())["measured_on"] != before
    benchmark(str(run), ["geometry"])
    assert names_in(run / "report.json") == {"knn", "geometry"}


@pytest.mark.usefixtures("on_files")
def test_a_number_of_other_code_has_a_mark_beside_newer_ones(tmp_path: Path) -> None:
    run = tmp_path / "run"
    benchmark(str(run), ["geometry"])
    (file,) = run.rglob("geometry.json")
    content = json.loads(file.read_text())
    content["basis"]["code"] = "older"
    file.write_text(json.dumps(content))
    report = benchmark(str(run), ["knn"])
    notes = {score.benchmark: score.note for score in report.scores}
    assert "measured by other code" in notes["geometry"]
    assert "measured by other code" not in notes["knn"]
    assert "measured by other code" in (run / "report.html").read_text()


@pytest.mark.usefixtures("on_files")
def test_again_computes_features_anew_and_they_go_when_they_were_used(tmp_path: Path) -> None:
    run = tmp_path / "run"
    features = next(run.glob("checkpoint_*"))
    features = run / "benchmarks" / features.name / "features"
    benchmark(str(run), ["knn"], keep_features=True)
    first = {path: path.stat().st_mtime_ns for path in features.rglob("*.parquet")}
    assert first
    (run / "report.html").unlink()
    benchmark(str(run), ["knn"])
    assert {path: path.stat().st_mtime_ns for path in features.rglob("*.parquet")} == first, "nothing was measured"
    assert (run / "report.html").exists()
    benchmark(str(run), ["knn"], again=True, keep_features=True)
    second = {path: path.stat().st_mtime_ns for path in features.rglob("*.parquet")}
    assert all(second[path] > first[path] for path in first)
    benchmark(str(run), ["geometry"])
    assert not features.exists()
