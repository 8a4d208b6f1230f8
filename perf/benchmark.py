"""`python -m perf benchmark`: the measurements of `raysl benchmark`, compared with other libraries.

Contenders of one case take turns on the same numbers and threads. Memory is that of a process of its own for each: the
most that it has beyond its features, pages of files not counted.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

import torch

from perf import harness
from perf.classifiers import Sizes, knn_contenders, linear_contenders, measure_memory, random_features
from perf.clusterwork import Extraction, driver_memory, num_cpus, svm_contenders
from perf.harness import Numbers, each_ratio, log, machine, medians, span, verdict
from raysl.process.memory import keep_freed_memory
from raysl.process.screen import counted

IMAGENET = 1_281_167
MOST_GROWTH_MB = 1000.0


def measure(names: Sequence[str] = (), *, repeats: int = 3, sizes: Sizes | None = None) -> Numbers:
    """Measure seconds, memory and answers of each contender of each case.

    Returns:
        `cases`, by name the numbers of its function below; and `environment`.
    """
    sizes, names = sizes or Sizes(), harness.choose_cases(names, CASES)
    environment = machine() | {"threads": torch.get_num_threads(), "sizes": asdict(sizes)}
    keep_freed_memory()
    results: Numbers = {}
    for name in names:
        measure, lines = CASES[name]
        results[name] = measure(sizes, repeats)
        log.info("%s", lines(results[name], sizes)[0])
    return {"cases": results, "environment": environment}


def table(numbers: Numbers) -> str:
    """Format the result of `measure` as text."""
    environment, cases = numbers["environment"], numbers["cases"]
    sizes = Sizes(**environment["sizes"])
    lines = [line for name, (_, lines) in CASES.items() if name in cases for line in lines(cases[name], sizes)]
    return "\n".join([*lines, f"{counted(environment['threads'], 'thread')}, load before {environment['load_before']}"])


def _knn(sizes: Sizes, repeats: int) -> Numbers:
    """`seconds`, `cpu_seconds` (medians and repeats), `accuracy` (%), `memory_mb` of each contender."""
    contenders = knn_contenders(sizes)
    memory_mb = {}
    for who in contenders:
        task = {"contender": who, "sizes": asdict(sizes)}
        memory_mb[who] = harness.child_numbers(measure_memory, task, f"{who} at knn")["memory_mb"]
    return _timed(contenders, repeats, sizes) | {"memory_mb": memory_mb}


def _knn_lines(result: Numbers, sizes: Sizes) -> list[str]:
    title = f"kNN, {sizes.queries:,} queries of {sizes.keys:,} x {sizes.dim}"
    goals = {f"raysl/{who}": 1.0 for who in result["seconds"] if who != "raysl"}
    return [title, *_contender_lines(result, goals)]


def _linear(sizes: Sizes, repeats: int) -> Numbers:
    """The numbers of `_knn`, without memory."""
    return _timed(linear_contenders(sizes), repeats, sizes)


def _linear_lines(result: Numbers, sizes: Sizes) -> list[str]:
    title = f"linear with 13 learning rates, {sizes.keys:,} x {sizes.dim}, {sizes.classes} classes"
    third = ("raysl/scikit-learn", "raysl, 3 epochs/scikit-learn", "raysl/scikit-learn, 13 C")
    return [title, *_contender_lines(result, {**dict.fromkeys(third, 1 / 3), "logistic/scikit-learn": 1.0})]


def _svm(sizes: Sizes, repeats: int) -> Numbers:
    """`seconds`, `repeats`, `num_cpus`, and `to_ideal`: how much of the cores' number it gains, by repeats."""
    contenders = svm_contenders(sizes)
    contenders["raysl"]()  # Ray starts its processes
    result, cpus = _timed(contenders, repeats), num_cpus()
    gains = [gain / cpus for gain in each_ratio(result["repeats"], "one core/raysl")]
    return result | {"num_cpus": cpus, "to_ideal": gains}


def _svm_lines(result: Numbers, sizes: Sizes) -> list[str]:
    title = f"svm, {sizes.svm_classes} classes x 11 costs x 3 parts of {sizes.svm_rows:,} x {sizes.svm_dim}"
    seconds = ", ".join(f"{who} {value:.1f} s" for who, value in result["seconds"].items())
    return [f"{title}: {seconds}", _share_line(f"of {result['num_cpus']} times as fast", result["to_ideal"])]


def _extraction(sizes: Sizes, repeats: int) -> Numbers:
    """Images a second of raysl and of the bare forward pass, `repeats` and medians; `to_forward`, by repeats."""
    with harness.scratch_folder() as folder:
        extraction = Extraction(sizes, folder)
        extraction.start()
        repeated = [extraction.rates() for _ in range(repeats)]
    return {
        "images_s": medians(repeated),
        "repeats": repeated,
        "to_forward": each_ratio(repeated, "raysl/forward"),
    }


