"""VISSL's OPTIMIZER as raysl's `optim`."""

from typing import Any

from raysl.errors import ConfigError
from raysl.translation.course import LR, Batch, Scaling, course
from raysl.translation.translated import Translation
from raysl.translation.vissl_defaults import DEFAULTS

TOKENS = {"class_token": "cls_token", "cls_token": "cls_token", "pos_embedding": "pos_embed", "pos_embed": "pos_embed"}
HEAD = "OPTIMIZER.param_schedulers.lr_head"
DECIDES = {
    "optim.lr": ("values", "start_value", "value", "schedulers"),
    "optim.lr_scaling": ("values", "start_value", "value", "schedulers"),
    "optim.warmup": ("lengths",),
    "optim.warmup_start": ("schedulers",),
    "optim.final_lr": ("schedulers", "end_value"),
    "optim.cosine_from": ("interval_scaling",),
    "optim.decay_at": ("milestones",),
    "optim.decay_factor": ("values",),
    "optim.values": ("values",),
    "optim.update_every": ("update_interval",),
}
"""Keys of a schedule that decide a setting, by the setting."""


def translate_optimizer(out: Translation, batch: Batch) -> None:
    """Translate the optimizer, what decays, and the courses of the learning rates."""
    vissl = out.vissl
    _optimizer(out)
    _weight_decay(out)
    out.maps("OPTIMIZER.num_epochs", {"train.epochs": vissl.whole("OPTIMIZER.num_epochs")})
    _decay(out)
    scaling = _scaling(out, LR)
    node = {**_defaults(LR), **vissl.group(LR)}
    result = course(node, vissl.whole("OPTIMIZER.num_epochs"), batch, scaling)
    # a scaled rate is written as VISSL's formula by `_scaling`, not as its result
    rate = {} if scaling is not None else {"optim.lr": result.peak, "optim.lr_scaling": "none"}
    keys = [key for key in _keys_of_course(node) if vissl.has(f"{LR}.{key}")]
    for key, settings in _by_key({**rate, **result.settings}, keys or ["name"]).items():
        out.maps(f"{LR}.{key}", settings, _course_note(key, node, result.notes, batch, scaling))
    unused = [key for key in ("values", "milestones", "start_value", "end_value", "value") if key not in keys]
    out.drops(" ".join(unused), below=f"{LR}.")
    _head(out, batch, 1.0 if scaling is None else scaling.factor(batch))


def _by_key(settings: dict[str, Any], keys: list[str]) -> dict[str, dict[str, Any]]:
    """Return which settings stand for which keys of a schedule."""
    parts: dict[str, dict[str, Any]] = {key: {} for key in keys}
    for setting, value in settings.items():
        wanted = [key for key in DECIDES.get(setting, ()) if key in parts]
        parts[wanted[0] if wanted else keys[0]][setting] = value
    return parts


def _keys_of_course(node: dict[str, Any]) -> list[str]:
    keys = {
        "composite": ["schedulers", "interval_scaling", "lengths"],
        "multistep": ["values", "milestones"],
        "step": ["values"],
        "cosine": ["start_value", "end_value"],
        "linear": ["start_value", "end_value"],
        "constant": ["value"],
    }
    return ["name", *keys.get(str(node.get("name")), [key for key in node if key != "name"]), "update_interval"]


def _course_note(key: str, node: dict[str, Any], notes: tuple[str, ...], batch: Batch, scaling: Scaling | None) -> str:
    """Return what differs, beside the key that it is about."""
    if key == "name":
        return "; ".join(notes)
    if key == "schedulers" and scaling is not None:
        start = scaling.start(batch) if batch.nodes > 1 else 0.0
        begin = f"the warm-up begins at {start:g}, the rate of one node's images, and " if start else ""
        return f"auto scaling sets these values: {begin}the peak is {scaling.peak(batch):g}"
    if key == "values" and scaling is not None:
        return f"auto scaling sets these values: the first is {scaling.peak(batch):g}"
    return ""


