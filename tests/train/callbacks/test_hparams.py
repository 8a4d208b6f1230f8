"""What TensorBoard's own readers find of the settings and numbers that a sweep's runs leave for it."""

import math
from pathlib import Path
from typing import Any

import pytest

from raysl.storage.folder import Folder
from raysl.train.callbacks.tensorboard import HPARAMS_FOLDER, EventFile, write_hparams

pytest.importorskip("tensorboard", reason="TensorBoard's readers are in the dev extra")


def read(folder: Path) -> tuple[dict[str, Any], dict[str, list[tuple[int, float]]]]:
    """Settings, and (step, value) of each number, as TensorBoard reads them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams import metadata

    events = EventAccumulator(str(folder))
    events.Reload()
    content = events.summary_metadata[metadata.SESSION_START_INFO_TAG].plugin_data.content
    found = metadata.parse_session_start_info_plugin_data(content).hparams
    settings = {key: getattr(value, value.WhichOneof("kind")) for key, value in found.items()}
    numbers = {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
    return settings, numbers


def columns(runs: Path) -> tuple[set[str], set[str]]:
    """The columns of the HPARAMS tab: settings, and numbers of the sessions themselves."""
    from tensorboard.backend.event_processing import data_provider, plugin_event_multiplexer
    from tensorboard.context import RequestContext
    from tensorboard.plugins.base_plugin import TBContext
    from tensorboard.plugins.hparams.backend_context import Context

    multiplexer = plugin_event_multiplexer.EventMultiplexer().AddRunsFromDirectory(str(runs))
    multiplexer.Reload()
    provider = data_provider.MultiplexerDataProvider(multiplexer, str(runs))
    context, request = Context(TBContext(data_provider=provider)), RequestContext()
    metadata = context.hparams_metadata(request, "")
    found = context.experiment_from_metadata(request, "", True, metadata, [])
    return {info.name for info in found.hparam_infos}, {info.name.tag for info in found.metric_infos}


def test_tensorboard_reads_settings_and_final_numbers_back(tmp_path: Path) -> None:
    settings = {"optim.lr": 0.25, "method.name": "moco", "optim.nesterov": True, "seed": 3, "data.mean": [0.5, 0.25, 0]}
    numbers = {"knn/k20/top1": 61.5, "loss": 2.5, "broken": math.nan}
    write_hparams(Folder(str(tmp_path)), settings, numbers, step=40)
    found, scalars = read(tmp_path / HPARAMS_FOLDER)
    assert found == settings | {"seed": 3.0, "data.mean": "[0.5, 0.25, 0]"}
    assert scalars == {"knn/k20/top1": [(40, 61.5)], "loss": [(40, 2.5)]}


def test_written_again_they_replace_what_was_there(tmp_path: Path) -> None:
    write_hparams(Folder(str(tmp_path)), {"optim.lr": 0.25}, {"loss": 2.5}, step=40)
    write_hparams(Folder(str(tmp_path)), {"optim.lr": 0.5}, {"knn/k20/top1": 61.5}, step=80)
    assert len(list((tmp_path / HPARAMS_FOLDER).iterdir())) == 1
    assert read(tmp_path / HPARAMS_FOLDER) == ({"optim.lr": 0.5}, {"knn/k20/top1": [(80, 61.5)]})


def test_credentials_are_not_written(tmp_path: Path) -> None:
    write_hparams(Folder(str(tmp_path)), {"data.path": "s3://KEY:SECRET@bucket/images"}, {})
    assert b"SECRET" not in b"".join(path.read_bytes() for path in (tmp_path / HPARAMS_FOLDER).iterdir())


def test_runs_with_different_settings_share_a_table_and_keep_their_curves_out_of_it(tmp_path: Path) -> None:
    from tensorboardX.summary import scalar

    for name, settings in (("a", {"optim.lr": 0.25}), ("b", {"optim.lr": 0.5, "method.queue_size": 64})):
        EventFile(tmp_path / name, 0).add(1, scalar("train/loss", 3.0))
        write_hparams(Folder(str(tmp_path / name)), settings, {"knn/k20/top1": 61.5, "loss": 2.5})
    assert columns(tmp_path) == ({"optim.lr", "method.queue_size"}, {"knn/k20/top1", "loss"})
