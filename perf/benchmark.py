"""`python -m perf benchmark`: the measurements of `raysl benchmark`, compared with other libraries.

Contenders of one case take turns on the same numbers and threads, in an order that changes from repeat to repeat, and
ratios are taken inside a repeat. Memory is that of a process of its own for each: the most that it has beyond its
features, pages of files not counted.
"""

import logging
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from perf.classifiers import knn_contenders, linear_contenders, made_features
from perf.clusterwork import Extraction, num_cpus, svm_contenders
from perf.numbers import choose_cases, machine, medians, ratios, rotated, verdict
from perf.own_processes import memory_of, started
from perf.sizes import Sizes
from raysl.process.memory import keep_freed_memory
from raysl.process.screen import counted

log = logging.getLogger("raysl")

Found = dict[str, Any]
IMAGENET = 1_281_167
MOST_GROWTH_MB = 1000.0


@dataclass(frozen=True)
class Case:
    """A part of the table.

    Args:
        measure: numbers by what they are, of sizes and repeats.
        lines: those numbers for people.
    """

    measure: Callable[[Sizes, int], Found]
    lines: Callable[[Found, Sizes], list[str]]


def measure_benchmark(names: Sequence[str] = (), *, repeats: int = 3, sizes: Sizes | None = None) -> Found:
    """Measure seconds, memory and answers of each contender of each case.

    Args:
        names: keys of `CASES`; default: all.
        repeats: turns of each contender.
        sizes: of everything.

    Returns:
        By case its numbers, see there; and `environment`.

    Raises:
        ConfigError: if there is no such case.
        RunFailed: if a process fails.
    """
    sizes, names = sizes or Sizes(), choose_cases(names, CASES)
    environment = machine() | {"threads": torch.get_num_threads(), "sizes": asdict(sizes)}
    keep_freed_memory()
    result: Found = {}
    for name in names:
        result[name] = CASES[name].measure(sizes, repeats)
        log.info("%s", CASES[name].lines(result[name], sizes)[0])
    return {"cases": result, "environment": environment}


def benchmark_table(numbers: Found) -> str:
    """Format the result of `measure_benchmark` as text."""
    sizes, lines = Sizes(**numbers["environment"]["sizes"]), []
    for name, case in CASES.items():
        if name in numbers["cases"]:
            lines += case.lines(numbers["cases"][name], sizes)
    threads, load = numbers["environment"]["threads"], numbers["environment"]["load_before"]
    return "\n".join([*lines, f"{counted(threads, 'thread')}, load before {load}"])


def _knn(sizes: Sizes, repeats: int) -> Found:
    """`seconds`, `cpu_seconds`, their `ratios`, `accuracy` (%), `memory_mb` of each."""
    contenders = knn_contenders(sizes)
    result = _timed(contenders, repeats, _labels(sizes))
    return result | {"memory_mb": {who: memory_of("knn", who, sizes) for who in contenders}}


def _knn_lines(found: Found, sizes: Sizes) -> list[str]:
    title = f"kNN, {sizes.queries:,} queries of {sizes.keys:,} x {sizes.dim}"
    return [title, *_contender_lines(found), *_goal_lines(found, {f"raysl/{who}": 1.0 for who in _peers(found)})]


def _growth(sizes: Sizes, repeats: int) -> Found:
    """`memory_mb` of raysl by the number of keys, which are mapped from a file; `imagenet_mb`, for its 1.28 million."""
    at = {num: memory_of("growth", str(num), sizes) for num in (sizes.keys, sizes.many_keys)}
    slope = _slope(at)
    imagenet = max(0.0, at[sizes.many_keys] + slope * (IMAGENET - sizes.many_keys))
    return {"memory_mb": {str(num): value for num, value in at.items()}, "imagenet_mb": imagenet}


