"""Every `ray job submit` of the README, the docs, the cluster files and the entry scripts: it is whole, and it runs."""

import ast
import io
import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import boto3
import numpy as np
import pytest
from PIL import Image

import raysl
from raysl.cli import split_arguments
from tests.jobs.heads import Head, Job, started_head

ROOT = Path(__file__).parents[2]
ADDRESS = "http://127.0.0.1:8265"
SMALL_RUN = (
    "backbone.depth=10",
    "backbone.num_stages=2",
    "backbone.width=8",
    "method.hidden_dim=32",
    "method.output_dim=16",
    "data.image_size=16",
    "data.limit=64",
    "train.workers=1",
    "train.batch_size=16",
    "train.epochs=1",
    "train.online_knn_every=null",
    "train.threads=1",
    "optim.warmup=10%",
    "benchmarks=[]",
)
"""Settings that make a run of each line end in seconds; of several values of a setting the last one counts."""
SMALL = {
    "pretrain": SMALL_RUN,
    "benchmark": ("data.limit=64",),
    "extract": ("data.limit=64",),
    "ingest": (),
    "sweep": ("trials=1", *SMALL_RUN),
    "speed": ("--repeats", "1", "--steps", "1"),
    "doctor": (),
}
MADE = {
    "pretrain": "meta.json",
    "benchmark": "report.json",
    "extract": ".parquet",
    "ingest": ".parquet",
    "sweep": "leaderboard.json",
}
"""What ends the name of a file that the job of a script leaves in the bucket."""


@dataclass(frozen=True)
class Line:
    """A `ray job submit` as a reader would copy it."""

    place: str
    environment: tuple[str, ...]
    words: tuple[str, ...]

    @property
    def command(self) -> tuple[str, ...]:
        """What Python runs: the name of a script or of a command of raysl, and its arguments."""
        script, *arguments = self.words[self.words.index("--") + 2 :]
        return (Path(script).stem, *arguments) if script != "-m" else tuple(arguments[1:])

    @property
    def script(self) -> str:
        return self.command[0]


def _texts() -> dict[str, str]:
    """What may hold such lines, without the marks of comments."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    files = [ROOT / "cluster.yaml", *sorted((ROOT / "configs" / "cluster").glob("*.yaml"))]
    texts = {page.name: page.read_text() for page in pages}
    texts |= {file.name: re.sub("^# ?", "", file.read_text(), flags=re.MULTILINE) for file in files}
    for script in sorted((ROOT / "jobs").glob("*.py")):
        texts[f"jobs/{script.name}"] = ast.get_docstring(ast.parse(script.read_text())) or ""
    return texts


def _lines() -> list[Line]:
    lines = []
    for place, text in _texts().items():
        for command in text.replace("\\\n", " ").splitlines():
            if not re.match(r"\s*(export \S+; )?(\w+=\S+ )*ray job submit ", command):
                assert "ray job submit --" not in command, f"{place} has a line inside of a sentence: {command}"
                continue
            words = shlex.split(command.replace("BUCKET", "bucket"))
            start = words.index("ray")
            exported = re.findall(r"^\s*export (.+)$", text, re.MULTILINE)
            environment = [*words[:start], *(word for line in exported for word in line.split())]
            lines.append(Line(place, tuple(environment), tuple(words[start:])))
    return lines


LINES = _lines()
UNIQUE = list({line.words: line for line in reversed(LINES)}.values())
"""Some stand in several places."""


def test_each_place_that_tells_of_jobs_has_a_line() -> None:
    scripts = {f"jobs/{script.name}" for script in (ROOT / "jobs").glob("*.py")}
    pages = {"README.md", "cluster.md", "sweeps.md"}
    assert {line.place for line in LINES} >= scripts | pages | {"cluster.yaml", "kuberay.yaml"}
    assert {line.script for line in LINES} == set(SMALL)


@pytest.mark.parametrize("line", LINES, ids=lambda line: f"{line.place}: {line.script}")
def test_a_line_has_the_token_and_the_time_for_a_last_checkpoint_and_its_settings_exist(line: Line) -> None:
    assert "RAY_AUTH_MODE=token" in line.environment
    options = list(line.words[: line.words.index("--")])
    assert options[options.index("--address") + 1] == ADDRESS
    assert options[options.index("--working-dir") + 1] == "."
    environment = json.loads(options[options.index("--runtime-env-json") + 1])["env_vars"]
    assert float(environment["RAY_JOB_STOP_WAIT_TIME_S"]) >= 30
    if line.script == "pretrain":
        name, overrides = split_arguments(list(line.command[1:]))
        assert raysl.load_config(name or "", overrides).storage.startswith("s3://")


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A bucket with a few images, at a server that the environment names; its images lie in a folder, too."""
    moto_server = pytest.importorskip("moto.server")
    server = moto_server.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    names = {"ACCESS_KEY_ID": "a", "SECRET_ACCESS_KEY": "b", "DEFAULT_REGION": "us-east-1"}
    names |= {"ENDPOINT_URL": f"http://{host}:{port}", "EC2_METADATA_DISABLED": "true"}
    folder = tmp_path_factory.mktemp("images")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in names.items():
            patch.setenv(f"AWS_{name}", value)
        s3 = boto3.client("s3")
        s3.create_bucket(Bucket="bucket")
        for name, image in _images().items():
            s3.put_object(Bucket="bucket", Key=f"imagenet/{name}", Body=image)
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(image)
        yield str(folder)
    server.stop()


