"""The core runs where only torch and a few small packages are installed: no Ray, no numba, nothing of a cluster."""

import re
import subprocess
import sys

import pytest

REFUSE = """
import sys
for name in ("ray", "numba", "lightly", "faiss", "tensorboardX", "smart_open", "matplotlib", "psutil"):
    assert name not in sys.modules
    sys.modules[name] = None  # importing it, or a part of it, is a ModuleNotFoundError
"""
TRAIN = """
import torch
torch.set_num_threads(1)
import raysl, raysl.methods, raysl.losses, raysl.transforms, raysl.nn
from raysl.plan.setup import Setup
from raysl.benchmarks.benchmark import FeatureSet
from raysl.benchmarks.knn import KNN
from raysl.checkpoint.backbone import load_backbone
from raysl.train.state import TrainState
from raysl.components import ALIASES, resolve
from raysl.data.stream.loader import Loader, LocalBatches
from raysl.data.order import Order
from raysl.train import LocalReporter, TrainPlan, fit
from raysl.transforms.view_recipe import evaluation_recipe

for slot, names in ALIASES.items():
    for name in names:
        resolve(slot, name)
small = ["backbone.num_stages=2", "backbone.width=8", "method.hidden_dim=32", "method.views.jitter_p=0.8"]
config = raysl.load_config("quickstart", [*small, "method.views.blur_p=0.5", "train.epochs=1", "data.limit=320"])
source = resolve("source", config.data.name)(config.data)
train, test = source.required("train"), source.required("test")
size = config.data.image_size
plan = TrainPlan.from_config(config, train.num_samples)
order = Order(0, train.fingerprint, train.unit_sizes, plan.batch_size, plan.lanes, 64, True)
loader = Loader(
    train, config.method.views.recipe(), order, config.data.mean, config.data.std, True, evaluation_recipe(size)
)
state = TrainState.create(Setup.of(config, train.num_samples, 10))
metrics = fit(state, state.method, plan, LocalBatches(loader), reporter=LocalReporter("run"))
backbone = load_backbone("run")

@torch.no_grad()
def features(split):
    batches = list(loader.plain_batches(split, 0, split.num_samples, torch.device("cpu")))
    vectors = [backbone(batch.views["image"][:, 0]) for batch in batches]
    return FeatureSet(torch.cat(vectors), torch.cat([batch.label for batch in batches]))

found = KNN(KNN.Config()).run(features(train), features(test), 10, seed=0).metrics
print(f"steps {state.step} loss {metrics['loss']:.3f} {found[0].name} {found[0].value:.1f}")
"""


def run_child(code: str, *arguments: str, cwd: object = None) -> str:
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.cluster
def test_a_run_is_trained_saved_and_measured(tmp_path) -> None:
    said = run_child(REFUSE + TRAIN, cwd=tmp_path)
    found = re.fullmatch(r"steps (\d+) loss (\d\.\d+) k20/top1 (\d+\.\d)\n", said)
    assert found is not None, said
    assert int(found[1]) == 5
    assert float(found[3]) > 50


@pytest.mark.cluster
def test_the_command_line_has_its_help_and_its_settings() -> None:
    main = REFUSE + "from raysl.cli import main\nmain()"
    assert "pretrain" in run_child(main, "--help")
    assert "temperature" in run_child(main, "config", "simclr")
    assert "simclr" in run_child(main, "list", "methods")
    perf = REFUSE + "from perf.cli import app\nfrom raysl.cli import run_app\nrun_app(app, 'perf')"
    assert "--repeats" in run_child(perf, "step", "--help")