def _growth_lines(found: Found, sizes: Sizes) -> list[str]:
    at = ", ".join(f"{value:,.0f} MB for {int(num):,}" for num, value in found["memory_mb"].items())
    return [
        f"kNN, memory of {sizes.few_queries:,} queries beside keys that are mapped from a file",
        f"    {at}; by that line {found['imagenet_mb']:,.0f} MB for {IMAGENET:,} keys",
    ]


def _linear(sizes: Sizes, repeats: int) -> Found:
    """See `_knn`; no memory."""
    return _timed(linear_contenders(sizes), repeats, _labels(sizes))


def _linear_lines(found: Found, sizes: Sizes) -> list[str]:
    title = f"linear with 13 learning rates, {sizes.keys:,} x {sizes.dim}, {sizes.classes} classes"
    third = ("raysl/scikit-learn", "raysl, 3 epochs/scikit-learn", "raysl/scikit-learn, 13 C")
    goals = {**dict.fromkeys(third, 1 / 3), "logistic/scikit-learn": 1.0}
    return [title, *_contender_lines(found), *_goal_lines(found, goals)]


def _svm(sizes: Sizes, repeats: int) -> Found:
    """`seconds`, `ratios`, `num_cpus`, and `to_ideal`: how much of the cores' number it gains, by repeats."""
    contenders = svm_contenders(sizes)
    contenders["raysl"]()  # Ray starts its processes
    result = _timed(contenders, repeats)
    cpus = num_cpus()
    gains = [repeat["one core"] / repeat["raysl"] / cpus for repeat in result["repeats"]]
    return result | {"num_cpus": cpus, "to_ideal": gains}


def _svm_lines(found: Found, sizes: Sizes) -> list[str]:
    title = f"svm, {sizes.svm_classes} classes x 11 costs x 3 parts of {sizes.svm_rows:,} x {sizes.svm_dim}"
    seconds = ", ".join(f"{who} {value:.1f} s" for who, value in found["seconds"].items())
    return [
        f"{title}: {seconds}",
        _share_line(f"of {found['num_cpus']} times as fast", found["to_ideal"], 0.9),
    ]


def _extraction(sizes: Sizes, repeats: int) -> Found:
    """Images a second of raysl and of the bare forward pass, `repeats` and medians; `to_forward`, by repeats."""
    with tempfile.TemporaryDirectory(prefix="raysl_speed_") as folder:
        extraction = Extraction(sizes, Path(folder))
        extraction.start()
        repeated = [extraction.rates() for _ in range(repeats)]
    shares = [repeat["raysl"] / repeat["forward"] for repeat in repeated]
    return {"images_s": medians(repeated), "repeats": repeated, "to_forward": shares}


def _extraction_lines(found: Found, sizes: Sizes) -> list[str]:
    rates = ", ".join(f"{who} {value:.1f}" for who, value in found["images_s"].items())
    return [
        f"extraction, ResNet-{sizes.depth}, JPEG to features on disk, images/s: {rates}",
        _share_line("of the bare forward pass", found["to_forward"], 0.9),
    ]


def _driver(sizes: Sizes, repeats: int) -> Found:
    """`most_mb` of the driver and `seconds`, by rows; `growth_mb`: from 10,000 rows to ImageNet's, by that line."""
    runs = {}
    for rows in (sizes.few_rows, sizes.rows):
        runs[rows] = started("perf.clusterwork", [str(rows), str(sizes.width)], f"extraction of {rows:,} rows")
    most = {rows: run["most_mb"] for rows, run in runs.items()}
    names = ("most_mb", "before_mb", "seconds")
    result = {name: {str(rows): run[name] for rows, run in runs.items()} for name in names}
    return result | {"growth_mb": _slope(most) * (IMAGENET - 10_000), "mb_a_million": _slope(most) * 1e6}


