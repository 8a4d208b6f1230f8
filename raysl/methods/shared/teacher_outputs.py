"""The outputs of a student's teachers, from `method.cache` where they were computed before."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from raysl.config.dump import plain
from raysl.data.sources.concat import Concat
from raysl.methods.method import Batch, ConfigError, Setup
from raysl.methods.shared.teacher_cache import TeacherCache
from raysl.methods.shared.teacher_heads import Lesson, ask
from raysl.plan.shapes import is_shape
from raysl.transforms.device import to_device


class TeacherOutputs:
    """Asks teachers for their outputs, or reads them."""

    def __init__(self, setup: Setup, lessons: Sequence[Lesson]) -> None:
        self.setup = setup
        self.lessons = lessons
        self._caches: dict[int, TeacherCache] = {}

    def outputs(self, number: int, images: Tensor, batch: Batch) -> tuple[Tensor, ...]:
        """Return what `ask` does of a teacher; it computes if an image of the batch is not stored.

        Args:
            images: all views of the batch [B*V, C, H, W].
        """
        cache = self._cache(number, images)
        stored = None if cache is None else cache.read(batch.keys_on_host(), self._cycle(batch))
        if stored is None:
            return ask(self.lessons[number], images)
        return tuple(to_device(output.flatten(0, 1), images.device) for output in stored)

    def carry(self, number: int, outputs: Sequence[Tensor], num_views: int) -> dict[str, Tensor]:
        """Return the outputs of a teacher for `store`, with a row for each image; nothing without a cache."""
        if self.setup.method.cache is None:
            return {}
        return {f"{number}.{output}": each.view(-1, num_views, *each.shape[1:]) for output, each in enumerate(outputs)}

    def store(self, batch: Batch, carry: dict[str, Tensor]) -> None:
        """Write the outputs of a batch that are not stored yet."""
        for number in range(len(self.lessons)):
            outputs = [output for name, output in carry.items() if name.startswith(f"{number}.")]
            if outputs and (cache := self._cache(number, outputs[0])) is not None:
                cache.write(batch.keys_on_host(), self._cycle(batch), outputs)

    def _cycle(self, batch: Batch) -> int:
        return batch.epoch % int(self.setup.method.cycle)

    def _cache(self, number: int, values: Tensor) -> TeacherCache | None:
        """Return the cache of a teacher, whose weights are those of the run in its first step; None without one."""
        # a rehearsal has shapes without numbers, so there is nothing to read or store
        if self.setup.method.cache is None or is_shape(values):
            return None
        if number not in self._caches:
            lesson, setup = self.lessons[number], self.setup
            basis = _basis(setup, lesson)
            self._caches[number] = TeacherCache.of(setup.method.cache, setup.data.num_samples, basis, lesson.teacher)
        return self._caches[number]


def check_cache(setup: Setup) -> None:
    """Refuse a cache of views that never come again, outside of a disk, or beside settings that it does not go with."""
    method, train = setup.method, setup.config.train
    if method.cycle is None:
        raise ConfigError(
            "method.cache keeps outputs for views that come again; set method.cycle=1 for the same views in every "
            "epoch, or method.cycle=4 for four kinds of them"
        )
    if "://" in method.cache:
        raise ConfigError(f"method.cache={method.cache} is read row by row; give a folder on a disk of the workers")
    if train.parallel == "fsdp":
        raise ConfigError(
            "method.cache: workers would find different rows, and train.parallel=fsdp has all of them compute the "
            "teacher together; set train.parallel=zero1 or ddp"
        )
    if train.compile == "step":
        raise ConfigError("method.cache is read in a step, which train.compile=step cannot do; set train.compile=true")
    if isinstance(setup.config.data, Concat.Config) and setup.config.data.weights is not None:
        raise ConfigError(
            "method.cache has a row for each image, and data.weights repeats images; leave one of them out"
        )
    if not setup.data.fingerprint:
        raise ConfigError("method.cache: nothing identifies these images; leave it out for batches of your own")


def _basis(setup: Setup, lesson: Lesson) -> dict[str, Any]:
    """Return everything but its weights that a teacher's outputs depend on."""
    method, data, train = setup.method, setup.config.data, setup.config.train
    factors = [values.flatten().tolist() for values in (lesson.images.factor, lesson.images.shift)]
    return {
        "images": setup.data.fingerprint,
        "seed": setup.seed,
        "cycle": method.cycle,
        "views": plain(method.views),
        "data": [data.mean, data.std, data.channels, data.scaled_decode, data.augment_on],
        "precision": [train.precision, train.fp32_products],
        "network": repr(lesson.teacher),
        "target": lesson.settings.target,
        "stage": lesson.stage,
        "size": lesson.settings.size,
        "normalisation": factors,
    }
