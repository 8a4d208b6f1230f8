"""What a probe says of held-out images: each once, in order, at any number of ranks, as predictions see them."""

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from raysl import Predictor
from raysl import distributed as dist
from raysl.benchmarks.linear_augmented import LinearAugmented
from raysl.benchmarks.training_runs import held_out_scores
from raysl.benchmarks.training_runs.run import training_run
from raysl.checkpoint.checkpoint_folder import checkpoint_names
from raysl.config.schema import RunConfig
from raysl.data.stream.loader import LocalBatches
from raysl.nn.classifiers import StageHead
from raysl.schedule import Duration
from raysl.storage.folder import Folder
from raysl.train import LocalReporter, TrainPlan, fit
from raysl.train.prepare import prepare
from raysl.train.state import TrainState
from tests.benchmarks.trainings import DIGITS, NUM, checkpoint, context_of, shades
from tests.rank_processes import RunRanks


def run_in(folder: Path) -> RunConfig:
    """A training of six updates, three an epoch."""
    uri = checkpoint(folder, *DIGITS)
    config = LinearAugmented.Config(epochs=2, batch_size=20, eval_every=Duration.parse("4st"))
    return training_run(context_of(uri, folder), config, freeze=True, heads=(StageHead(stage="res2"),))


def trained(config: RunConfig, folder: str) -> dict[str, Tensor]:
    """What the last checkpoint has of the held-out images, on the ranks that are there."""
    run = prepare(config)
    plan = TrainPlan.from_config(run.config, NUM, dist.world())
    state = TrainState.create(replace(run.setup, plan=plan), classes=run.classes)
    batches, reporter = LocalBatches(run.loader, dist.rank(), dist.world()), LocalReporter(folder)
    model = dist.data_parallel(state.method)
    with patch.object(held_out_scores, "CHUNK_ROWS", 7):
        logged = fit(state, model, plan, batches, callbacks=run.callbacks, reporter=reporter)
    name = checkpoint_names(Folder(folder))[-1]
    found = load_file(Path(folder, name, held_out_scores.FILE))
    return found | {key: torch.tensor(value) for key, value in logged.items() if key.startswith("test_")}


def test_every_image_counts_once_at_any_number_of_ranks(tmp_path: Path, run_ranks: RunRanks) -> None:
    config = run_in(tmp_path)
    alone = trained(config, str(tmp_path / "one"))
    for other in run_ranks(3, trained, config, str(tmp_path / "three")):
        assert torch.equal(other["labels"], alone["labels"])
        torch.testing.assert_close(other["scores"], alone["scores"])
        assert torch.equal(other["top1"], alone["top1"])
        assert torch.equal(other["top5"], alone["top5"])
        assert (other["test_top1"], other["test_head1_top1"]) == (alone["test_top1"], alone["test_head1_top1"])


@pytest.mark.thorough
def test_it_keeps_what_a_prediction_would_say_and_counts_it(tmp_path: Path) -> None:
    config: Any = run_in(tmp_path)
    found = trained(config, str(tmp_path / "one"))
    test = context_of(str(tmp_path / "run"), tmp_path).images["test"]
    rows = test.read(np.arange(NUM))
    assert torch.equal(found["labels"], torch.from_numpy(rows.labels))
    (last,) = [name for name in checkpoint_names(Folder(str(tmp_path / "one"))) if name.endswith("6")]
    predictor = Predictor(str(tmp_path / "one" / last))
    probabilities = predictor.probabilities(list(rows.images))
    torch.testing.assert_close(found["scores"].softmax(dim=1), probabilities, rtol=1e-4, atol=1e-5)
    for row, label in enumerate(rows.labels.tolist()):
        ranked = sorted(range(10), key=lambda place: -float(found["scores"][row, place]))
        assert found["top1"][0, row] == (ranked[0] == label)
        assert found["top5"][0, row] == (label in ranked[:5])
    assert found["test_top1"].item() == pytest.approx(100 * found["top1"][0].double().mean().item(), rel=1e-6)
    assert found["test_head1_top1"].item() == pytest.approx(100 * found["top1"][1].double().mean().item(), rel=1e-6)


@pytest.mark.thorough
def test_training_goes_on_as_if_nobody_had_looked(tmp_path: Path) -> None:
    config = run_in(tmp_path)
    often = replace(config.callbacks["held_out"], every=Duration.parse("1st"))
    seldom = trained(config, str(tmp_path / "seldom"))
    watched = trained(replace(config, callbacks={"held_out": often}), str(tmp_path / "often"))
    assert torch.equal(seldom["scores"], watched["scores"])


@pytest.mark.thorough
def test_broken_test_images_are_told_of(tmp_path: Path) -> None:
    words = shades(tmp_path)
    (tmp_path / "shades" / "val" / "dim" / "2.png").write_bytes(b"no image")
    context = context_of(checkpoint(tmp_path, *words), tmp_path)
    config = training_run(context, LinearAugmented.Config(epochs=1, batch_size=24), freeze=True)
    run = prepare(config)
    state = TrainState.create(run.setup, classes=run.classes)
    stream, reporter = LocalBatches(run.loader), LocalReporter(tmp_path / "one")
    fit(state, state.method, run.setup.plan, stream, callbacks=run.callbacks, reporter=reporter)
    (event,) = (tmp_path / "one" / "events.jsonl").read_text().splitlines()
    assert "1 test image is broken, neighbours were measured: " in event
    assert "dim/2.png" in event
