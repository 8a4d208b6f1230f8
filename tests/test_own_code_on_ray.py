"""The files that docs/ prints for those who extend raysl, on Ray, from the command line."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from raysl.train.file_names import parse_events
from tests.ray_nodes import client_environment, some_nodes
from tests.runs.runs import finish, wait_for_step
from tests.walk.blocks import ROOT, blocks_of

SMALL = (
    "train.epochs=2",
    "train.batch_size=32",
    "train.checkpoint_every=4st",
    "train.log_every=1st",
    "train.online_knn_every=null",
    "train.threads=1",
)
VICREG = ("method.name=vicreg.py:VICReg", "method.dim=32", "data.image_size=8", "optim.lr=0.01")
NETWORK = ("backbone.num_stages=1", "backbone.width=8")
PRINTED = {
    "a source and a method": (
        ["write-a-source", "write-a-method"],
        ["data={name: arrays.py:Mine, path: images}", *VICREG, *NETWORK],
    ),
    "a backbone, transforms, callbacks and benchmarks": (
        ["write-a-backbone", "write-a-transform", "callbacks", "write-a-benchmark"],
        [
            *("backbone=small.py:Small", "method.transforms=noise.py:SaltAndPepper", "data.limit=256"),
            *("callbacks=[weight_norm.py:WeightNorm]", "callbacks.WeightNorm.every=2"),
            *("callbacks.spread.name=function", "callbacks.spread.function=probe.py:spread"),
            *("benchmarks=[centroid.py:Centroid, mirror.py:Mirror]", "benchmarks.Mirror.images=50"),
        ],
    ),
    "a method with a transform of its own": (
        ["write-a-transform"],
        ["method=noise.py:NoisySimCLR", "method.views.share=0.1", "data.limit=256", *NETWORK],
    ),
    "a recipe of views": (["views"], ["method.name=solarized.py:Mine", "data.limit=256", *NETWORK]),
    "a mixture of parts": (
        ["parts"],
        ["method.name=mixed.py:Mixed", "method.dim=32", "data.limit=256", "optim.lr=0.01", *NETWORK],
    ),
}


def write_pages(pages: list[str], folder: Path) -> None:
    """Write the files that pages print, and the images that the source of docs/write-a-source.md reads."""
    for block in (block for page in pages for block in blocks_of(ROOT / "docs" / f"{page}.md") if block.file):
        assert block.file is not None
        (folder / block.file).write_text(block.text)
    random = np.random.default_rng(0)
    (folder / "images").mkdir()
    for split, num in (("train", 256), ("test", 64)):
        pixels = random.integers(0, 256, (num, 8, 8, 3)).astype(np.uint8)
        np.savez(folder / "images" / f"{split}.npz", images=pixels, labels=np.arange(num) % 2)


def start(folder: Path, *words: str, environment: Mapping[str, str] = os.environ) -> subprocess.Popen[str]:
    """Start `raysl pretrain` in a folder."""
    command = [sys.executable, "-m", "raysl", "pretrain", "quickstart", "name=own", *SMALL, *words]
    env = {**environment, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def pretrain(folder: Path, *words: str) -> tuple[int, str]:
    """Run `raysl pretrain` in a folder; its exit code, and what it prints."""
    process = start(folder, *words)
    output, _ = process.communicate(timeout=550)
    return process.returncode, output


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param(parts, marks=pytest.mark.slow if number else pytest.mark.cluster)
        for number, parts in enumerate(PRINTED)
    ],
)
def test_printed_code_trains_and_measures_on_ray(parts: str, tmp_path: Path) -> None:
    pages, words = PRINTED[parts]
    write_pages(pages, tmp_path)
    has_benchmarks = any(word.startswith("benchmarks=") for word in words)
    code, output = pretrain(tmp_path, *words, *([] if has_benchmarks else ["benchmarks=[]"]))
    assert code == 0, output
    assert "checkpoint_000000016" in output
    if has_benchmarks:
        metrics = json.loads((tmp_path / "runs/own/report.json").read_text())["metrics"]
        assert {"Centroid/top1", "Mirror/cosine"} <= metrics.keys()
        assert "weight_norm" in (tmp_path / "runs/own/metrics.jsonl").read_text()


BROKEN = """
from raysl.methods.simclr import SimCLR

