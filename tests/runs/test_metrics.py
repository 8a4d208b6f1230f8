"""Numbers of a run at the place where Prometheus reads them."""

import json
import re
import shutil
import tempfile
import time
import urllib.request
from pathlib import Path

import psutil
import pytest

from raysl.config.config_files import packaged_folder
from raysl.config.load import load_config
from raysl.runs.callbacks import _GAUGES, tags_of
from tests.ray_nodes import client_environment, end_node, free_ports, start_node, wait_for_line
from tests.runs.runs import finish, start, wait_for_step


def read_series(port: int) -> dict[tuple[str, str], float]:
    """The newest value of each series of raysl, by its name and the run in its tags."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    found = [re.fullmatch(r"(ray_raysl_\w+)\{(.*)\} (\S+)", line) for line in lines]
    series: dict[tuple[str, str], float] = {}
    for match in filter(None, found):
        tags = dict(re.findall(r'(\w+)="([^"]*)"', match[2]))
        key = (match[1], tags["run"])
        series[key] = max(series.get(key, 0.0), float(match[3]))
    return series


@pytest.mark.slow
def test_prometheus_reads_the_numbers_and_the_restarts_of_a_run_while_it_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port, scraped = free_ports(2)
    sessions = tempfile.mkdtemp(prefix="ray_")  # short: the paths of its sockets have a limit
    words = (f"--port={port}", f"--temp-dir={sessions}", "--include-dashboard=false", "--num-cpus=2")
    log = tmp_path / "head.log"
    often = {"RAY_metrics_report_interval_ms": "1000"}  # in place of each ten seconds
    head = start_node("--head", *words, f"--metrics-export-port={scraped}", log=log, environment=often)
    try:
        wait_for_line("Ray runtime started", log, head)
        for name, value in {**client_environment(), "RAY_ADDRESS": f"127.0.0.1:{port}"}.items():
            monkeypatch.setenv(name, value)
        process = start(tmp_path, "one", "train.epochs=40", "train.max_failures=2")
        wait_for_step(tmp_path / "one", 10, process)
        (worker,) = (
            child
            for child in psutil.Process(head.pid).children(recursive=True)
            if "RayTrainWorker" in " ".join(child.cmdline())
        )
        worker.kill()
        step, restarts = ("ray_raysl_step", "one"), ("ray_raysl_restarts_total", "one")
        series: dict[tuple[str, str], float] = {}
        while series.get(step, 0) < 50 or series.get(restarts) != 1:
            assert process.poll() is None, series
            time.sleep(0.5)
            series = read_series(scraped)
        assert "going on at step" in finish(process)
        for name in ("ray_raysl_images_per_second", "ray_raysl_loss", "ray_raysl_step_seconds"):
            assert series[name, "one"] > 0
        assert 0 <= series["ray_raysl_data_wait", "one"] <= 1
    finally:
        end_node(head)
        shutil.rmtree(sessions, ignore_errors=True)


def test_the_dashboard_shows_every_number_by_run() -> None:
    board = json.loads((packaged_folder() / "cluster" / "grafana.json").read_text())
    assert board["uid"] == "raysl-runs"
    names = [variable["name"] for variable in board["templating"]["list"]]
    assert names == ["datasource", "run"]
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels]
    assert len(set(places)) == len(panels)
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels), "Grafana has 24 columns"
    expressions = [target["expr"] for panel in panels for target in panel["targets"]]
    shown = {re.search(r"ray_raysl_\w+", expression)[0] for expression in expressions}  # type: ignore[index]
    gauges = {f"ray_{name}" for name, _ in _GAUGES.values()}
    assert shown == gauges | {"ray_raysl_restarts_total"}
    assert all('{run=~"$run"}' in expression for expression in expressions)


def test_a_trial_is_tagged_with_its_sweep() -> None:
    config = load_config("quickstart", ["name=trial_0a1b", "storage=s3://bucket/sweeps/first"])
    assert tags_of(config, is_trial=True) == {"run": "first", "trial": "trial_0a1b"}
    assert tags_of(config, is_trial=False) == {"run": "trial_0a1b", "trial": ""}
