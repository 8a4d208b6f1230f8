"""Rules between settings that every run has; ranges stand at the fields (`raysl.config.ranges`).

What depends on a method or on the images is checked by those.
"""

import dataclasses
from collections.abc import Iterator

from raysl.config.schema import DataConfig, OptimConfig, RunConfig
from raysl.optim.course import course_problems


def problems(config: RunConfig) -> list[str]:
    """A line for each value that does not go with another; empty where all is well."""
    lines = [line for prefix, node in _sources("data.", config.data) for line in _choice(prefix, node)]
    return [*lines, *_run(config), *_data(config), *_optim(config.optim)]


def _sources(prefix: str, data: DataConfig) -> Iterator[tuple[str, DataConfig]]:
    """The settings of a source, and of those inside it."""
    yield prefix, data
    for field in dataclasses.fields(data):
        inner = getattr(data, field.name)
        for key, source in inner.items() if isinstance(inner, dict) else ():
            if isinstance(source, DataConfig):
                yield from _sources(f"{prefix}{field.name}.{key}.", source)


def _run(config: RunConfig) -> Iterator[str]:
    if not config.name.strip() or config.name in (".", "..") or any(mark in config.name for mark in "/\\"):
        yield f"name: {config.name!r} is no name of a folder; leave out slashes, and put folders into storage"
    if not config.storage.strip():
        yield "storage: '' is no folder; give one, such as ./runs, or a URI"
    for key in config.benchmarks:
        if "." in key:
            yield f"benchmarks: {key!r} has a dot, which separates keys; call it {key.replace('.', '_')!r}"


def _choice(prefix: str, data: DataConfig) -> Iterator[str]:
    if data.balanced and data.limit is None:
        yield f"{prefix}balanced: it shares out {prefix}limit images over the classes; give {prefix}limit= too"
    if data.subset_by is not None and data.subset is None:
        yield f"{prefix}subset_by: it says what {prefix}subset lists; give {prefix}subset= too"


def _data(config: RunConfig) -> Iterator[str]:
    data, batch_size = config.data, config.train.batch_size
    if data.eval_resize is not None and data.eval_resize < data.image_size:
        yield f"data.eval_resize: {data.eval_resize} leaves no room to crop data.image_size {data.image_size}; raise it"
    if data.lanes is not None and data.lanes > batch_size:
        yield f"data.lanes: {data.lanes} lanes do not fit train.batch_size {batch_size}; set {batch_size} or fewer"


def _optim(optim: OptimConfig) -> Iterator[str]:
    if optim.warmup.unit == "%" and optim.warmup.value > 100:
        yield f"optim.warmup: {optim.warmup} is longer than the run; give at most 100%"
    yield from course_problems(optim)
