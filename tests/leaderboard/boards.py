"""Sweeps that never ran, of every kind that a leaderboard has to show."""

import math
import random
from collections.abc import Sequence
from dataclasses import replace

from raysl.leaderboard.entry import Entry, Objective, State, SweepFacts
from raysl.leaderboard.leaderboard import Leaderboard

START = 1_700_000_000.0
KNN, LOSS = Objective("knn_k20_top1"), Objective("loss", "min")


def entry(index: int, value: float | None = None, **changes: object) -> Entry:
    """A finished run of four epochs and of a seed of its own; without a value one that waits."""
    fields: dict[str, object] = {"trial": f"trial_{index:08x}", "index": index, "settings": {"optim.lr": 0.1 + index}}
    fields |= {"path": f"/runs/s/trial_{index:08x}", "epochs": 4, "seed": index}
    if value is not None:
        fields |= {"status": "finished", "epoch": 4.0, "metrics": {"knn_k20_top1": value}}
    return Entry(**fields | changes)  # type: ignore[arg-type]


def board(entries: Sequence[Entry], *objectives: Objective, **changes: object) -> Leaderboard:
    """Of a sweep called s, by the online kNN unless told otherwise."""
    facts = SweepFacts("s", objectives or (KNN,), path="/runs/s", state="done", written=START)
    return Leaderboard(entries, replace(facts, **changes))  # type: ignore[arg-type]


def course(
    draws: random.Random, last: float, epochs: float, every: float = 0.5
) -> dict[str, list[tuple[float, float]]]:
    """What a run logs that ends at an accuracy of `last` percent after 60 epochs."""
    places = [every * (turn + 1) for turn in range(int(epochs / every))]
    rise = draws.uniform(6, 16)
    loss = [(at, 4.5 * math.exp(-at / 25) + 1.2 - last / 120 + draws.gauss(0, 0.05)) for at in places]
    knn = [(at, 12 + (last - 12) * (1 - math.exp(-at / rise)) + draws.gauss(0, 0.5)) for at in places if at % 2 == 0]
    rank = [(at, 4 + last / 8 * (1 - math.exp(-at / 20)) + draws.gauss(0, 0.3)) for at in places]
    return {"loss": loss, "knn_k20_top1": knn, "effective_rank": rank, "seconds": [(at, 3.1 * at) for at in places]}


def asha(num: int = 12, state: State = "done") -> Leaderboard:
    """A search over a learning rate, a temperature and a kind of schedule; most trials are stopped early."""
    draws = random.Random(0)
    entries = []
    for index in range(num):
        lr, temperature = 10 ** draws.uniform(-3, 0.5), draws.uniform(0.05, 0.6)
        kind = draws.choice(["cosine", "linear", "constant"])
        last = max(14.0, 94 - 14 * (math.log10(lr) + 0.9) ** 2 - 40 * (temperature - 0.2) ** 2 + draws.gauss(0, 1.5))
        epoch = 60.0 if last > 88 else 20.0 if last > 80 else 6.0
        status = "finished" if epoch == 60 else "stopped"
        reason = "" if epoch == 60 else f"behind the others at epoch {epoch:.0f}"
        if index == num - 2:
            status, epoch, reason = (
                "failed",
                8.0,
                "the loss is not finite at step 176; the last good checkpoint is kept",
            )
        if state == "running" and index == num - 1:
            status, epoch, reason = "running", 14.0, ""
        logged = course(draws, last, epoch)
        metrics = {name: line[-1][1] for name, line in logged.items() if name != "seconds"}
        if status == "finished":
            metrics |= {"knn/k20/top1": metrics["knn_k20_top1"] - 0.4, "knn/k20/top1/untrained": 41.0}
        entries.append(
            Entry(
                trial=f"trial_{draws.getrandbits(32):08x}",
                index=index,
                status=status,  # type: ignore[arg-type]
                settings={"optim.lr": lr, "method.temperature": temperature, "optim.schedule": kind},
                epochs=60,
                epoch=epoch,
                metrics=metrics,
                course=logged,
                costs={"seconds": 3.1 * epoch + 20, "step_s": 0.14, "memory_gb": 1.44},
                reason=reason,
                path="/runs/quickstart",
                started=START + 60 * index,
                ended=START + 60 * index + 3.1 * epoch,
            )
        )
    return Leaderboard(
        _beneath(entries), _facts("quickstart", KNN, search="random", scheduler="asha", trials=num, state=state)
    )


def _beneath(entries: Sequence[Entry]) -> list[Entry]:
    """Runs in folders of their names."""
    return [replace(entry, path=f"{entry.path}/{entry.trial}") for entry in entries]


def _facts(name: str, *objectives: Objective, **changes: object) -> SweepFacts:
    facts = SweepFacts(name, objectives, f"/runs/{name}", f"raysl sweep sweep/{name} trials=12", written=START + 9000)
    return replace(facts, **{"state": "done", **changes})  # type: ignore[arg-type]


