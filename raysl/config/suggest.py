"""What a user may have meant by a setting that there is not: by its meaning elsewhere, or by its spelling."""

import difflib
from collections.abc import Sequence

_WORDS: dict[str, str] = {
    "backbone.name": "model arch architecture network encoder",
    "batch_size": "batch batchsize bs global_batch_size per_device_batch_size",
    "blur_p": "blur gaussian_blur",
    "checkpoint_every": "save_every save_freq save_interval checkpoint_interval checkpoint_freq ckpt_every",
    "clip_grad": "clip grad_clip gradient_clip clip_norm clip_grad_norm max_grad_norm gradient_clip_val max_norm",
    "classes": "class_names labels",
    "data.name": "dataset source",
    "depth": "layers num_layers",
    "device": "accelerator cuda gpu",
    "epochs": "epoch num_epochs max_epochs n_epochs",
    "final_lr": "min_lr end_lr lr_min eta_min lr_end",
    "flip": "flip_p hflip horizontal_flip",
    "grayscale_p": "grayscale gray grey",
    "image_size": "img_size imgsize input_size resolution crop_size image_dim res",
    "jitter_strength": "jitter color_jitter colour_jitter color_strength strength",
    "k": "neighbours neighbors n_neighbours n_neighbors num_neighbours num_neighbors knn_k",
    "keep_checkpoints": "keep max_checkpoints save_top_k num_checkpoints",
    "limit": "max_samples num_samples subset_size num_images max_images",
    "log_every": "log_interval log_freq print_freq log_every_n_steps",
    "lr": "learning_rate learningrate base_lr lr_base max_lr peak_lr alpha eta",
    "max_failures": "max_restarts retries max_retries restarts",
    "method.name": "loss algorithm ssl",
    "momentum": "beta mu",
    "optim.name": "optimizer optimiser opt",
    "output_dim": "embedding_dim proj_dim projection_dim out_dim dim z_dim",
    "path": "dir folder data_dir data_path root location",
    "precision": "amp mixed_precision fp16 bf16 fp32 half dtype",
    "prefetch": "prefetch_factor prefetch_batches",
    "schedule": "scheduler lr_schedule lr_scheduler sched",
    "seed": "random_seed random_state rng",
    "std": "stds sigma normalize_std",
    "mean": "means normalize_mean",
    "storage": "output out output_dir out_dir save_dir log_dir run_dir exp_dir results",
    "sync_bn": "syncbn sync_batchnorm sync_batch_norm",
    "temperature": "temp tau t",
    "threads": "num_threads n_threads cpus",
    "warmup": "warmup_epochs warmup_steps warm_up warmup_ratio",
    "weight_decay": "wd decay l2 weightdecay regularization",
    "width": "channels base_width wide",
    "workers": "num_workers n_workers gpus num_gpus n_gpus ngpus devices num_devices world_size nproc nproc_per_node",
}
SYNONYMS: dict[str, list[str]] = {}
"""Settings, by a word that other libraries and people have for them."""
for _setting, _others in _WORDS.items():
    for _word in _others.split():
        SYNONYMS.setdefault(_word, []).append(_setting)


def near(key: str, known: Sequence[str]) -> list[str]:
    """Up to three settings that the user may have meant: of the same name or meaning elsewhere, or of a similar name.

    Args:
        key: dotted, of no setting.
        known: dotted keys of all settings.
    """
    group, _, name = key.rpartition(".")
    last = {setting: setting.rpartition(".")[2] for setting in known}
    same = [setting for setting in known if last[setting] == name]
    if same:
        return difflib.get_close_matches(key, same, n=1, cutoff=0.8) or same[:3]
    wanted = SYNONYMS.get(name.lower().replace("-", "_"), ())
    if meant := [setting for setting in known if last[setting] in wanted or setting in wanted]:
        beside = [setting for setting in meant if setting.rpartition(".")[0] == group]
        return (beside or meant)[:3]
    if whole := difflib.get_close_matches(key, known, n=1, cutoff=0.8):
        return whole
    names = difflib.get_close_matches(name, set(last.values()), n=1, cutoff=0.7)
    return [setting for setting in known if last[setting] in names][:3]
