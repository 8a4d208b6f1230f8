"""VISSL's MODEL as raysl's `backbone`, and what it says of normalisation, precision and memory."""

from raysl.errors import ConfigError
from raysl.translation.course import Batch
from raysl.translation.translated import Translation

TRUNK = "MODEL.TRUNK"
RESNET = f"{TRUNK}.RESNETS"
VIT = f"{TRUNK}.VISION_TRANSFORMERS"
SYNC = "MODEL.SYNC_BN_CONFIG"
NORMS = {"BatchNorm": "batch", "GroupNorm": "group", "LayerNorm": "layer"}


def translate_model(out: Translation, batch: Batch) -> None:
    """Translate the trunk and what is computed how."""
    if "backbone.name" not in out.settings:  # else the user gives another one
        _trunk(out)
    else:
        out.drops(TRUNK)
    _sync_bn(out, batch)
    _computing(out)
    channels = {"rgb": "rgb", "bgr": "bgr", "lab": "lab_l"}.get(out.vissl.text("MODEL.INPUT_TYPE"))
    if channels is not None:
        out.maps("MODEL.INPUT_TYPE", {"data.channels": channels})


def _trunk(out: Translation) -> None:
    vissl, name = out.vissl, out.vissl.text(f"{TRUNK}.NAME")
    if name == "resnet":
        _resnet(out)
    elif name == "vision_transformer":
        _vit(out)
    elif name == "regnet" and vissl.text(f"{TRUNK}.REGNET.name"):
        model = vissl.text(f"{TRUNK}.REGNET.name")
        out.maps(f"{TRUNK}.NAME", {"backbone.name": "torchvision"})
        out.maps(f"{TRUNK}.REGNET.name", {"backbone.model": model})
    else:
        raise ConfigError(
            f"{TRUNK}.NAME: no counterpart of {name!r} by itself; add backbone=NAME and its settings, such as "
            "backbone=torchvision backbone.model=efficientnet_b0, to the command"
        )
    for other in vissl.group(TRUNK):
        if other not in ("NAME", "RESNETS", "VISION_TRANSFORMERS", "REGNET"):
            out.drops(f"{TRUNK}.{other}")


def _resnet(out: Translation) -> None:
    vissl = out.vissl
    out.maps(f"{TRUNK}.NAME", {"backbone.name": "resnet"})
    out.maps(f"{RESNET}.DEPTH", {"backbone.depth": vissl.whole(f"{RESNET}.DEPTH")})
    width = 64 * vissl.number(f"{RESNET}.WIDTH_MULTIPLIER")
    out.maps(f"{RESNET}.WIDTH_MULTIPLIER", {"backbone.width": int(width)})
    out.maps(
        f"{RESNET}.ZERO_INIT_RESIDUAL", {"backbone.zero_init_residual": vissl.flag(f"{RESNET}.ZERO_INIT_RESIDUAL")}
    )
    norm = vissl.text(f"{RESNET}.NORM")
    if norm in NORMS:
        out.maps(f"{RESNET}.NORM", {"backbone.norm": NORMS[norm]})
    pairs = {"GROUPS": "groups", "WIDTH_PER_GROUP": "width_per_group", "LAYER4_STRIDE": "last_stride"}
    if norm == "GroupNorm":
        pairs["GROUPNORM_GROUPS"] = "norm_groups"
    else:
        out.drops(f"{RESNET}.GROUPNORM_GROUPS")
    for key, field in pairs.items():
        if vissl.has(f"{RESNET}.{key}") or field == "norm_groups":
            out.maps(f"{RESNET}.{key}", {f"backbone.{field}": vissl.whole(f"{RESNET}.{key}")})


