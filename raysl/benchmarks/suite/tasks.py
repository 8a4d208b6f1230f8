"""Make and run the tasks of a checkpoint's benchmarks: extract all features once, then run a task for each network."""

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import ray
import torch
from ray.exceptions import RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from torch import nn

from raysl.benchmarks.benchmark import (
    FEATURES,
    PIXELS,
    Benchmark,
    BenchmarkConfig,
    Context,
    FeatureSet,
    Findings,
    Side,
)
from raysl.benchmarks.features.extraction import Wanted, feature_sets
from raysl.benchmarks.features.stored_features import StoredSet
from raysl.benchmarks.parallel import ANYWHERE
from raysl.benchmarks.suite.fitting import Fitting, MeasuredImages, benchmark_class
from raysl.benchmarks.suite.measured import Measured, measured_of
from raysl.benchmarks.suite.pictures import Pictured
from raysl.benchmarks.suite.protocols import digest_of
from raysl.benchmarks.suite.results import image_settings
from raysl.benchmarks.suite.workplace import Workplace
from raysl.checkpoint.backbone import Checkpoint
from raysl.cluster.connection import cluster_resources, connect
from raysl.cluster.waiting_for_nodes import wait_for_nodes
from raysl.config.dump import plain
from raysl.data.source import Split
from raysl.data.sources.subset import sample_of
from raysl.nn.backbones.backbone import Backbone
from raysl.nn.pooling import RawPixels
from raysl.process.code_errors import explaining_code
from raysl.process.temporary import forget_node_folders
from raysl.process.waiting import enter
from raysl.storage.folder import Folder, outlast
from raysl.train.costs import counting_costs
from raysl.train.state import untrained_backbone

FORGET_S = 30.0
"""Most seconds to wait for all nodes to delete their shared features; a later command deletes the rest."""
MAX_RETRIES = 2
"""Times that a task is tried again when its process or node is lost."""
MOST_SHOWN = 5000
"""Size of the sample from which a report chooses its pictures if no benchmark has extracted features of all images."""


@dataclass(frozen=True)
class Task:
    """One benchmark of one network.

    Args:
        context: inputs of the benchmark, without the features.
        stages: stages whose features the benchmark needs.
        train, test: stored features; None if the benchmark needs none.
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
class Tasks:
    """Makes the tasks of benchmarks.

    Args:
        names: names of the results, by the keys of the benchmarks.
        workplace: folders for features and training state.
        token: name of this command's shared features on the nodes.
    """

    loaded: Checkpoint
    fitting: Fitting
    images: MeasuredImages
    names: Mapping[str, str]
    workplace: Workplace
    token: str = field(default_factory=lambda: uuid.uuid4().hex)

    @cached_property
    def networks(self) -> dict[Side, nn.Module]:
        """The networks to measure, by side."""
        return {"trained": self.loaded.backbone, "untrained": self.untrained, "pixels": RawPixels()}

    @cached_property
    def untrained(self) -> Backbone:
        """The network with the initial weights of the run's seed."""
        return untrained_backbone(self.loaded)

    def of(self, keys: list[str]) -> Iterator[Task]:
        """Yield a task for each benchmark and side; features are extracted once for all of them."""
        stages = {key: benchmark_class(config).stages(config) for key, config in self.fitting.settings.items()}
        stored: dict[tuple[int, str], dict[str, StoredSet]] = {}
        for images in {id(self.fitting.images[key]): self.fitting.images[key] for key in keys}.values():
            keys_on_images = [key for key in keys if self.fitting.images[key] is images and stages[key]]
            for name, split in images.splits.items() if keys_on_images else ():
                stored[id(images), name] = self._extract(keys_on_images, stages, split, images, name)
        for key in keys:
            config, images = self.fitting.settings[key], self.fitting.images[key]
            for side in self._sides(key):
                sets = {name: stored.get((id(images), name), {}).get(side) for name in ("train", "test")}
                if stages[key] and sets["train"] is None:
                    continue  # pixels have no stages
                context = Context(
                    side=side,
                    network=self.networks[side],
                    checkpoint=self.loaded,
                    data=images.data,
                    images=images.splits,
                    train=None,
                    test=None,
                    num_classes=images.num_classes,
                    seed=self.loaded.config.seed,
                    folder=self.workplace.work.child(f"{self.names[key]}.{side}"),
                )
                train, test = (sets[name] if stages[key] else None for name in ("train", "test"))
                yield Task(
                    key, benchmark_class(config), config, context, stages[key], train, test, images.train.classes
                )

    def _sides(self, key: str) -> list[Side]:
        rivals = self.fitting.settings[key].rivals
        return [side for side in self.networks if side == "trained" or side in rivals]

    def _extract(
        self,
        keys: list[str],
        stages_by_key: Mapping[str, tuple[str, ...]],
        split: Split,
        images: MeasuredImages,
        name: str,
    ) -> dict[str, StoredSet]:
        enter(f"computing features of {split.num_samples:,} {name} images")
        sides = [side for side in self.networks if any(side in self._sides(key) for key in keys)]
        stages = tuple(dict.fromkeys([FEATURES, *(stage for key in keys for stage in stages_by_key[key])]))
        digest = self.loaded.digest
        wanted = Wanted(
            networks={side: self.networks[side] for side in sides},
            weights={side: PIXELS if side == PIXELS else f"{side} {digest}" for side in sides},
            stages=stages,
            pictured=_thumbnail_features(split) if split is self._shown_split else None,
        )
        folder = name
        if images is not self.images:  # images other than the report's, or of other sizes, have a folder of their own
            seen = [images.state(name), image_settings(images.data), images.data.eval_interpolation]
            folder = f"{digest_of(seen)}_{name}"
        return feature_sets(wanted, split, images.data, self.workplace.features(folder), self.token)

    @property
    def _shown_split(self) -> Split:
        """The images from which a report chooses its pictures: held-out ones if there are any."""
        return self.images.train if self.images.test is None else self.images.test

    def shown(self, tasks: list[Task]) -> Pictured:
        """Return the images from which a report chooses its pictures, with the trained backbone's features of them.

        The features are those of a task, or else are extracted from a sample of the images.
        """
        split, is_held_out = self._shown_split, self.images.test is not None
        for task in tasks:
            is_of_report = self.fitting.images[task.key].train is self.images.train and task.context.side == "trained"
            if is_of_report and task.test is not None:
                return Pictured(split, task.test.load((FEATURES,)), is_held_out, task.test.stores.get(FEATURES))
        split = sample_of(split, MOST_SHOWN)
        wanted = Wanted(
            networks={"trained": self.loaded.backbone},
            weights={"trained": f"trained {self.loaded.digest}"},
            pictured=_thumbnail_features(split),
        )
        stored = feature_sets(wanted, split, self.images.data, self.workplace.features("shown"))["trained"]
        return Pictured(split, stored.load((FEATURES,)), is_held_out, stored.stores[FEATURES])


