"""VISSL's configurations as settings of raysl. Facts are of VISSL at commit 09270ed."""

from collections.abc import Mapping
from typing import Any

from raysl.config.layers import merge
from raysl.errors import ConfigError
from raysl.translation.course import Batch
from raysl.translation.translated import Translation
from raysl.translation.vissl_data import translate_data
from raysl.translation.vissl_defaults import DEFAULTS
from raysl.translation.vissl_linear import command_of, translate_linear
from raysl.translation.vissl_methods import translate_method
from raysl.translation.vissl_model import translate_model
from raysl.translation.vissl_optim import translate_optimizer
from raysl.translation.vissl_settings import VisslSettings, location
from raysl.translation.vissl_views import Views, fields_of_views

UNUSED = (
    "VERBOSE TEST_ONLY MULTI_PROCESSING_METHOD MONITOR_PERF_STATS ROLLING_BTIME_FREQ PERF_STAT_FREQUENCY HOOKS "
    "MONITORING PROFILING TRAINER METERS TENSORBOARD_SETUP SLURM VERSION CHECKPOINT.AUTO_RESUME CHECKPOINT.BACKEND "
    "CHECKPOINT.APPEND_DISTR_RUN_ID CHECKPOINT.LATEST_CHECKPOINT_RESUME_FILE_NUM CHECKPOINT.OVERWRITE_EXISTING "
    "CHECKPOINT.USE_SYMLINK_CHECKPOINT_FOR_RESUME DISTRIBUTED.BACKEND DISTRIBUTED.RUN_ID DISTRIBUTED.INIT_METHOD "
    "DISTRIBUTED.NCCL_DEBUG DISTRIBUTED.NCCL_SOCKET_NTHREADS DISTRIBUTED.BROADCAST_BUFFERS DISTRIBUTED.SLURM_ENV "
    "DISTRIBUTED.MANUAL_GRADIENT_REDUCTION"
)
"""Keys of what raysl does by itself."""


def translate(tree: Mapping[str, Any], name: str, chosen: Mapping[str, Any]) -> Translation:
    """Translate a configuration of VISSL.

    Args:
        chosen: raysl's settings that the user gives beside it, by dotted key.
    """
    settings = _in_one_layout(tree)
    vissl = VisslSettings(settings, DEFAULTS)
    out = Translation(vissl, name)
    # known from the start: a backbone that the user gives is not translated
    out.settings |= chosen
    batch = Batch(
        vissl.whole("DATA.TRAIN.BATCHSIZE_PER_REPLICA"),
        vissl.whole("DISTRIBUTED.NUM_NODES"),
        vissl.whole("DISTRIBUTED.NUM_PROC_PER_NODE"),
    )
    if batch.size < 1:
        raise ConfigError(f"DATA.TRAIN.BATCHSIZE_PER_REPLICA: {batch.per_worker} of {batch.workers} make no batch")
    translate_method(out, batch.size)
    translate_model(out, batch)
    translate_data(out, batch)
    Views(out, fields_of_views(out.settings["method.name"])).translate()
    _evaluation(out)
    translate_optimizer(out, batch)
    translate_linear(out)
    _run(out)
    # once more, as the translations have written over what the user gave
    out.choose(chosen)
    if "method.heads" in out.settings:
        out.commands.append(command_of(out))
    out.finish()
    return out


def without_root(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings below `config:`, where most files of VISSL have them; others stay."""
    inner = tree.get("config")
    return dict(inner) if isinstance(inner, Mapping) else dict(tree)


def _in_one_layout(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings as newer versions write them, without `TRUNK_PARAMS:`."""
    settings = dict(tree)
    if "CRITERION" in settings:
        raise ConfigError("CRITERION: this is the layout of VISSL before its first release; rename it LOSS, as now")
    if not isinstance(settings.get("LOSS"), Mapping) or "name" not in settings["LOSS"]:
        raise ConfigError(
            "no LOSS.name: this is no configuration of a training of VISSL; give the whole file. The settings of "
            "lightly and solo-learn are in docs/coming-from-lightly-or-solo-learn.md"
        )
    model = settings.get("MODEL")
    trunk = model.get("TRUNK") if isinstance(model, Mapping) else None
    if isinstance(model, Mapping) and isinstance(trunk, Mapping) and isinstance(trunk.get("TRUNK_PARAMS"), Mapping):
        flat = merge(trunk["TRUNK_PARAMS"], {key: value for key, value in trunk.items() if key != "TRUNK_PARAMS"})
        settings["MODEL"] = {**model, "TRUNK": flat}
    return settings


def _evaluation(out: Translation) -> None:
    """The transforms of test images: a resize, a crop of the middle."""
    key = "DATA.TEST.TRANSFORMS"
    for number, item in enumerate(out.vissl.items(key)):
        node = item if isinstance(item, Mapping) else {}
        name, size = node.get("name"), node.get("size")
        if name == "Resize" and isinstance(size, int):
            out.maps(f"{key}[{number}]", {"data.eval_resize": size}, value="Resize")
        elif name == "CenterCrop" and isinstance(size, int):
            out.maps(f"{key}[{number}]", {"data.image_size": size}, value="CenterCrop")
        elif name in ("ToTensor", "Normalize", "ImgRotatePil"):
            out.drops(f"{key}[{number}]", value=name)


def _run(out: Translation) -> None:
    """Seed, device, checkpoints, logs."""
    vissl = out.vissl
    out.same("SEED_VALUE", seed=vissl.whole("SEED_VALUE"))
    out.same("LOG_FREQUENCY", train__log_every=f"{max(1, vissl.whole('LOG_FREQUENCY'))}st")
    device = {"gpu": "auto", "cpu": "cpu"}.get(vissl.text("MACHINE.DEVICE"), "auto")
    out.same("MACHINE.DEVICE", train__device=device)
    if vissl.any("REPRODUCIBILITY.CUDDN_DETERMINISTIC"):
        out.same("REPRODUCIBILITY.CUDDN_DETERMINISTIC", train__deterministic=True)
    else:
        out.drops("REPRODUCIBILITY")
    folder = location(vissl.text("CHECKPOINT.DIR"))
    if folder is not None and folder != ".":
        out.same("CHECKPOINT.DIR", "a run lies in a folder of its name below it", storage=folder)
    elif folder == ".":
        out.drops("CHECKPOINT.DIR")
    if vissl.whole("CHECKPOINT.CHECKPOINT_ITER_FREQUENCY") > 0:
        every = f"{vissl.whole('CHECKPOINT.CHECKPOINT_ITER_FREQUENCY')}st"
        out.same("CHECKPOINT.CHECKPOINT_ITER_FREQUENCY", train__checkpoint_every=every)
    else:
        every = f"{max(1, vissl.whole('CHECKPOINT.CHECKPOINT_FREQUENCY'))}ep"
        out.same("CHECKPOINT.CHECKPOINT_FREQUENCY", train__checkpoint_every=every)
        out.drops("CHECKPOINT.CHECKPOINT_ITER_FREQUENCY")
    if out.settings["method.name"] in ("supervised", "rotnet") and vissl.any("TEST_MODEL"):
        out.same("TEST_EVERY_NUM_EPOCH", train__eval_every=f"{max(1, vissl.whole('TEST_EVERY_NUM_EPOCH'))}ep")
        out.drops("TEST_MODEL")
    else:
        out.drops("TEST_MODEL TEST_EVERY_NUM_EPOCH")
    out.drops(UNUSED)