def _driver_lines(found: Found, sizes: Sizes) -> list[str]:
    at = ", ".join(
        f"{most:,.0f} MB for {int(rows):,} rows ({found['seconds'][rows]:.0f} s)"
        for rows, most in found["most_mb"].items()
    )
    growth = found["growth_mb"]
    return [
        f"driver of an extraction, width {sizes.width:,}, by a stand-in network: {at}",
        f"    {found['mb_a_million']:,.0f} MB a million rows; from 10,000 to {IMAGENET:,} {growth:,.0f} MB"
        f"  goal under {MOST_GROWTH_MB:,.0f} MB: {verdict(growth < MOST_GROWTH_MB)}",
    ]


CASES = {
    "knn": Case(_knn, _knn_lines),
    "growth": Case(_growth, _growth_lines),
    "linear": Case(_linear, _linear_lines),
    "svm": Case(_svm, _svm_lines),
    "extraction": Case(_extraction, _extraction_lines),
    "driver": Case(_driver, _driver_lines),
}


def _labels(sizes: Sizes) -> torch.Tensor:
    return made_features(sizes)[1].labels


def _timed(contenders: Mapping[str, Callable[[], Any]], repeats: int, labels: torch.Tensor | None = None) -> Found:
    """`seconds` and `cpu_seconds` (medians), `repeats`, `cpu_repeats`, and of classifiers `accuracy` in percent."""
    measured, of_cpus, answers = [], [], {}
    for repeat in range(repeats):
        seconds, cpu_seconds = {}, {}
        for who in rotated(list(contenders), repeat):
            with _same_threads():
                start, cpu_start = time.perf_counter(), time.process_time()
                answers[who] = contenders[who]()
                seconds[who], cpu_seconds[who] = time.perf_counter() - start, time.process_time() - cpu_start
        measured.append({who: seconds[who] for who in contenders})
        of_cpus.append({who: cpu_seconds[who] for who in contenders})
    result: Found = {"seconds": medians(measured), "repeats": measured}
    result |= {"cpu_seconds": medians(of_cpus), "cpu_repeats": of_cpus}
    if labels is not None:
        result["accuracy"] = {who: 100 * float((answers[who] == labels).float().mean()) for who in contenders}
    return result


@contextmanager
def _same_threads() -> Iterator[None]:
    """Give every library as many threads as torch has."""
    from threadpoolctl import threadpool_limits  # of scikit-learn

    with threadpool_limits(torch.get_num_threads()):
        yield


def _peers(found: Found) -> list[str]:
    return [who for who in found["seconds"] if who != "raysl"]


def _contender_lines(found: Found) -> list[str]:
    lines = []
    for who, seconds in found["seconds"].items():
        parts = [f"{seconds:>8.2f} s", f"{found['cpu_seconds'][who]:>8.2f} CPU s", f"{found['accuracy'][who]:>6.2f} %"]
        if "memory_mb" in found:
            parts.append(f"{found['memory_mb'][who]:>7,.0f} MB")
        lines.append(f"    {who:<20}{'  '.join(parts)}")
    return lines


def _goal_lines(found: Found, goals: Mapping[str, float]) -> list[str]:
    lines = []
    for name, goal in goals.items():
        each = [ratios([repeat], [name])[name] for repeat in found["repeats"]]
        cpu = ratios(found["cpu_repeats"], [name])[name]
        value = ratios(found["repeats"], [name])[name]
        span = f"{min(each):.2f} to {max(each):.2f}; of CPU seconds {cpu:.2f}"
        lines.append(f"    {name} {value:.2f} ({span})  goal at most {goal:.2f}: {verdict(value <= goal)}")
    return lines


def _share_line(title: str, shares: Sequence[float], goal: float) -> str:
    middle = float(np.median(shares))
    span = f"{min(shares):.2f} to {max(shares):.2f}"
    return f"    {middle:.2f} ({span}) {title}  goal at least {goal:.2f}: {verdict(middle >= goal)}"


def _slope(at: Mapping[int, float]) -> float:
    """Return what one more row adds, from the fewest and the most rows."""
    few, many = min(at), max(at)
    return (at[many] - at[few]) / (many - few) if many > few else 0.0
