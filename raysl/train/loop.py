"""The training loop. It knows neither Ray nor the method."""

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn

from raysl import distributed as dist
from raysl.data.batch import Batch
from raysl.hashing import step_seed
from raysl.methods.method import StepOutput
from raysl.nn import collapse
from raysl.optim.build import lr_at, set_schedules
from raysl.plan.plan import TrainPlan
from raysl.schedule import Step
from raysl.train.batches import BatchStream, as_stream
from raysl.train.callbacks.callback import Callback, Run, check_callbacks
from raysl.train.epoch_lines import EpochLines
from raysl.train.gradients import backward_in_parts, clip_norm
from raysl.train.late import FiniteCheck
from raysl.train.late import NonFiniteLoss as NonFiniteLoss
from raysl.train.meter import Meter
from raysl.train.patch_drops import PatchDrops
from raysl.train.reporter import LocalReporter, Reporter
from raysl.train.state import TrainState
from raysl.train.warm_heads import WarmHeads


def fit(
    state: TrainState,
    model: nn.Module,
    plan: TrainPlan,
    batches: BatchStream | Sequence[Batch],
    *,
    callbacks: Sequence[Callback] = (),
    reporter: Reporter,
) -> dict[str, float]:
    """Train from `state.step` to the end of the plan. Every rank calls it.

    >>> from raysl import load_config, views
    >>> from raysl.train import LocalReporter, Setup
    >>> config = load_config("quickstart", ["train.batch_size=2", "train.epochs=1", "backbone.width=4"])
    >>> images = [torch.randint(256, (3, 16, 16), dtype=torch.uint8) for _ in range(4)]
    >>> state = TrainState.create(Setup.of(config, num_samples=4))
    >>> reporter = LocalReporter(show_progress=False)
    >>> metrics = fit(state, state.method, state.setup.plan, views(config, images), reporter=reporter)
    >>> state.step
    2

    Args:
        state: the state to train, changed in place.
        model: the method of the state, wrapped by `dist.data_parallel` if there are several ranks.
        plan: length and learning rate of the training.
        batches: a stream that starts at any step, such as that of `raysl.views`, or a list that is repeated; each batch
            holds the rows that `plan.shares` gives this rank.
        callbacks: observers, called in this order.
        reporter: takes metrics and checkpoints. With a `LocalReporter` a line an epoch is shown, unless it has
            `show_progress=False`.

    Returns:
        The newest value of every logged number.

    Raises:
        ConfigError: if the batches do not fit the plan and the method.
        NonFiniteLoss: on all ranks at the same step, and before anything is saved. On a CPU the step has not changed
            any weight; on a GPU it is raised one step late, after an update (see `FiniteCheck`).
    """
    method, optimizer = state.method, state.optimizer
    stream = as_stream(batches, state, plan)
    run, meter = Run(state, plan, reporter, stream), Meter(state.device)
    finite = FiniteCheck(state.device, lambda step: _tell_non_finite(run, callbacks, step), run.agreement)
    is_shown = isinstance(reporter, LocalReporter) and reporter.show_progress and dist.is_main()
    lines = EpochLines(plan, state.step) if is_shown else None
    warm = WarmHeads(method, state.config.train.warm_heads)
    drops = PatchDrops.of(state.setup, plan, method.backbone)
    check_callbacks(callbacks)
    for callback in callbacks:
        callback.on_train_start(run)
    if state.step == 0:
        _log_line(run, callbacks, plan.step(0))
    model.train()
    rows = stream.from_step(state.step)
    while state.step < plan.total_steps and run.stopped is None:
        step = plan.step(state.step)
        if step.in_epoch == 0:
            seed_step(plan.seed, step.index, None)
            method.before_epoch(step, stream.plain)
        with meter.waiting():
            run.batch = batch = next(rows)
        # Seeded after the batch is there: what a stream draws must not move what the step draws.
        seed_step(plan.seed, step.index, dist.rank())
        set_schedules(optimizer, plan.optim, step, plan.batch_size)
        is_logged = run.is_log_due(plan.step(step.index + 1))
        with (
            dist.planned_rows(plan.shares(step)),
            collapse.logging(is_logged),
            warm.holding(step),
            drops.dropping(step),
        ):
            out = backward_in_parts(model, batch, plan, step, state.scaler)
            finite.add(out.loss, step)
            method.after_backward(step)
            warm.drop_gradients(step)
            _update(run, callbacks, step)
            state.synchronise()
            method.after_update(step, batch, out.carry)
        state.follow(step)
        state.step += 1
        meter.count(plan.batch_rows(step))
        _observe(run, callbacks, meter, finite, out)
        if lines is not None:
            lines.show(plan.step(state.step), out, run.metrics)
        if _is_save_due(run):
            finite.settle()
            _save(run, callbacks, reporter)
        # Queued behind this step on a GPU, where the next one reads the flags.
        run.agreement.exchange()
    if lines is not None:
        lines.settle()
    for callback in callbacks:
        callback.on_train_end(run)
    return run.metrics


