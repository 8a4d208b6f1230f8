"""VISSL's configurations as settings of raysl. Facts are of VISSL at commit 09270ed."""

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from raysl.config.config_files import read_dotlist
from raysl.config.dump import leaves
from raysl.config.layers import merge, parse_overrides
from raysl.errors import ConfigError
from raysl.translation.course import Batch
from raysl.translation.translated import Translation
from raysl.translation.vissl_data import translate_data
from raysl.translation.vissl_linear import command_of, translate_linear
from raysl.translation.vissl_methods import translate_method
from raysl.translation.vissl_model import translate_model
from raysl.translation.vissl_optim import translate_optimizer
from raysl.translation.vissl_settings import VisslSettings, location, read_tree
from raysl.translation.vissl_views import Views, fields_of_views

UNUSED = (
    "VERBOSE TEST_ONLY MULTI_PROCESSING_METHOD MONITOR_PERF_STATS ROLLING_BTIME_FREQ PERF_STAT_FREQUENCY HOOKS "
    "MONITORING PROFILING TRAINER METERS TENSORBOARD_SETUP SLURM VERSION CHECKPOINT.AUTO_RESUME CHECKPOINT.BACKEND "
    "CHECKPOINT.APPEND_DISTR_RUN_ID CHECKPOINT.LATEST_CHECKPOINT_RESUME_FILE_NUM CHECKPOINT.OVERWRITE_EXISTING "
    "CHECKPOINT.USE_SYMLINK_CHECKPOINT_FOR_RESUME DISTRIBUTED.BACKEND DISTRIBUTED.RUN_ID DISTRIBUTED.INIT_METHOD "
    "DISTRIBUTED.NCCL_DEBUG DISTRIBUTED.NCCL_SOCKET_NTHREADS DISTRIBUTED.BROADCAST_BUFFERS DISTRIBUTED.SLURM_ENV "
    "DISTRIBUTED.MANUAL_GRADIENT_REDUCTION DATA.NUM_DATALOADER_WORKERS DATA.PIN_MEMORY DATA.ENABLE_ASYNC_GPU_COPY "
    "MACHINE.NUM_DATALOADER_WORKERS DATA.TEST.DATA_SOURCES DATA.TEST.LABEL_SOURCES DATA.TEST.DATASET_NAMES "
    "DATA.TEST.BATCHSIZE_PER_REPLICA DATA.TEST.DROP_LAST DATA.TRAIN.LABEL_SOURCES MODEL.AMP_PARAMS.AMP_ARGS "
    "MODEL.AMP_PARAMS.AMP_TYPE MODEL.CUDA_CACHE MODEL.MULTI_INPUT_HEAD_MAPPING MODEL.SYNC_BN_CONFIG.SYNC_BN_TYPE "
    "MODEL.ACTIVATION_CHECKPOINTING.NUM_ACTIVATION_CHECKPOINTING_SPLITS OPTIMIZER.construct_single_param_group_only"
)
"""Keys of what raysl does by itself."""
SWITCHES = {
    "REPRODUCIBILITY.CUDDN_DETERMINISTIC": "REPRODUCIBILITY",
    "MODEL.ACTIVATION_CHECKPOINTING.USE_ACTIVATION_CHECKPOINTING": "MODEL.ACTIVATION_CHECKPOINTING",
    "MODEL.FSDP_CONFIG.AUTO_SETUP_FSDP": "MODEL.FSDP_CONFIG",
    "MODEL.GRAD_CLIP.USE_GRAD_CLIP": "MODEL.GRAD_CLIP",
    "MODEL.WEIGHTS_INIT.PARAMS_FILE": "MODEL.WEIGHTS_INIT",
}
"""Groups in which there is nothing to set without a key of theirs, by this key."""
OFF = (
    "DATA.TRAIN.COPY_TO_LOCAL_DISK",
    "DATA.TEST.COPY_TO_LOCAL_DISK",
    "MODEL.TRUNK.RESNETS.STANDARDIZE_CONVOLUTIONS",
    "MODEL.TRUNK.VISION_TRANSFORMERS.DROPOUT_RATE",
    "MODEL.TRUNK.VISION_TRANSFORMERS.ATTENTION_DROPOUT_RATE",
    "MODEL.TRUNK.VISION_TRANSFORMERS.QK_SCALE",
    "MODEL.SHARDED_DDP_SETUP",
    "MODEL.SINGLE_PASS_EVERY_CROP",
    "MODEL.NON_TRAINABLE_PARAMS",
    "MODEL.TEMP_FROZEN_PARAMS_ITER_MAP",
)
"""Keys for which there is nothing to set where they are off or empty."""