METHODS = (
    *("barlow_twins", "byol", "clusterfit", "deepcluster_v2", "densecl", "dino", "dinov2", "ibot", "ijepa", "jigsaw"),
    *("mae", "mmcr", "moco", "moco_v3", "msn", "mugs", "nnclr", "npid", "npid_plus", "pirl", "pmsn", "ressl"),
    *("rotnet", "sela", "simclr", "simmim", "simsiam", "sinkhorn", "smog", "supcon", "supervised", "swav"),
    *("swav_momentum", "tico", "twist", "unigrad", "vicreg", "vicregl", "w_mse", "zero_cl"),
)


def zoo(methods: Sequence[str] = METHODS, seeds: int = 2) -> Leaderboard:
    """Every method with each seed, measured by kNN, few labels and the geometry of its features."""
    draws = random.Random(1)
    entries = []
    for place, name in enumerate(methods):
        level, hours, speed = draws.uniform(45, 96), draws.uniform(0.02, 0.2), draws.uniform(0.2, 1.4)
        for seed in range(seeds):
            last = level + draws.gauss(0, 0.6)
            rank = 4 + 40 * (level - 40) / 60 + draws.gauss(0, 4)
            metrics = {"low_shot/5_shot": last - 6, "low_shot/5_shot/untrained": 41.0, "knn/k20/top1": last}
            metrics |= {"geometry/rankme": rank, "geometry/alpha_req": 2.4 - rank / 30 + draws.gauss(0, 0.1)}
            logged = course(draws, last, 60)
            metrics |= {key: line[-1][1] for key, line in logged.items() if key != "seconds"}
            index = place * seeds + seed
            is_failed = name == "sinkhorn" and seed == 1
            entries.append(
                Entry(
                    trial=f"trial_{draws.getrandbits(32):08x}",
                    index=index,
                    status="failed" if is_failed else "finished",
                    config=f"digits/{name}",
                    seed=seed,
                    epochs=60,
                    epoch=60.0,
                    metrics={} if is_failed else metrics,
                    intervals={"low_shot/5_shot": (last - 7.2, last - 4.9), "knn/k20/top1": (last - 1.4, last + 1.3)},
                    units={
                        "low_shot/5_shot": "%",
                        "knn/k20/top1": "%",
                        "geometry/rankme": "",
                        "geometry/alpha_req": "",
                    },
                    course={} if is_failed else logged,
                    costs={
                        "seconds": 3600 * hours,
                        "gpu_hours": hours,
                        "step_s": 0.02 + hours * speed,
                        "memory_gb": 1.1 + hours,
                    },
                    reason="RuntimeError: singular matrix" if is_failed else "",
                    path="/runs/digits_zoo",
                    started=START + 200 * index,
                    ended=START + 200 * index + 3600 * hours,
                )
            )
    objectives = (Objective("low_shot/5_shot"), Objective("step_s", "min"))
    return Leaderboard(_beneath(entries), _facts("digits_zoo", *objectives, search="grid", trials=len(entries)))


def population(members: int = 6, generations: int = 5) -> Leaderboard:
    """A population whose two worst go on, at each generation, from the weights of the two best."""
    draws = random.Random(2)
    every, index = 4.0, 0
    entries: list[Entry] = []
    alive: list[Entry] = []
    for generation in range(generations):
        told: list[Entry] = []
        for member in range(members):
            before = alive[member] if alive else None
            ordered = sorted(alive, key=lambda one: -one.metrics["knn_k20_top1"])
            donor = ordered[draws.randrange(2)] if before in ordered[-2:] else before
            lr = donor.settings["optim.lr"] * draws.choice([0.8, 1.25]) if donor else 10 ** draws.uniform(-2.5, 0)
            level = donor.metrics["knn_k20_top1"] if donor else 30.0
            last = level + 14 * math.exp(-(((math.log10(lr) + 0.8) / 0.8) ** 2)) + draws.gauss(0, 1)
            line = [(generation * every + 2, (level + last) / 2), ((generation + 1) * every, last)]
            past = donor.course["knn_k20_top1"] if donor else []
            told.append(
                Entry(
                    trial=f"trial_{draws.getrandbits(32):08x}",
                    index=index,
                    status="finished" if generation == generations - 1 else "stopped",
                    settings={"optim.lr": lr, "optim.weight_decay": 10 ** draws.uniform(-5, -3)},
                    epochs=int(generations * every),
                    epoch=(generation + 1) * every,
                    metrics={"knn_k20_top1": last, "loss": 5 - last / 25},
                    course={
                        "knn_k20_top1": [*past, *line],
                        "loss": [(at, 5 - value / 25) for at, value in [*past, *line]],
                    },
                    costs={"seconds": 40.0 * (generation + 1)},
                    parents=[(donor.trial, generation * every), *donor.parents] if donor else [],
                    path="/runs/population",
                    started=START + 100 * index,
                    ended=START + 100 * index + 40,
                )
            )
            index += 1
        entries, alive = entries + told, told
    return Leaderboard(_beneath(entries), _facts("population", KNN, search="population", trials=len(entries)))


def single() -> Leaderboard:
    """One trial."""
    return asha(1)