def _defaults(group: str) -> dict[str, Any]:
    return {
        key.removeprefix(f"{group}."): value
        for key, value in DEFAULTS.items()
        if key.startswith(f"{group}.") and "auto_lr_scaling" not in key
    }


def _optimizer(out: Translation) -> None:
    vissl, name = out.vissl, out.vissl.text("OPTIMIZER.name")
    use_larc = vissl.flag("OPTIMIZER.use_larc")
    if name == "zero" or vissl.any("OPTIMIZER.use_zero"):
        out.maps("OPTIMIZER.use_zero", {"train.parallel": "zero1"})
        name = "sgd" if name == "zero" else name
    else:
        out.drops("OPTIMIZER.use_zero")
    known = {"sgd": "larc" if use_larc else "sgd", "lars": "lars", "adam": "adam", "adamw": "adamw"}
    if name == "rmsprop":
        out.maps("OPTIMIZER.name", {"optim.name": "torch", "optim.optimizer": "RMSprop"})
    elif name not in known:
        raise ConfigError(f"OPTIMIZER.name: {name!r} is none of {', '.join(known)}, rmsprop; give optim=NAME yourself")
    else:
        out.maps("OPTIMIZER.name", {"optim.name": known[name]})
    if use_larc and name == "sgd":
        out.maps("OPTIMIZER.use_larc", {"optim.name": "larc"})
        for key, kind in (("clip", "flag"), ("trust_coefficient", "number"), ("eps", "number")):
            out.maps(
                f"OPTIMIZER.larc_config.{key}", {f"optim.{key}": getattr(vissl, kind)(f"OPTIMIZER.larc_config.{key}")}
            )
    else:
        out.drops("OPTIMIZER.use_larc OPTIMIZER.larc_config")
    if name in ("sgd", "lars"):
        out.maps("OPTIMIZER.momentum", {"optim.momentum": vissl.number("OPTIMIZER.momentum")})
    if name == "sgd":
        out.maps("OPTIMIZER.nesterov", {"optim.nesterov": vissl.flag("OPTIMIZER.nesterov")})
        out.drops("OPTIMIZER.betas")
    elif name in ("adam", "adamw"):
        out.maps("OPTIMIZER.betas", {"optim.betas": vissl.items("OPTIMIZER.betas")})
        out.drops("OPTIMIZER.momentum OPTIMIZER.nesterov")
    if name == "lars" and vissl.has("OPTIMIZER.eta"):
        out.maps("OPTIMIZER.eta", {"optim.trust_coefficient": vissl.number("OPTIMIZER.eta")})


def _weight_decay(out: Translation) -> None:
    """A number, or a course from one to another."""
    vissl, group = out.vissl, "OPTIMIZER.param_schedulers.weight_decay"
    if vissl.any(f"{group}.name") not in ("cosine", "linear"):
        out.maps("OPTIMIZER.weight_decay", {"optim.weight_decay": vissl.number("OPTIMIZER.weight_decay")})
        return
    out.drops("OPTIMIZER.weight_decay")
    out.maps(f"{group}.name", {"optim.weight_decay_schedule": vissl.text(f"{group}.name")})
    out.maps(f"{group}.start_value", {"optim.weight_decay": vissl.number(f"{group}.start_value")})
    out.maps(f"{group}.end_value", {"optim.weight_decay_end": vissl.number(f"{group}.end_value")})
    out.drops(f"{group}.update_interval")