def convert_config(paths: Sequence[str], overrides: Sequence[str] = ()) -> Translation:
    """Translate a configuration of VISSL into settings of raysl.

    Nothing is run, imported or fetched: files are read as plain YAML.

    Args:
        paths: file of VISSL, and files that are laid over it, in their order.
        overrides: VISSL's keys, `config.DATA.TRAIN.BATCHSIZE_PER_REPLICA=32`, and settings of raysl `key=value`, which
            hold over what is translated.

    Raises:
        ConfigError: if a file cannot be read, is no configuration of VISSL, or becomes something that raysl refuses.
    """
    tree: dict[str, Any] = {}
    for path in paths:
        tree = merge(tree, _without_root(read_tree(path)))
    vissl_overrides = [word for word in overrides if re.match(r"\+|config\.", word)]
    for word in vissl_overrides:
        tree = merge(tree, _without_root(read_dotlist(word.lstrip("+"))))
    ours = parse_overrides([word for word in overrides if word not in vissl_overrides])
    chosen = {".".join(keys): value for keys, value in leaves(ours)}
    name = Path(paths[0]).stem
    translation = _translate(tree, str(chosen.get("name", name)), chosen)
    translation.command = shlex.join(["raysl", "convert-config", *paths, *overrides])
    try:
        translation.config()
    except ConfigError as error:
        raise ConfigError(f"raysl refuses what became of {paths[0]}; give these as key=value:\n{error}") from error
    return translation


def _translate(tree: Mapping[str, Any], name: str, chosen: Mapping[str, Any]) -> Translation:
    """Translate a configuration of VISSL."""
    settings = _in_one_layout(tree)
    vissl = VisslSettings(settings)
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


def _without_root(tree: Mapping[str, Any]) -> dict[str, Any]:
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
    out.maps("SEED_VALUE", {"seed": vissl.whole("SEED_VALUE")})
    out.maps("LOG_FREQUENCY", {"train.log_every": f"{max(1, vissl.whole('LOG_FREQUENCY'))}st"})
    device = {"gpu": "auto", "cpu": "cpu"}.get(vissl.text("MACHINE.DEVICE"), "auto")
    out.maps("MACHINE.DEVICE", {"train.device": device})
    if vissl.any("REPRODUCIBILITY.CUDDN_DETERMINISTIC"):
        out.maps("REPRODUCIBILITY.CUDDN_DETERMINISTIC", {"train.deterministic": True})
    folder = location(vissl.text("CHECKPOINT.DIR"))
    if folder is not None and folder != ".":
        out.maps("CHECKPOINT.DIR", {"storage": folder}, "a run lies in a folder of its name below it")
    elif folder == ".":
        out.drops("CHECKPOINT.DIR")
    if vissl.whole("CHECKPOINT.CHECKPOINT_ITER_FREQUENCY") > 0:
        every = f"{vissl.whole('CHECKPOINT.CHECKPOINT_ITER_FREQUENCY')}st"
        out.maps("CHECKPOINT.CHECKPOINT_ITER_FREQUENCY", {"train.checkpoint_every": every})
    else:
        every = f"{max(1, vissl.whole('CHECKPOINT.CHECKPOINT_FREQUENCY'))}ep"
        out.maps("CHECKPOINT.CHECKPOINT_FREQUENCY", {"train.checkpoint_every": every})
        out.drops("CHECKPOINT.CHECKPOINT_ITER_FREQUENCY")
    if out.settings["method.name"] in ("supervised", "rotnet") and vissl.any("TEST_MODEL"):
        out.maps("TEST_EVERY_NUM_EPOCH", {"train.eval_every": f"{max(1, vissl.whole('TEST_EVERY_NUM_EPOCH'))}ep"})
        out.drops("TEST_MODEL")
    else:
        out.drops("TEST_MODEL TEST_EVERY_NUM_EPOCH")
    for key, group in (SWITCHES | {key: key for key in OFF}).items():
        if not vissl.any(key):
            out.drops(group)
    out.drops(UNUSED)
