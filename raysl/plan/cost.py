"""What a run takes on GPUs of a kind: memory, time and cores, from the counts of a step."""

import math
from dataclasses import asdict, dataclass
from typing import Any

from raysl.config.schema import TrainConfig
from raysl.plan.cards import Card
from raysl.plan.plan import TrainPlan

UTILISATION = 0.5
"""Share of a card's peak FLOP/s that products reach."""
BANDWIDTH = 0.8
"""Share of a card's peak bytes/s that other operations reach."""
BATCHES = 3
"""Batches on a GPU: the step's, and two that are made ahead."""
RESERVED = 2e9
"""Bytes of a GPU for the driver, cuDNN, cuBLAS and NCCL."""
FRAGMENTS = 1.05
"""What the allocator holds beside what is in use."""
CORE_PIXELS = 70e6
"""Pixels of views a second that a core reads, decodes and crops where the GPU augments (docs/speed.md, 224 px)."""
MARGIN = 1.2
"""More cores than the bound needs."""

Units = tuple[tuple[float, str], ...]
BYTES: Units = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "bytes"))
FLOPS: Units = ((1e12, "TFLOP"), (1e9, "GFLOP"), (1e6, "MFLOP"), (1.0, "FLOP"))
TIMES: Units = ((3600.0, "hours"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"), (1e-6, "us"))


@dataclass(frozen=True)
class Counts:
    """Counts of a step of one rank, without what several ranks share.

    Args:
        rows: images of the rank.
        pixels: number of pixels of all views of an image.
        peak: bytes in memory by part, at the moment of the most.
        gradients: bytes of all gradients.
        largest_unit: bytes of the weights of the largest part of the backbone that FSDP puts together.
        work: costs of each operation: FLOPs, bytes, and whether its products are of half precision.
        exchanged: bytes that the method sends or receives, without gradients.
        collectives: calls in which the method exchanges them.
    """

    rows: int
    pixels: int
    peak: dict[str, int]
    gradients: int
    largest_unit: int
    work: list[tuple[int, int, bool]]
    exchanged: int
    collectives: int


@dataclass(frozen=True)
class Cost:
    """What a run takes on GPUs of a kind.

    Args:
        memory: bytes of a GPU by part.
        flops, moved, exchanged: amounts of a step of one GPU: FLOPs, bytes read and written, bytes exchanged.
        collectives: exchanges of a step, without those of gradients.
        flops_s, moved_s, bound_s: seconds of a step, by products alone, by bytes alone, and by whichever is longer
            for each operation.
        images_per_s: bound for all GPUs.
        cores: CPU cores that feed it.
        hours, gpu_hours: durations of the run at that bound.
        warnings: problems, with what to change.
        assumptions: premises of the numbers.
    """

    gpu: str
    memory: dict[str, float]
    memory_of_gpu: float
    flops: float
    moved: float
    exchanged: float
    collectives: int
    flops_s: float
    moved_s: float
    bound_s: float
    images_per_s: float
    cores: int
    hours: float
    gpu_hours: float
    warnings: list[str]
    assumptions: list[str]

    @classmethod
    def of(cls, counts: Counts, card: Card, plan: TrainPlan, train: TrainConfig) -> "Cost":
        """Return the cost of a run with a plan on cards of a kind."""
        single = card.tf32 if train.fp32_products == "tf32" else card.single
        peaks = [(card.half if is_half else single) * UTILISATION for _, _, is_half in counts.work]
        products = [flops / peak for (flops, _, _), peak in zip(counts.work, peaks, strict=True)]
        moves = [moved / (card.bandwidth * BANDWIDTH) for _, moved, _ in counts.work]
        # roofline model: an operation takes as long as its products or its bytes, whichever is longer
        bound = sum(map(max, products, moves))
        rate, hours = plan.batch_size / bound, plan.total_steps * bound / 3600
        memory = _memory(counts, plan.world, train)
        is_shared = plan.world > 1 and train.parallel != "fsdp"
        return cls(
            gpu=card.name,
            memory=memory,
            memory_of_gpu=card.memory,
            flops=sum(flops for flops, _, _ in counts.work),
            moved=sum(moved for _, moved, _ in counts.work),
            exchanged=counts.exchanged + (counts.gradients if plan.world > 1 else 0),
            collectives=counts.collectives,
            flops_s=sum(products),
            moved_s=sum(moves),
            bound_s=bound,
            images_per_s=rate,
            cores=math.ceil(MARGIN * rate * counts.pixels / CORE_PIXELS),
            hours=hours,
            gpu_hours=hours * plan.world,
            warnings=_warnings(memory, card, train, is_shared),
            assumptions=_assumptions(card, train, plan),
        )

    def lines(self) -> list[str]:
        """Return the numbers as sentences."""
        total = sum(self.memory.values())
        parts = [f"{name} {in_unit(size, BYTES)}" for name, size in self.memory.items() if size >= 1e3]
        return [
            f"memory      {total / 1e9:.1f} of {self.memory_of_gpu / 1e9:.1f} GB of each {self.gpu}: "
            f"{', '.join(parts)}",
            f"step        {in_unit(self.flops, FLOPS)}, {in_unit(self.moved, BYTES)} read and written, "
            f"{in_unit(self.exchanged, BYTES)} exchanged ({self.collectives} collectives beside the gradients'), "
            "by each GPU",
            f"bound       {self.images_per_s:,.0f} images/s on all GPUs: "
            f"a step of {in_unit(self.bound_s, TIMES)} or more "
            f"(products alone {in_unit(self.flops_s, TIMES)}, bytes alone {in_unit(self.moved_s, TIMES)})",
            f"CPU cores   {self.cores:,} to feed all GPUs at that bound",
            f"run         {in_unit(3600 * self.hours, TIMES)} or more on the clock, "
            f"{in_unit(3600 * self.gpu_hours, TIMES)} of GPUs",
            *(f"{'' if n else 'assumed':<12}{text}" for n, text in enumerate(self.assumptions)),
            *(f"warning     {text}" for text in self.warnings),
        ]

    def as_dict(self) -> dict[str, Any]:
        """Return the numbers under their names, for JSON."""
        return asdict(self) | {"memory_total": sum(self.memory.values())}


def in_unit(value: float, units: Units) -> str:
    """Return a number in the largest of some units of which it holds one, with three digits.

    >>> in_unit(0.00042, TIMES), in_unit(2.5e6, BYTES), in_unit(4_680_000, TIMES), in_unit(0, BYTES)
    ('420 us', '2.5 MB', '1,300 hours', '0 bytes')
    """
    size, name = next((unit for unit in units if value >= unit[0]), units[-1])
    number = value / size
    return f"{number:,.0f} {name}" if number >= 100 else f"{number:.3g} {name}"


def _memory(counts: Counts, world: int, train: TrainConfig) -> dict[str, float]:
    """Return bytes by part; what ranks share is calculated from what one would hold alone."""
    memory: dict[str, float] = {name: float(size) for name, size in counts.peak.items()}
    memory["batch"] = memory.get("batch", 0.0) * BATCHES
    if world > 1 and train.parallel == "fsdp":
        for name in ("weights", "gradients", "optimizer", "teachers, queues, banks"):
            memory[name] = memory.get(name, 0.0) / world
        # the part that computes and the next one are put together, each with its gradients
        memory["FSDP's whole parts"] = 4.0 * counts.largest_unit
    elif world > 1:
        memory["gradients"] = float(counts.gradients)  # views of DDP's buckets, which are there all the time
        if train.parallel == "zero1":
            memory["optimizer"] = memory.get("optimizer", 0.0) / world
    used = sum(memory.values())
    memory["allocator"] = used * (FRAGMENTS - 1)
    memory["libraries"] = RESERVED
    return memory


def _warnings(memory: dict[str, float], card: Card, train: TrainConfig, is_shared: bool) -> list[str]:
    total = sum(memory.values())
    if total <= card.memory:
        return []
    ways = [f"train.accumulate={2 * train.accumulate}"]
    if not train.recompute:
        ways.append("train.recompute=all")
    if is_shared:
        ways.append("train.parallel=fsdp")
    ways.append("a smaller train.batch_size or more train.workers")
    return [
        f"{total / 1e9:.1f} GB do not fit into the {card.memory / 1e9:.1f} GB of a {card.name}; "
        f"try {', '.join(ways[:-1])}, or {ways[-1]}"
    ]


def _assumptions(card: Card, train: TrainConfig, plan: TrainPlan) -> list[str]:
    kind = (
        f"{card.half / 1e12:.0f} TFLOP/s in bf16" if plan.precision != "fp32" else f"{card.single / 1e12:.0f} in fp32"
    )
    lines = [
        f"products reach {UTILISATION:.0%} of {kind}, other operations {BANDWIDTH:.0%} of "
        f"{card.bandwidth / 1e12:.2f} TB/s",
        "no operation is fused with another; the exchange between GPUs and views that the GPU augments take no time",
        f"libraries take {RESERVED / 1e9:.0f} GB of a GPU, and its allocator {FRAGMENTS - 1:.0%} more than is in use; "
        f"{BATCHES} batches lie there",
        f"a core reads, decodes and crops {CORE_PIXELS / 1e6:.0f} million pixels of views a second "
        "(measure with python -m perf cores)",
    ]
    if train.compile:
        lines.append("train.compile is not counted")
    if plan.world > 1 and train.parallel != "ddp":
        lines.append(f"shares of train.parallel={train.parallel} are calculated, and even")
    return lines
