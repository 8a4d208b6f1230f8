"""Benchmarks on features, side by side on the cluster, with a task for each benchmark and network."""

import io
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import ray
import torch
from ray.exceptions import RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from torch import Tensor, nn

from raysl.benchmarks.benchmark import Benchmark, BenchmarkConfig, Context, FeatureSet, Findings, Metric, by_name
from raysl.benchmarks.features.stored_features import StoredSet
from raysl.benchmarks.parallel import ANYWHERE
from raysl.benchmarks.suite.figures import confusion, reliability
from raysl.benchmarks.suite.protocols import digest_of
from raysl.cluster.connection import cluster_resources, connect
from raysl.cluster.waiting_for_nodes import wait_for_nodes
from raysl.config.dump import plain
from raysl.process.code_errors import explaining_code
from raysl.process.temporary import forget_node_folders
from raysl.redact import redact
from raysl.storage.folder import Folder, outlast
from raysl.train.costs import counting_costs

FORGET_S = 30.0
"""Seconds to wait until all nodes have deleted what their processes shared; a later command deletes the rest."""
MAX_RETRIES = 2
"""Times that a task is tried again when its process or node is lost."""


@dataclass(frozen=True)
class Task:
    """A benchmark of a network.

    Args:
        context: all that it may use but the features.
        stages: the features that it asks for.
        train, test: where those are; None where it asks for none.
    """

    key: str
    kind: type[Benchmark]
    config: BenchmarkConfig
    context: Context
    stages: tuple[str, ...] = ()
    train: StoredSet | None = None
    test: StoredSet | None = None
    class_names: tuple[str, ...] = ()

    @property
    def costs_folder(self) -> Folder:
        """The folder for the costs of a task that trains, until its result is kept."""
        return self.context.folder.child(f"costs_{digest_of(plain(self.config))}")


@dataclass(frozen=True)
class Measured:
    """The outcome of a task.

    Args:
        figures: data of charts.
        predicted: int64 [N], the class that each test image got; None of benchmarks that do not classify.
        confidence: float32 [N], its share or score, where that is known.
        seconds: wall-clock time, of a benchmark that trains that of all starts.
    """

    metrics: dict[str, Metric]
    figures: dict[str, Any] = field(default_factory=dict)
    predicted: Tensor | None = None
    confidence: Tensor | None = None
    seconds: float = 0.0


@explaining_code(of_users=True)
def measure(task: Task) -> Measured:
    """Measure a task in this process; the seconds of one that trains are those of all starts."""
    if not task.kind.trains:
        return _measure(task)
    outlast(task.costs_folder.make)
    with counting_costs(task.costs_folder) as counter:
        return replace(_measure(task), seconds=counter.costs.seconds)


def _measure(task: Task) -> Measured:
    began = time.monotonic()
    train = None if task.train is None else task.train.load(task.stages)
    test = None if task.test is None else task.test.load(task.stages)
    if train is not None:
        train.num_validation = task.context.images["train"].num_validation
    if torch.cuda.is_available():
        # features may take a quarter of the free memory; the benchmark needs the rest
        train, test = _on_gpu(train, test, task.kind.streams_training, torch.cuda.mem_get_info()[0] // 4)
    context = replace(task.context, train=train, test=test)
    findings = task.kind(task.config).measure(context)
    if not isinstance(findings, Findings):
        findings = Findings(findings)
    metrics = by_name(findings.metrics)
    figures = dict(findings.figures)
    if "per_class" in figures:
        figures["per_class"] = {
            title: {_class_name(name, task.class_names): value for name, value in values.items()}
            for title, values in figures["per_class"].items()
        }
    predicted, confidence = findings.predicted, None
    if findings.scores is not None:
        confidence, predicted = findings.scores.cpu().float().max(dim=1)
    labels = None if test is None else test.labels.cpu()
    if predicted is not None and labels is not None and labels.ndim == 1 and len(labels) == len(predicted):
        predicted = predicted.cpu()
        figures["confusion"] = confusion(labels, predicted, task.class_names)
        if findings.are_probabilities and findings.scores is not None:
            figures["reliability"] = reliability(labels, findings.scores.cpu().float())
    return Measured(metrics, figures, predicted, confidence, time.monotonic() - began)


def predictions_file(task: Task, measured: Measured) -> bytes:
    """Return the content of a Parquet file of predictions, one row an image: index, name, prediction, class and, where
    they are known, score and label. It is empty if the benchmark does not classify."""
    test = task.context.images.get("test")
    if measured.predicted is None or test is None or test.num_samples != len(measured.predicted):
        return b""
    predicted, index = measured.predicted.numpy(), np.arange(test.num_samples)
    rows = None if task.test is None else task.test.any  # which need not read the images for their names
    labels = test.labels_of(index) if rows is None else rows.labels.numpy()
    columns = {
        "index": index,
        "name": pa.array([redact(name) for name in test.names_of(index)] if rows is None else rows.names, pa.string()),
        "prediction": predicted,
        "class": pa.array([task.class_names[label] if label >= 0 else None for label in predicted], pa.string()),
    }
    if measured.confidence is not None:
        columns["score"] = measured.confidence.numpy()
    if labels.ndim == 1:
        columns["label"] = labels
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer)
    return buffer.getvalue()