def outlooks(tasks: Sequence[Task], cores: float) -> Iterator[str]:
    """Yield a line for each benchmark on features that will take long."""
    for key in dict.fromkeys(task.key for task in tasks):
        of_key = [task for task in tasks if task.key == key]
        first, network = of_key[0], of_key[0].context.network
        if first.train is None or not isinstance(network, Backbone):
            continue
        rows = first.context.images["train"].num_samples
        width = sum(network.stage_widths.get(stage, network.feature_dim) for stage in first.stages)
        outlook = first.kind.outlook(first.config, rows, width, first.context.num_classes)
        if outlook is not None and (line := outlook.line(key, len(of_key), cores)):
            yield line


def _thumbnail_features(split: Split) -> tuple[str, str] | None:
    """Return the features with which to store thumbnails, as network and stage; None if single images are read fast."""
    return None if split.is_random_access else ("trained", FEATURES)


@explaining_code(of_users=True)
def measure(task: Task) -> Measured:
    """Measure a task in this process. If it trains, its seconds include those of earlier interrupted starts."""
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
    labels = findings.labels if test is None else test.labels.cpu()
    return measured_of(findings, labels, task.class_names, time.monotonic() - began)


def _on_gpu(
    train: FeatureSet | None, test: FeatureSet | None, streams_training: bool, room: int
) -> tuple[FeatureSet | None, FeatureSet | None]:
    """Move features to the GPU if they fit; else they stay where they are.

    Args:
        streams_training: whether the benchmark can use the GPU while its training features stay on the CPU.
        room: most bytes that the features may take on the GPU.
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
    """Run all tasks on the cluster, and yield each with its result or its error as soon as it ends.

    All tasks get the same number of CPUs; a task that waits for tasks of its own lends them its CPUs. A trial of Ray
    Tune requests no more CPUs than other trials leave free.
    """
    if not tasks:
        return
    connect()
    resources = cluster_resources()
    share = float(max(1, int(resources.benchmark_cpus // len(tasks))))
    options: dict[str, Any] = {
        "num_cpus": min(share, resources.task_cpus),
        "max_retries": MAX_RETRIES,
        "scheduling_strategy": ANYWHERE,
    }
    if resources.gpus >= 1:
        # GPUs are shared in quarters, so that at most four tasks use one
        options["num_gpus"] = min(1.0, resources.own_gpus, max(0.25, int(4 * resources.own_gpus / len(tasks)) / 4))
    needs = {kind: options[name] for kind, name in (("CPU", "num_cpus"), ("GPU", "num_gpus")) if name in options}
    wait_for_nodes([needs], "benchmarks")
    networks: dict[int, Any] = {}
    remote = ray.remote(_measure_remotely).options(**options)
    waiting = {}
    for task in tasks:
        context = task.context
        if id(context.network) not in networks:
            networks[id(context.network)] = ray.put(context.network)
        # the network is in the object store once, for all tasks that measure it
        without_network = replace(task, context=replace(context, network=nn.Identity()))
        waiting[remote.remote(without_network, networks[id(context.network)])] = task
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
    """At the end of the block, delete on each node the features that the tasks' processes share there."""
    try:
        yield
    finally:
        sets = [stored for task in tasks for stored in (task.train, task.test) if stored is not None]
        for token in {stored.token for stored in sets if stored.is_shared}:
            forget_node_folders(token)
            if ray.is_initialized():
                # only a task on a node can delete its files; a task without a CPU also runs on a busy node
                forget = ray.remote(num_cpus=0)(forget_node_folders)
                alive = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
                nodes = [NodeAffinitySchedulingStrategy(node, soft=False) for node in alive]
                answers = [forget.options(scheduling_strategy=node).remote(token) for node in nodes]
                ray.wait(answers, num_returns=len(answers), timeout=FORGET_S)


def _measure_remotely(task: Task, network: nn.Module) -> Measured:
    threads = int(ray.get_runtime_context().get_assigned_resources().get("CPU", 1))
    torch.set_num_threads(max(1, threads))
    return measure(replace(task, context=replace(task.context, network=network)))