def _images() -> dict[str, bytes]:
    pixels = np.random.default_rng(0).integers(0, 256, (96, 20, 24, 3)).astype(np.uint8)
    images = {}
    for number, each in enumerate(pixels):
        stream = io.BytesIO()
        Image.fromarray(each).save(stream, "png")
        images[f"{'val' if number % 3 == 0 else 'train'}/class{number % 2}/{number}.png"] = stream.getvalue()
    return images


@pytest.fixture(scope="module")
def head(bucket: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Head]:
    with started_head(tmp_path_factory.mktemp("head")) as head:
        yield head


def _objects() -> set[str]:
    pages = boto3.client("s3").get_paginator("list_objects_v2").paginate(Bucket="bucket")
    return {each["Key"] for page in pages for each in page.get("Contents", [])}


def _submit(head: Head, line: Line, images: str, name: str) -> Job:
    """Run a line on this head, with settings for a small problem behind its own."""
    places = {ADDRESS: head.address, ".": str(head.working_dir), "data.path=/images": f"data.path={images}"}
    words = [places.get(word, word) for word in line.words]
    return head.run(name, [*words, *SMALL[line.script]])


def _run(head: Head, line: Line, images: str, name: str) -> str:
    """Run a line until its job has ended well; return the job's log."""
    before = _objects()
    job = _submit(head, line, images, name)
    assert job.ended(600) == 0, job.log
    made = [key for key in _objects() - before if key.endswith(MADE.get(line.script, ""))]
    assert made or line.script not in MADE, job.log
    return job.log


def _line(script: str) -> Line:
    (line,) = [line for line in UNIQUE if line.script == script]
    return line


@pytest.mark.slow
def test_the_line_that_packs_images_runs(head: Head, bucket: str) -> None:
    _run(head, _line("ingest"), bucket, "ingest")


@pytest.mark.slow
def test_lines_that_train_measure_and_search_run_one_after_the_other(head: Head, bucket: str) -> None:
    """In the order in which one needs what another made: a checkpoint of the run `first`."""
    order = ["pretrain", "benchmark", "extract", "sweep"]
    lines = sorted((line for line in UNIQUE if line.script in order), key=lambda line: order.index(line.script))
    for number, line in enumerate(lines):
        _run(head, line, bucket, f"{number}-{line.script}")


@pytest.mark.slow
def test_the_line_that_looks_at_the_cluster_runs(head: Head, bucket: str) -> None:
    log = _run(head, _line("doctor"), bucket, "doctor")
    assert "s3://bucket/runs" in log


@pytest.mark.slow
def test_the_line_that_measures_the_speed_runs(head: Head, bucket: str) -> None:
    log = _run(head, _line("speed"), bucket, "speed")
    assert "images/s" in log