class Broken(SimCLR):
    def training_step(self, batch, step):
        if step.index == 5:
            labels = {0: "cat"}
            labels[1]
        return super().training_step(batch, step)
"""


@pytest.mark.cluster
def test_an_exception_of_own_code_ends_the_run_at_the_first_try_and_the_mended_file_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "broken.py"
    file.write_text(BROKEN)
    words = ("method.name=broken.py:Broken", "data.limit=256", "benchmarks=[]", "train.workers=2", *NETWORK)
    code, output = pretrain(tmp_path, *words)
    assert code == 1, output
    assert "failed: broken.py, line 8, in training_step: KeyError: 1; a retry would meet it again" in output
    assert "retry 1" not in output
    assert "Traceback" not in output
    assert "labels[1]" in (tmp_path / "runs/own/ray.log").read_text()
    file.write_text(BROKEN.replace("labels[1]", "labels[0]"))
    code, output = pretrain(tmp_path, *words)
    assert code == 0, output
    assert "resumed at step 4 of 16" in output
    events = [note["event"] for note in parse_events((tmp_path / "runs/own/events.jsonl").read_bytes())]
    assert len([event for event in events if event.startswith("goes on with changed code at step 4: broken.py")]) == 1


BROKEN_READ = "        images, labels = arrays(self.file)\n        return Rows("


@pytest.mark.slow
def test_a_split_that_cannot_be_sent_to_workers_is_refused_with_what_it_holds(tmp_path: Path) -> None:
    write_pages(["write-a-source"], tmp_path)
    source = (tmp_path / "arrays.py").read_text()
    locked = re.sub(r"(\n +)(self\.unit_sizes = )", r"\1self.lock = threading.Lock()\1\2", source, count=1)
    assert locked != source
    (tmp_path / "arrays.py").write_text("import threading\n" + locked)
    words = [*SMALL, *NETWORK, "data={name: arrays.py:Mine, path: images, image_size: 8}", "benchmarks=[]"]
    code, told = pretrain(tmp_path, *words)
    assert code == 2
    assert "the images cannot be sent to workers: cannot pickle '_thread.lock' object" in told


@pytest.mark.slow
def test_an_exception_of_an_own_source_in_a_data_task_is_told_at_the_first_try(tmp_path: Path) -> None:
    write_pages(["write-a-source"], tmp_path)
    file = tmp_path / "arrays.py"
    text = file.read_text()
    assert BROKEN_READ in text
    condition = "        if len(index) > 8:\n            raise ValueError('too many rows')\n"
    file.write_text(text.replace(BROKEN_READ, condition + BROKEN_READ))
    words = ("data={name: arrays.py:Mine, path: images}", "data.image_size=8", "benchmarks=[]")
    code, output = pretrain(tmp_path, *words, *NETWORK)
    assert code == 1, output
    assert "in read: ValueError: too many rows; a retry would meet it again" in output
    assert "retry 1" not in output


@pytest.mark.slow
def test_a_printed_source_and_method_train_on_two_nodes_and_go_on_under_another_job(tmp_path: Path) -> None:
    first, second = tmp_path / "_ray_pkg_1", tmp_path / "_ray_pkg_2"
    first.mkdir()
    write_pages(["write-a-source", "write-a-method"], first)
    shutil.move(first / "images", tmp_path / "images")
    words = [f"data={{name: arrays.py:Mine, path: {tmp_path}/images}}", *VICREG, *NETWORK]
    words += [f"storage={tmp_path}/runs", "train.workers=2", "train.cpus_per_worker=1.4"]
    words += ["train.epochs=10", "benchmarks=[]"]
    with some_nodes(tmp_path, 2, 2) as address:  # in a folder without the user's files
        environment = {**client_environment(), "RAY_ADDRESS": address}
        stopped = start(first, *words, environment=environment)
        wait_for_step(tmp_path / "runs/own", 6, stopped, timeout=300)
        stopped.send_signal(signal.SIGTERM)
        output, _ = stopped.communicate(timeout=120)
        assert stopped.returncode == 143, output
        shutil.move(first, second)
        output = finish(start(second, *words, environment=environment), timeout=300)
    assert re.search(r"resumed at step \d+ of 80", output)
    assert "on 2 workers on cpu" in output
    assert "with changed code" not in output
    assert (tmp_path / "runs/own/checkpoint_000000080/meta.json").is_file()