def _vit(out: Translation) -> None:
    vissl = out.vissl
    out.maps(f"{TRUNK}.NAME", {"backbone.name": "vit"})
    if vissl.text(f"{VIT}.name"):
        raise ConfigError(f"{VIT}.name: give the shape itself, HIDDEN_DIM, NUM_LAYERS, NUM_HEADS, PATCH_SIZE")
    whole = {"HIDDEN_DIM": "width", "NUM_LAYERS": "depth", "NUM_HEADS": "heads", "PATCH_SIZE": "patch_size"}
    for key, field in {**whole, "IMAGE_SIZE": "image_size"}.items():
        out.maps(f"{VIT}.{key}", {f"backbone.{field}": vissl.whole(f"{VIT}.{key}")})
    if vissl.whole(f"{VIT}.MLP_DIM") == 4 * vissl.whole(f"{VIT}.HIDDEN_DIM"):
        out.drops(f"{VIT}.MLP_DIM")
    out.maps(f"{VIT}.DROP_PATH_RATE", {"backbone.drop_path": vissl.number(f"{VIT}.DROP_PATH_RATE")})
    out.maps(f"{VIT}.QKV_BIAS", {"backbone.qkv_bias": vissl.flag(f"{VIT}.QKV_BIAS")})
    if vissl.text(f"{VIT}.CLASSIFIER") == "token":
        out.drops(f"{VIT}.CLASSIFIER")


def _sync_bn(out: Translation, batch: Batch) -> None:
    vissl = out.vissl
    is_sync = vissl.flag(f"{SYNC}.CONVERT_BN_TO_SYNC_BN")
    out.maps(f"{SYNC}.CONVERT_BN_TO_SYNC_BN", {"train.sync_bn": is_sync})
    size = vissl.whole(f"{SYNC}.GROUP_SIZE")
    size = batch.per_node if size < 0 else size
    if not is_sync:
        out.drops(f"{SYNC}.GROUP_SIZE")
    elif size and size < batch.workers and batch.workers % size == 0:
        note = "groups of workers; only train.sync_bn_ranks=null gives the gradient of the whole batch"
        out.maps(f"{SYNC}.GROUP_SIZE", {"train.sync_bn_ranks": size}, note)
    else:
        out.maps(f"{SYNC}.GROUP_SIZE", {"train.sync_bn_ranks": None})


def _computing(out: Translation) -> None:
    vissl = out.vissl
    is_amp = vissl.flag("MODEL.AMP_PARAMS.USE_AMP")
    note = "train.precision=auto is bf16 on GPUs, which needs no scaling of the loss" if is_amp else ""
    out.maps("MODEL.AMP_PARAMS.USE_AMP", {"train.precision": "fp16" if is_amp else "fp32"}, note)
    if vissl.any(checkpointing := "MODEL.ACTIVATION_CHECKPOINTING.USE_ACTIVATION_CHECKPOINTING"):
        out.maps(checkpointing, {"train.recompute": "all"})
    if vissl.any("MODEL.FSDP_CONFIG.AUTO_SETUP_FSDP"):
        out.maps("MODEL.FSDP_CONFIG.AUTO_SETUP_FSDP", {"train.parallel": "fsdp"})
    if vissl.any("MODEL.GRAD_CLIP.USE_GRAD_CLIP"):
        out.maps("MODEL.GRAD_CLIP.MAX_NORM", {"train.clip_grad": vissl.any("MODEL.GRAD_CLIP.MAX_NORM") or 1})
        out.drops("MODEL.GRAD_CLIP.USE_GRAD_CLIP")
        if vissl.any("MODEL.GRAD_CLIP.NORM_TYPE") in (None, 2):
            out.drops("MODEL.GRAD_CLIP.NORM_TYPE")
    if vissl.text("MODEL.WEIGHTS_INIT.PARAMS_FILE"):
        note = "raysl convert FILE --out FOLDER, then method.weights=FOLDER; without it weights are random"
        out.lacks("MODEL.WEIGHTS_INIT", note, value=vissl.text("MODEL.WEIGHTS_INIT.PARAMS_FILE"))