def _extraction_lines(result: Numbers, sizes: Sizes) -> list[str]:
    rates = ", ".join(f"{who} {value:.1f}" for who, value in result["images_s"].items())
    return [
        f"extraction, ResNet-{sizes.depth}, JPEG to features on disk, images/s: {rates}",
        _share_line("of the bare forward pass", result["to_forward"]),
    ]


def _driver(sizes: Sizes, repeats: int) -> Numbers:
    """`most_mb` of the driver and `seconds`, by rows; `growth_mb`: from 10,000 rows to ImageNet's, by that line."""
    runs = {
        rows: harness.child_numbers(driver_memory, {"rows": rows, "width": sizes.width}, f"extraction of {rows:,} rows")
        for rows in (sizes.few_rows, sizes.rows)
    }
    few, many = runs[sizes.few_rows], runs[sizes.rows]
    slope = (many["most_mb"] - few["most_mb"]) / (sizes.rows - sizes.few_rows)
    names = ("most_mb", "before_mb", "seconds")
    result: Numbers = {name: {str(rows): run[name] for rows, run in runs.items()} for name in names}
    return result | {"growth_mb": slope * (IMAGENET - 10_000), "mb_a_million": slope * 1e6}


def _driver_lines(result: Numbers, sizes: Sizes) -> list[str]:
    memory = ", ".join(
        f"{most:,.0f} MB for {int(rows):,} rows ({result['seconds'][rows]:.0f} s)"
        for rows, most in result["most_mb"].items()
    )
    growth = result["growth_mb"]
    return [
        f"driver of an extraction, width {sizes.width:,}, by a stand-in network: {memory}",
        f"    {result['mb_a_million']:,.0f} MB a million rows; from 10,000 to {IMAGENET:,} {growth:,.0f} MB"
        f"  goal under {MOST_GROWTH_MB:,.0f} MB: {verdict(growth < MOST_GROWTH_MB)}",
    ]


CASES: dict[str, tuple[Callable[[Sizes, int], Numbers], Callable[[Numbers, Sizes], list[str]]]] = {
    "knn": (_knn, _knn_lines),
    "linear": (_linear, _linear_lines),
    "svm": (_svm, _svm_lines),
    "extraction": (_extraction, _extraction_lines),
    "driver": (_driver, _driver_lines),
}
"""Functions that measure with sizes and repeats, and that format the numbers."""


def _timed(contenders: Mapping[str, Callable[[], Any]], repeats: int, of_classes: Sizes | None = None) -> Numbers:
    """`seconds` and `cpu_seconds` (medians), `repeats`, `cpu_repeats`, and of classifiers `accuracy` in percent."""
    from threadpoolctl import threadpool_limits  # of scikit-learn

    answers = {}

    def seconds(who: str, repeat: int) -> tuple[float, float]:
        with threadpool_limits(torch.get_num_threads()):  # every library has as many threads as torch
            start, cpu_start = time.perf_counter(), time.process_time()
            answers[who] = contenders[who]()
            return time.perf_counter() - start, time.process_time() - cpu_start

    measured = harness.interleaved(contenders, repeats, seconds)
    wall, cpu = ([{who: pair[which] for who, pair in repeat.items()} for repeat in measured] for which in range(2))
    result: Numbers = {
        "seconds": medians(wall),
        "repeats": wall,
        "cpu_seconds": medians(cpu),
        "cpu_repeats": cpu,
    }
    if of_classes is not None:
        labels = random_features(of_classes)[1].labels
        result["accuracy"] = {who: 100 * float((answers[who] == labels).float().mean()) for who in contenders}
    return result


def _contender_lines(result: Numbers, goals: Mapping[str, float]) -> list[str]:
    lines = []
    for who, seconds in result["seconds"].items():
        parts = [f"{seconds:>8.2f} s", f"{result['cpu_seconds'][who]:>8.2f} CPU s"]
        parts.append(f"{result['accuracy'][who]:>6.2f} %")
        if "memory_mb" in result:
            parts.append(f"{result['memory_mb'][who]:>7,.0f} MB")
        lines.append(f"    {who:<20}{'  '.join(parts)}")
    for name, goal in goals.items():
        each, cpu = each_ratio(result["repeats"], name), median(each_ratio(result["cpu_repeats"], name))
        spans = f"({min(each):.2f} to {max(each):.2f}; of CPU seconds {cpu:.2f})"
        value = median(each)
        lines.append(f"    {name} {value:.2f} {spans}  goal at most {goal:.2f}: {verdict(value <= goal)}")
    return lines


def _share_line(title: str, shares: Sequence[float], goal: float = 0.9) -> str:
    middle = median(shares)
    return f"    {middle:.2f} {span(shares)} {title}  goal at least {goal:.2f}: {verdict(middle >= goal)}"