def seed_step(seed: int, step: int, rank: int | None) -> None:
    """Seed all generators for a step, so that no generator's state has to be saved.

    Args:
        rank: None before an epoch, when all ranks draw the same numbers.
    """
    number = step_seed(seed, step, rank)
    torch.manual_seed(number)
    np.random.seed(number % (1 << 32))
    random.seed(number)


def _update(run: Run, callbacks: Sequence[Callback], step: Step) -> None:
    """Update the weights; callbacks see the gradients after they are unscaled and before they are clipped."""
    state, plan = run.state, run.plan
    state.scaler.unscale_(state.optimizer)
    for callback in callbacks:
        callback.on_backward(run, step)
    if plan.clip_grad_value is not None:
        nn.utils.clip_grad_value_(state.method.parameters(), plan.clip_grad_value)
    if plan.clip_grad is not None:
        clip_norm(state.method, plan.clip_grad, plan.clip_grad_over)
    state.scaler.step(state.optimizer)
    state.scaler.update()
    state.optimizer.zero_grad(set_to_none=True)


def _check_weights(state: TrainState) -> None:
    """Refuse to save weights that are not finite, so that the newest checkpoint is a good one."""
    values = [value for value in state.method.state_dict().values() if value.is_floating_point()]
    is_finite = torch.stack([dist.local(value).isfinite().all() for value in values]).all()
    if not dist.all_true(bool(is_finite), state.device):
        raise NonFiniteLoss(
            f"weights are not finite after step {state.step - 1}; "
            "lower optim.lr, lengthen optim.warmup, or set train.clip_grad"
        )


def _observe(run: Run, callbacks: Sequence[Callback], meter: Meter, finite: FiniteCheck, out: StepOutput) -> None:
    step = run.plan.step(run.state.step)
    is_log_due = run.is_log_due(step)
    if is_log_due or step.in_epoch == 0:
        finite.settle()
    if is_log_due:
        lr = lr_at(run.plan.optim, run.plan.step(run.state.step - 1), run.plan.batch_size)
        averages = _average(out)  # waits for the device, so the meter times finished steps
        scale = {"loss_scale": run.state.scaler.get_scale()} if run.state.scaler.is_enabled() else {}
        run.add({"epoch": step.index / step.epoch_len, "lr": lr, **averages, **scale, **meter.read()})
    with run.observing():
        _tell(run, callbacks, step, out)


def _tell(run: Run, callbacks: Sequence[Callback], step: Step, out: StepOutput) -> None:
    for callback in callbacks:
        callback.on_step_end(run, step, out)
    if step.in_epoch == 0:
        for callback in callbacks:
            callback.on_epoch_end(run, step)
    _log_line(run, callbacks, step)


def _log_line(run: Run, callbacks: Sequence[Callback], step: Step) -> None:
    if run.line:
        for callback in callbacks:
            callback.on_log(run, step, run.line)
        run.line = {}


def _tell_non_finite(run: Run, callbacks: Sequence[Callback], step: Step) -> None:
    for callback in callbacks:
        callback.on_non_finite(run, step)


def _average(out: StepOutput) -> dict[str, float]:
    names = ["loss", *out.metrics]
    values = torch.stack([out.loss.detach().float(), *(value.float() for value in out.metrics.values())])
    return dict(zip(names, dist.all_mean(values).tolist(), strict=True))


def _is_save_due(run: Run) -> bool:
    step = run.plan.step(run.state.step)
    is_last = step.index == step.total or run.stopped is not None
    return run.plan.checkpoint_every.is_due(step) or is_last or run.is_save_asked


def _save(run: Run, callbacks: Sequence[Callback], reporter: Reporter) -> None:
    state = run.state
    run.is_save_asked = False
    state.callbacks = {callback.state_key: callback.state_dict() for callback in callbacks}
    _check_weights(state)
    for callback in callbacks:
        callback.before_checkpoint(run)
    tensors = state.tensors()
    # the last line may be of an earlier step
    metrics = {**run.metrics, "step": state.step, "epoch": state.step / run.plan.epoch_len}

    def save(folder: Path) -> None:
        for callback in callbacks:
            callback.on_checkpoint(run, folder)
        state.save(folder, metrics, tensors)

    reporter.report(metrics, save)
