"""Where a walk is cut short: commands are parsed, their settings resolved, and they end where work begins."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import ray.data
import ray.tune

from raysl.benchmarks.suite.settings import load_benchmarks, load_data
from raysl.benchmarks.suite.suites import load_suites
from raysl.config.schema import LIBRARIES, RunConfig
from raysl.plan.cards import card_of
from raysl.pretraining import Result
from raysl.preview.views_page import requested
from raysl.trained import is_trained
from raysl.weights.exports import EXPORTS
from tests.leaderboard.boards import asha
from tests.walk.programs import Cut
from tests.walk.reader import Reader


class Ends:
    """Takes the place of what trains, measures, writes to buckets, or asks a cluster.

    Args:
        reader: who is told what was made.
        patch: puts the ends in place.
    """

    def __init__(self, reader: Reader, patch: pytest.MonkeyPatch) -> None:
        self.reader = reader
        for place, end in {
            "raysl.pretraining.pretrain": self.pretrain,
            "raysl.runs.fork.fork": self.fork,
            "raysl.benchmarks.suite.evaluate.benchmark": self.benchmark,
            "raysl.benchmarks.suite.several.compare": self.compare,
            "raysl.benchmarks.suite.several.watch": self.benchmark,
            "raysl.benchmarks.features.extract.extract": self.extract,
            "raysl.benchmarks.clusters.cluster_images": self.cluster,
            "raysl.cli.benchmark._show": lambda result: None,
            "raysl.leaderboard.serve.RunsServer": self.serve,
            "raysl.data.ingest.on_ray.ingest": self.ingest,
            "raysl.data.ingest.inspect.inspect": self.inspect,
            "raysl.weights.convert.convert": self.convert,
            "raysl.weights.convert.load_weights": self.load_weights,
            "raysl.weights.initial.run_of_weights": self.run_of_weights,
            "raysl.translation.vissl.convert_config": self.convert_config,
            "raysl.sweeps.run.SweepRun.run": lambda run, signals: self.run_sweep(run),
            "raysl.sweeps.run.sweep": self.sweep,
            "raysl.leaderboard.status.status_of": self.status,
            "raysl.preview.views_page.write_views": self.views,
            "raysl.train.prepare.prepare": self.prepare,
            "raysl.cli.plan._setup_of": self.prepare,
            "raysl.cli.plan._course": lambda setup: [],
            "raysl.cli.plan._reads": lambda run: [],
            "raysl.cli.plan._cost": self.cost,
            "raysl.cli.doctor._look": lambda storage: {"cluster": None, "problems": []},
            "raysl.process.environment.environment": dict,
            "raysl.process.environment.problems": lambda facts: [],
            "raysl.process.environment.environment_text": lambda facts: "",
            "raysl.train.process.setup": lambda config: {},
            "raysl.train.fit": lambda *words, **options: {},
            "raysl.tune.trainable": lambda config, concurrent: lambda settings: None,
            "ray.data.read_images": lambda paths, **options: _Stream(),
            "ray.tune.Tuner": self.tuner,
            "raysl.cli.pretrain.handling_signals": _nothing,
            "raysl.cli.benchmark.handling_signals": _nothing,
            "raysl.process.signals.handling_signals": _nothing,
        }.items():
            patch.setattr(place, end)
        patch.setattr("raysl.cli.pretrain._while_ray_starts", lambda load: load())

    def pretrain(self, config: RunConfig, **options: Any) -> Result:
        self.reader.check_places(config)
        folder = Path(config.storage, config.name).absolute()
        self.reader.made_run(folder, config)
        return Result(f"{folder}/checkpoint_000000000", {}, pd.DataFrame(), folder, None)

    def fork(self, config: RunConfig, parent: str) -> None:
        self.reader.run_of(parent)
        self.reader.made_run(Path(config.storage, config.name).absolute(), config)

    def benchmark(
        self, uri: str, names: Sequence[str] | None = None, overrides: Sequence[str] = (), *rest: Any, **options: Any
    ) -> Any:
        config = self.reader.run_of(uri)
        data = [word for word in overrides if word.startswith(("data.", "data="))]
        suites = load_suites(options.get("suite"), options.get("root"), load_data(config, data))
        load_benchmarks(config, names, [word for word in overrides if word not in data], suites)
        return SimpleNamespace(check=lambda: None)

    def compare(self, uris: Sequence[str], names: Any, overrides: Any, out: Any, **options: Any) -> Any:
        return [self.benchmark(uri, names, overrides) for uri in uris] and SimpleNamespace(check=lambda: None)

    def extract(
        self, checkpoint: str, *, split: str | None, stage: str, dtype: str, overrides: Any, **options: Any
    ) -> Any:
        load_data(self.reader.run_of(checkpoint), overrides)
        assert split in (None, "train", "test")
        assert dtype in ("fp32", "fp16")
        return SimpleNamespace(path="features", num_rows=1, width=1)

    def cluster(self, checkpoint: str, overrides: Sequence[str], out: str | None, trust_code: bool) -> Any:
        self.reader.run_of(checkpoint)
        raise Cut

    def serve(self, pages: Any, port: int) -> Any:
        raise Cut

    def ingest(self, data: Any, out: str, **options: Any) -> Any:
        return SimpleNamespace(rows={}, num_corrupt=0, uri=out, was_done=False)

    def inspect(self, data: Any, run: Any) -> Any:
        return SimpleNamespace(table=lambda: "", num_corrupt=0, write=lambda folder: None)

    def convert(self, source: str, out: str, overrides: Any = (), rules: Any = None, to: str | None = None) -> Any:
        to = to or "raysl"
        assert to == "raysl" or to in EXPORTS
        if to != "raysl" and (Path(source).is_dir() or is_trained(source)):
            self.reader.run_of(source)
        else:
            assert Path(source).is_file(), f"{source} is not there by now"
            self.reader.made_run(Path(out).absolute(), _settings("simclr"))
        return SimpleNamespace(summary="", table=None, path=out, usage="")

    def convert_config(self, paths: Sequence[str], words: Sequence[str] = ()) -> Any:
        assert [path for path in paths if not Path(path).is_file()] == []
        return SimpleNamespace(text=lambda: f"base: simclr\ndata: {{path: {self.reader.things.images}}}\n")

    def load_weights(self, source: str, overrides: Sequence[str] = (), rules: Any = None, name: str = "") -> Any:
        assert Path(source).is_file()
        return SimpleNamespace(backbone=None, config=_settings("dino", *overrides), table=None)

    def run_of_weights(self, weights: str, storage: str) -> str:
        if not weights.startswith(LIBRARIES) and not Path(weights).is_file():
            return weights
        folder = Path(storage, weights.replace(":", "_")).absolute()
        self.reader.made_run(folder, _settings("simclr"))
        return str(folder)

    def run_sweep(self, run: Any) -> Any:
        self.reader.made_sweep(Path(run.base.storage, run.base.name).absolute())
        raise Cut

    def sweep(self, config: Any, space: Any, starts: Any = None, **options: Any) -> Any:
        from raysl.sweeps.load import from_tree

        names = ("name", "storage", "overrides")
        rest = {name: value for name, value in options.items() if name not in names}
        tree = dict(space) if "space" in space else {"space": space}
        from_tree({**tree, **rest, "config": config}, "the call")
        self.reader.made_sweep(Path(options["storage"], options["name"]).absolute())
        return asha(4)

    def status(self, uri: str) -> Any:
        path = str(Path(uri).absolute())
        assert path in self.reader.sweeps, f"no line before this one makes the sweep {uri}"
        return SimpleNamespace(board=None, line=lambda: "")

    def views(self, name: str, overrides: list[str], out: Path, num: int, epochs: int) -> Path:
        assert requested(name, overrides).recipe.num_views > 0
        return out

    def prepare(self, config: RunConfig, *rest: Any) -> Any:
        self.reader.check_places(config)
        return SimpleNamespace(setup=None)

    def cost(self, setup: Any, gpu: str, run: Any) -> Any:
        card_of(gpu)
        return SimpleNamespace(lines=list)

    def tuner(self, trainable: Any, *, param_space: Any, tune_config: Any, run_config: Any) -> Any:
        from raysl.config.load import apply_overrides

        assert isinstance(tune_config, ray.tune.TuneConfig)
        apply_overrides(self.reader.names["config"], [f"{key}={space.sample()}" for key, space in param_space.items()])
        best = SimpleNamespace(metrics={"path": "", tune_config.metric: 0.0})
        return SimpleNamespace(fit=lambda: SimpleNamespace(get_best_result=lambda: best))


def _settings(name: str, *overrides: str) -> RunConfig:
    from raysl.config.load import load_config

    return load_config(name, list(overrides))


class _Stream:
    """Takes the place of a dataset of Ray Data, for which Ray would start."""

    def __getattr__(self, name: str) -> Any:
        assert hasattr(ray.data.Dataset, name)
        return lambda *words, **options: self


class _nothing:
    left = ""

    def loading(self) -> "_nothing":
        return self

    def __enter__(self) -> "_nothing":
        return self

    def __exit__(self, *error: object) -> None:
        pass
