"""solo-learn's methods as raysl's, with their `method_kwargs`."""

from collections.abc import Callable
from typing import Any

from raysl.translation.translated import Translation

KW = "method_kwargs"


def _maps(out: Translation, name: str, fields: dict[str, str], more: dict[str, Any] | None = None) -> None:
    """Translate a method and numbers of it, by their names there and here; a missing one stays at raysl's default."""
    out.maps("method", {"method.name": name, **(more or {})})
    for key, field in fields.items():
        if out.theirs.given(f"{KW}.{key}"):
            out.maps(f"{KW}.{key}", {f"method.{field}": out.theirs.any(f"{KW}.{key}")})


def _momentum(out: Translation, first: str, last: str | None) -> None:
    """Translate the teacher's momentum, which solo-learn moves along a cosine."""
    note = "" if last else "constant here; solo-learn moves it to final_tau"
    if out.theirs.given("momentum.base_tau"):
        out.maps("momentum.base_tau", {f"method.{first}": out.theirs.number("momentum.base_tau")}, note)
    if last and out.theirs.given("momentum.final_tau"):
        out.maps("momentum.final_tau", {f"method.{last}": out.theirs.number("momentum.final_tau")})


def _predictor(out: Translation) -> None:
    """Raysl's predictor is as wide as the projector."""
    theirs = out.theirs
    if theirs.any(f"{KW}.pred_hidden_dim") == theirs.any(f"{KW}.proj_hidden_dim"):
        out.drops(f"{KW}.pred_hidden_dim", "as wide as the projector")


def _simclr(out: Translation) -> None:
    """SimCLR, and SupCon, which has the same settings and name here."""
    fields = {"temperature": "temperature", "proj_hidden_dim": "hidden_dim", "proj_output_dim": "output_dim"}
    _maps(out, out.theirs.text("method"), fields, {"method.projector_norm": False, "method.output_norm": "none"})


def _moco(out: Translation) -> None:
    is_sync = out.theirs.flag("sync_batchnorm")
    fields = {"temperature": "temperature", "queue_size": "queue_size", "proj_output_dim": "output_dim"}
    _maps(out, "moco", fields, {"method.key_bn": "sync" if is_sync else "shuffle"})
    if out.theirs.given(f"{KW}.proj_hidden_dim"):
        note = "each view is a query once in solo-learn; the first one only here"
        out.maps(f"{KW}.proj_hidden_dim", {"method.hidden_dims": [out.theirs.whole(f"{KW}.proj_hidden_dim")]}, note)
    _momentum(out, "momentum", None)


def _mocov3(out: Translation) -> None:
    fields = {"temperature": "temperature", "proj_hidden_dim": "hidden_dim", "proj_output_dim": "output_dim"}
    _maps(out, "moco_v3", fields)
    _predictor(out)
    _momentum(out, "momentum", "momentum_end")


def _byol(out: Translation) -> None:
    _maps(out, "byol", {"proj_hidden_dim": "hidden_dim", "proj_output_dim": "output_dim"})
    _predictor(out)
    _momentum(out, "momentum", "final_momentum")


def _simsiam(out: Translation) -> None:
    _maps(out, "simsiam", {"proj_output_dim": "output_dim", "pred_hidden_dim": "predictor_dim"})
    _two_hidden(out)
    out.drops(f"{KW}.temperature", "SimSiam has none")


def _nnclr(out: Translation) -> None:
    fields = {"temperature": "temperature", "queue_size": "queue_size"}
    _maps(out, "nnclr", {**fields, "proj_output_dim": "output_dim", "pred_hidden_dim": "predictor_dim"})
    _two_hidden(out)


def _nnsiam(out: Translation) -> None:
    fields = {"proj_output_dim": "output_dim", "pred_hidden_dim": "predictor_dim", "queue_size": "queue_size"}
    _maps(out, "nnsiam", fields)
    _two_hidden(out)
    out.drops(f"{KW}.temperature", "NNSiam has none")


def _all4one(out: Translation) -> None:
    fields = {"temperature": "temperature", "queue_size": "queue_size", "proj_hidden_dim": "hidden_dim"}
    _maps(out, "all4one", {**fields, "proj_output_dim": "output_dim", "pred_hidden_dim": "predictor_dim"})
    _momentum(out, "momentum", "final_momentum")


def _ssley(out: Translation) -> None:
    _maps(out, "ssl_ey", {"proj_output_dim": "dim"})
    if out.theirs.any(f"{KW}.proj_hidden_dim") == out.theirs.any(f"{KW}.proj_output_dim"):
        out.drops(f"{KW}.proj_hidden_dim", "all layers have one width")


def _two_hidden(out: Translation) -> None:
    if out.theirs.given(f"{KW}.proj_hidden_dim"):
        width = out.theirs.whole(f"{KW}.proj_hidden_dim")
        out.maps(f"{KW}.proj_hidden_dim", {"method.hidden_dims": [width, width]})


def _barlow_twins(out: Translation) -> None:
    _maps(out, "barlow_twins", {"proj_output_dim": "dim", "lamb": "redundancy", "scale_loss": "scale"})
    if out.theirs.any(f"{KW}.proj_hidden_dim") == out.theirs.any(f"{KW}.proj_output_dim"):
        out.drops(f"{KW}.proj_hidden_dim", "all layers have one width")


def _swav(out: Translation) -> None:
    fields = {"temperature": "temperature", "proj_hidden_dim": "hidden_dim", "proj_output_dim": "output_dim"}
    fields |= {"sk_iters": "sinkhorn_iters", "sk_epsilon": "epsilon", "queue_size": "queue_length"}
    _maps(out, "swav", fields)
    if out.theirs.given(f"{KW}.num_prototypes"):
        out.maps(f"{KW}.num_prototypes", {"method.prototypes": [out.theirs.whole(f"{KW}.num_prototypes")]})
    for key, field in (("epoch_queue_starts", "queue_from"), ("freeze_prototypes_epochs", "freeze_prototypes")):
        if out.theirs.given(f"{KW}.{key}"):
            out.maps(f"{KW}.{key}", {f"method.{field}": f"{out.theirs.whole(f'{KW}.{key}')}ep"})


METHODS: dict[str, Callable[[Translation], None]] = {
    "simclr": _simclr,
    "supcon": _simclr,
    "mocov2plus": _moco,
    "mocov3": _mocov3,
    "byol": _byol,
    "simsiam": _simsiam,
    "nnclr": _nnclr,
    "nnsiam": _nnsiam,
    "all4one": _all4one,
    "ssley": _ssley,
    "barlow_twins": _barlow_twins,
    "swav": _swav,
}
"""What to do with a method, by its name there."""