def _decay(out: Translation) -> None:
    """What weight decay and LARS leave alone: `regularize_bn`, `regularize_bias`, parameters by name."""
    vissl, name = out.vissl, str(out.settings["optim.name"])
    norm, bias = vissl.flag("OPTIMIZER.regularize_bn"), vissl.flag("OPTIMIZER.regularize_bias")
    scaled = f"{name.upper()} scales their updates all the same in VISSL; here what does not decay is not scaled either"
    is_excluded = name == "lars" and bool(vissl.any("OPTIMIZER.exclude_bias_and_norm"))
    is_scaled = name in ("larc", "lars") and not is_excluded
    both = {"optim.exclude_norm_and_bias": not norm} if norm == bias else {}
    pairs = (("regularize_bn", norm, "optim.exclude_norm"), ("regularize_bias", bias, "optim.exclude_bias"))
    for key, decays, setting in pairs:
        out.maps(f"OPTIMIZER.{key}", both or {setting: not decays}, scaled if is_scaled and not decays else "")
    if is_excluded:
        note = "they decay in VISSL; here what is not scaled does not decay either" if norm or bias else ""
        out.maps("OPTIMIZER.exclude_bias_and_norm", {"optim.exclude_norm_and_bias": True}, note)
    else:
        out.drops("OPTIMIZER.exclude_bias_and_norm")
    names = [str(name) for name in vissl.items("OPTIMIZER.non_regularized_parameters")]
    if unknown := [name for name in names if name not in TOKENS]:
        out.lacks("OPTIMIZER.non_regularized_parameters", f"parameters by name: {', '.join(unknown)}")
    elif names:
        out.drops("OPTIMIZER.non_regularized_parameters")
    elif out.settings.get("backbone.name") == "vit":
        out.maps(
            "OPTIMIZER.non_regularized_parameters",
            {"optim.decay_tokens": ["cls_token", "pos_embed"]},
            "tokens and position embeddings decay in VISSL unless it is told otherwise",
        )
    if vissl.any("OPTIMIZER.param_group_constructor") == "dino":
        out.maps("OPTIMIZER.param_group_constructor", {"optim.exclude_norm_and_bias": True})


def _scaling(out: Translation, group: str) -> Scaling | None:
    vissl, auto = out.vissl, f"{group}.auto_lr_scaling"
    if not vissl.any(f"{auto}.auto_scale"):
        out.drops(auto)
        return None
    scaling = Scaling(
        vissl.number(f"{auto}.base_value"),
        vissl.whole(f"{auto}.base_lr_batch_size"),
        vissl.text(f"{auto}.scaling_type"),
    )
    if scaling.of < 1:
        raise ConfigError(f"{auto}.base_lr_batch_size: {scaling.of} is no number of images")
    if scaling.kind not in ("linear", "sqrt"):
        raise ConfigError(f"{auto}.scaling_type: {scaling.kind!r} is neither linear nor sqrt, which VISSL knows")
    if group == LR:
        out.drops(f"{auto}.auto_scale")
        out.maps(f"{auto}.base_value", {"optim.lr": scaling.base})
        out.maps(f"{auto}.base_lr_batch_size", {"optim.lr_batch_size": scaling.of})
        out.maps(f"{auto}.scaling_type", {"optim.lr_scaling": scaling.kind})
    return scaling


def _head(out: Translation, batch: Batch, factor: float) -> None:
    """Learning rate and weight decay of what is not the trunk, whose own rate raysl multiplies by a factor."""
    vissl, head = out.vissl, "OPTIMIZER.head_optimizer_params"
    if vissl.any(f"{head}.use_different_lr"):
        node = {**_defaults(LR), **vissl.group(HEAD)}
        scaling = _scaling(out, HEAD)
        peak = course(node, vissl.whole("OPTIMIZER.num_epochs"), batch, scaling).peak
        note = "the head follows the course of the trunk; raysl has no course for it alone"
        # raysl scales optim.head_lr with the batch as it scales optim.lr, so the factor is taken out
        out.maps(HEAD, {"optim.head_lr": round(peak / factor, 12)}, note)
    else:
        out.drops(f"{head}.use_different_lr {HEAD}")
    if vissl.any(f"{head}.use_different_wd"):
        out.maps(f"{head}.weight_decay", {"optim.head_weight_decay": vissl.number(f"{head}.weight_decay")})
        out.drops(f"{head}.use_different_wd")
    else:
        out.drops(f"{head}.use_different_wd {head}.weight_decay")