def _class_name(name: Any, class_names: Sequence[str]) -> str:
    """Return a class by name where a benchmark has its number only."""
    text = str(name)
    return class_names[int(text)] if text.isdecimal() and int(text) < len(class_names) else text


def _on_gpu(
    train: FeatureSet | None, test: FeatureSet | None, streams_training: bool, room: int
) -> tuple[FeatureSet | None, FeatureSet | None]:
    """Move features to the GPU.

    Args:
        streams_training: whether the training features may stay there.
        room: bytes that they may take on the GPU; where they do not fit, they stay.
    """
    num_test = 0 if test is None else test.num_bytes
    if num_test > room:
        return train, test
    if train is not None and num_test + train.num_bytes <= room:
        train = train.to("cuda")
    elif train is not None and not streams_training:
        return train, test
    return train, None if test is None else test.to("cuda")


def measure_all(tasks: Sequence[Task]) -> Iterator[tuple[Task, Measured | Exception]]:
    """Yield each task with its outcome, or its error, as they end.

    CPUs are shared out evenly; a task that waits for tasks of its own lends them its share. A trial of a Ray Tune asks
    for no more CPUs than others leave free.
    """
    if not tasks:
        return
    connect()
    have = cluster_resources()
    share = float(max(1, int(have.benchmark_cpus // len(tasks))))
    options: dict[str, Any] = {
        "num_cpus": min(share, have.task_cpus),
        "max_retries": MAX_RETRIES,
        "scheduling_strategy": ANYWHERE,
    }
    if have.gpus >= 1:
        # GPUs are shared in quarters, so that at most four tasks use one
        options["num_gpus"] = min(1.0, have.own_gpus, max(0.25, int(4 * have.own_gpus / len(tasks)) / 4))
    needs = {kind: options[name] for kind, name in (("CPU", "num_cpus"), ("GPU", "num_gpus")) if name in options}
    wait_for_nodes([needs], "benchmarks")
    networks: dict[int, Any] = {}
    remote = ray.remote(_measure_there).options(**options)
    waiting = {}
    for task in tasks:
        context = task.context
        if id(context.network) not in networks:
            networks[id(context.network)] = ray.put(context.network)
        # a task without its network is small; all tasks of a side share one network in the object store
        lean = replace(task, context=replace(context, network=nn.Identity()))
        waiting[remote.remote(lean, networks[id(context.network)])] = task
    while waiting:
        (reference,), _ = ray.wait(list(waiting), num_returns=1)
        task = waiting.pop(reference)
        try:
            yield task, ray.get(reference)
        except RayTaskError as error:
            yield task, error.cause if isinstance(error.cause, Exception) else error
        except ray.exceptions.RayError as error:
            yield task, RuntimeError(f"its process was lost {MAX_RETRIES + 1} times: {error}")


@contextmanager
def sharing_features(tasks: Sequence[Task]) -> Iterator[None]:
    """Delete what the tasks' processes share on each node of the cluster at the end of the block."""
    try:
        yield
    finally:
        sets = [stored for task in tasks for stored in (task.train, task.test) if stored is not None]
        for token in {stored.token for stored in sets if stored.is_shared}:
            forget_node_folders(token)
            if ray.is_initialized():
                # files of a node can be deleted only there; asking for no CPU, the task runs on a busy node too
                forget = ray.remote(num_cpus=0)(forget_node_folders)
                alive = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
                nodes = [NodeAffinitySchedulingStrategy(node, soft=False) for node in alive]
                answers = [forget.options(scheduling_strategy=node).remote(token) for node in nodes]
                ray.wait(answers, num_returns=len(answers), timeout=FORGET_S)


def _measure_there(task: Task, network: nn.Module) -> Measured:
    threads = int(ray.get_runtime_context().get_assigned_resources().get("CPU", 1))
    torch.set_num_threads(max(1, threads))
    return measure(replace(task, context=replace(task.context, network=network)))
