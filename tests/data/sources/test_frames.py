"""DICOM files of one and of several frames in folders, lists, tars and shards, as one image a frame."""

import io
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import torch
from pydicom import Dataset
from pydicom.encaps import encapsulate, encapsulate_extended
from pydicom.uid import ExplicitVRBigEndian, ExplicitVRLittleEndian, ImplicitVRLittleEndian, RLELossless

from raysl.components import resolve
from raysl.config.load import load_config
from raysl.data.decode.decode import CorruptImage, decode
from raysl.data.decode.images import read_images
from raysl.data.ingest.ingest import ingest_source
from raysl.data.ingest.inspect import inspect
from raysl.data.ingest.shard import Layout
from raysl.data.limits import Limits, limiting
from raysl.data.source import make_source
from raysl.data.sources import frames as frames_of_files
from raysl.data.sources.file_list import FileList
from raysl.data.sources.image_folder import ImageFolder
from raysl.data.sources.listing import parse_frame
from raysl.data.sources.parquet import Parquet
from raysl.data.split import Missing
from raysl.errors import ConfigError
from raysl.schedule import Step
from raysl.train.prepare import prepare
from raysl.train.state import TrainState
from tests.data.counted import counted_storage
from tests.data.dicom import PATIENT, dataset, dicom, written
from tests.data.samples import all_rows, sent
from tests.data.volumes import CHANNELS, folder, opened, pixels, same

RANDOM = np.random.default_rng(0)
VOLUME = RANDOM.integers(0, 1000, (5, 6, 8)).astype(np.int16)
EXPECTED = np.rint(VOLUME * 0.255).astype(np.uint8)


def rle(frames: np.ndarray, **elements: Any) -> Dataset:
    facts = dataset(frames, **elements)
    facts.compress(RLELossless)
    return facts


def without_table() -> bytes:
    facts = rle(VOLUME)
    frames = list(_frames(facts))
    facts.PixelData = encapsulate(frames, has_bot=False)
    return written(facts)


def in_pieces(is_extended: bool) -> bytes:
    """Two fragments a frame, with a basic or an extended table of offsets."""
    facts = rle(VOLUME)
    frames = list(_frames(facts))
    if is_extended:
        facts.PixelData, facts.ExtendedOffsetTable, facts.ExtendedOffsetTableLengths = encapsulate_extended(frames)
    else:
        facts.PixelData = encapsulate(frames, fragments_per_frame=2)
    return written(facts)


def _frames(facts: Dataset) -> Any:
    from pydicom.encaps import generate_frames

    return generate_frames(facts.PixelData, number_of_frames=int(facts.NumberOfFrames))


@pytest.mark.parametrize(
    "file",
    [
        dicom(VOLUME, ExplicitVRLittleEndian),
        dicom(VOLUME, ImplicitVRLittleEndian),
        dicom(VOLUME, ExplicitVRBigEndian),
        written(rle(VOLUME)),
        without_table(),
        in_pieces(is_extended=False),
        in_pieces(is_extended=True),
    ],
    ids=["explicit", "implicit", "big endian", "RLE", "no table", "two fragments", "extended table"],
)
def test_each_frame_is_an_image_with_the_label_and_name_of_its_file(file: bytes, tmp_path: Path) -> None:
    single = dicom(VOLUME[0])
    split = opened(folder(tmp_path, {"a/1.dcm": single, "a/2.DCM": file, "b/3.dicom": single}))
    assert (split.num_samples, split.classes) == (7, ("a", "b"))
    rows = all_rows(split)
    assert rows.labels.tolist() == [0] * 6 + [1]
    names = ["a/1.dcm", *(f"a/2.DCM#{frame}" for frame in range(1, 6)), "b/3.dicom"]
    assert rows.names == [f"{tmp_path}/{name}" for name in names]
    assert same(pixels(split), [EXPECTED[0], *EXPECTED, EXPECTED[0]])
    mixed = split.read(np.array([6, 3, 0, 5, 3, 0]))
    assert same([decode(image, bands=split.bands)[0].numpy() for image in mixed.images], EXPECTED[[0, 2, 0, 4, 2, 0]])


def test_frames_of_8_bits_in_colour_may_have_an_odd_number_of_bytes(tmp_path: Path) -> None:
    film = RANDOM.integers(0, 256, (3, 3, 5, 3)).astype(np.uint8)
    split = opened(folder(tmp_path, {"1.dcm": dicom(film, SamplesPerPixel=3)}), **_rgb())
    images = [decode(image) for image in all_rows(split).images]
    assert same([image.permute(1, 2, 0).numpy() for image in images], film)


def _rgb() -> dict[str, Any]:
    return {"channels": "rgb", "mean": (0.5,) * 3, "std": (0.25,) * 3, "value_range": None}


def test_each_frame_of_an_enhanced_file_has_its_own_slope_and_window(tmp_path: Path) -> None:
    facts = dataset(VOLUME)
    shared, groups = Dataset(), []
    shared.FrameVOILUTSequence = [_item(WindowCenter="500", WindowWidth="1001")]
    for frame in range(5):
        group = Dataset()
        group.PixelValueTransformationSequence = [_item(RescaleSlope=str(1 + frame // 2), RescaleIntercept="-10")]
        groups.append(group)
    facts.SharedFunctionalGroupsSequence, facts.PerFrameFunctionalGroupsSequence = [shared], groups
    path = folder(tmp_path, {"1.dcm": written(facts)})
    units = VOLUME * (1 + np.arange(5) // 2)[:, None, None] - 10
    assert same(pixels(opened(path)), np.rint(units.clip(0, 1000) * 0.255).astype(np.uint8))
    windowed = np.rint(255 * ((units - (499.5 - 500)) / 1000).clip(0, 1)).astype(np.uint8)
    assert same(pixels(opened(path, value_range=None)), windowed)


def _item(**elements: str) -> Dataset:
    item = Dataset()
    for name, value in elements.items():
        setattr(item, name, value)
    return item


def test_a_frame_is_read_alone_and_carries_nothing_of_the_patient(tmp_path: Path) -> None:
    big = RANDOM.integers(0, 1000, (40, 256, 256)).astype(np.int16)  # 131 kB a frame
    path = folder(tmp_path, {"1.dcm": dicom(big)})
    with counted_storage() as storage:
        ImageFolder(ImageFolder.Config(path=f"counted://{path}", **CHANNELS)).split("train")
        assert storage.num_bytes < 200_000, "a range around the header"
        split = opened(f"counted://{path}")
        storage.num_bytes = 0
        (image,) = split.read(np.array([17])).images
    assert storage.num_bytes == big[17].nbytes
    assert isinstance(image, bytes)
    assert PATIENT.encode() not in image
    assert np.array_equal(decode(image, bands=split.bands)[0], np.rint(big[17] * 0.255).astype(np.uint8))


def test_files_of_a_remote_storage_are_cut_too(tmp_path: Path) -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe("/raysl_dicom/a/1.dcm", written(rle(VOLUME)))
    memory.pipe("/raysl_dicom/a/2.dcm", dicom(VOLUME))
    assert same(pixels(opened("memory://raysl_dicom")), [*EXPECTED, *EXPECTED])


def test_a_folder_of_single_images_is_as_without_frames(tmp_path: Path) -> None:
    files = {f"{number}.dcm": dicom(VOLUME[number]) for number in range(3)}
    split = opened(folder(tmp_path, files))
    assert not [kind for kind in split.readers() if kind is frames_of_files.FramesSplit]
    assert all_rows(split).images[1] == files["1.dcm"]


def test_the_fingerprint_changes_with_the_frames(tmp_path: Path) -> None:
    first = opened(folder(tmp_path / "a", {"1.dcm": dicom(VOLUME)})).fingerprint
    assert opened(folder(tmp_path / "b", {"1.dcm": dicom(VOLUME)})).fingerprint == first
    more_frames = dicom(VOLUME.reshape(10, 3, 8))
    assert len(more_frames) == len(dicom(VOLUME))
    assert opened(folder(tmp_path / "c", {"1.dcm": more_frames})).fingerprint != first


def test_files_without_pixels_are_left_out_with_a_note_and_damaged_ones_are_corrupt(tmp_path: Path) -> None:
    report = dataset(VOLUME[0])
    for name in ("PixelData", "Rows", "Columns", "BitsAllocated"):
        delattr(report, name)
    whole = dicom(VOLUME)
    files = {"1.dcm": whole, "2.dcm": whole[:-100], "3.dcm": written(report), "4.dcm": b"no DICOM file", "5.dcm": whole}
    split = opened(folder(tmp_path, files))
    assert split.num_samples == 5 + 1 + 1 + 5
    assert any(note.startswith("1 DICOM files have no pixels and are left out: ") for note in split.notes)
    cut, noise, again = split.read(np.array([5, 6, 5])).images
    assert cut == again
    assert isinstance(cut, Missing)
    assert cut.reason == "a DICOM file that ends before its 5 frames do; is the download complete?"
    with pytest.raises(CorruptImage, match="it has no DICM"):
        decode(noise, bands=split.bands)
    replaced = read_images(split, np.array([5])).corrupt
    assert [(image.row, image.other) for image in replaced] == [(5, 7)]
    assert replaced[0].startswith(f"{tmp_path}/2.dcm: a DICOM file that ends before")
    (tmp_path / "1.dcm").write_bytes(whole[:-200])
    (tmp_path / "5.dcm").unlink()
    (first,) = split.read(np.array([0])).images
    assert np.array_equal(decode(first, bands=split.bands)[0], EXPECTED[0])
    last, gone = split.read(np.array([4, 9])).images
    assert last == Missing("the file ends before its frames do; was it replaced?")
    assert gone == Missing("file not found")
    with limiting(Limits(max_file_bytes=50)):
        assert split.read(np.array([1])).images == [Missing("more than 50 bytes")]


def test_a_preamble_may_be_the_header_of_another_format(tmp_path: Path) -> None:
    split = opened(folder(tmp_path, {"1.dcm": b"II*\0" + dicom(VOLUME)[4:]}))
    assert same(pixels(split), EXPECTED)


def test_a_folder_without_any_pixels_is_refused(tmp_path: Path) -> None:
    report = dataset(VOLUME[0])
    for name in ("PixelData", "Rows", "Columns", "BitsAllocated"):
        delattr(report, name)
    with pytest.raises(ConfigError, match=r"none of the 1 DICOM files has pixels, first .*/1.dcm"):
        opened(folder(tmp_path, {"1.dcm": written(report)}))


def test_a_compression_that_nothing_decodes_is_one_message_with_the_file(tmp_path: Path) -> None:
    facts = dataset(VOLUME)
    facts.PixelData = encapsulate([b"\xff\xd8\xff\xd9"] * 5)
    facts["PixelData"].is_undefined_length = True
    facts.file_meta.TransferSyntaxUID = "1.2.840.10008.1.2.4.100"
    folder(tmp_path, {"1.dcm": dicom(VOLUME), "2.dcm": written(facts), "3.dcm": written(facts)})
    message = r"2 of the 3 DICOM files cannot be decoded, first .*/2.dcm: it is compressed as MPEG2 .*store it uncompre"
    with pytest.raises(ConfigError, match=message):
        opened(tmp_path)


def test_without_pydicom_the_start_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder(tmp_path, {"1.dcm": dicom(VOLUME)})
    monkeypatch.setitem(__import__("sys").modules, "pydicom", None)
    with pytest.raises(ConfigError, match=r"1 of the 1 images, first .*/1.dcm: .*pip install 'raysl\[medical\]'"):
        opened(tmp_path)


@pytest.mark.parametrize("ending", ["csv", "txt"])
def test_a_list_labels_files_or_frames_of_them(ending: str, tmp_path: Path) -> None:
    folder(tmp_path, {"1.dcm": dicom(VOLUME), "2.dcm": dicom(VOLUME[0])})
    rows = ["1.dcm#3", "1.dcm#1", "2.dcm"]
    text = "path,label\n" if ending == "csv" else ""
    blank = "," if ending == "csv" else " "
    text += "".join(f"{row}{blank}{label}\n" for row, label in zip(rows, (1, 0, 1), strict=True))
    (tmp_path / f"list.{ending}").write_text(text)
    split = FileList(FileList.Config(train=str(tmp_path / f"list.{ending}"), **CHANNELS)).required("train")
    assert same(pixels(split), EXPECTED[[2, 0, 0]])
    found = all_rows(split)
    assert found.labels.tolist() == [1, 0, 1]
    assert found.names == [f"{tmp_path}/{name}" for name in ("1.dcm#3", "1.dcm#1", "2.dcm")]
    (tmp_path / "whole.csv").write_text("path,label\n1.dcm,0\n2.dcm,1\n")
    split = FileList(FileList.Config(train=str(tmp_path / "whole.csv"), **CHANNELS)).required("train")
    assert split.labels_of(np.arange(6)).tolist() == [0] * 5 + [1]
    (tmp_path / "twice.csv").write_text("path,label\n2.dcm,1\n1.dcm,0\nx/../1.dcm#3,1\n")
    config = FileList.Config(train=str(tmp_path / "twice.csv"), **CHANNELS)
    with pytest.raises(ConfigError, match=r"twice.csv lists 1 images more than once, first '.*/1.dcm'; remove"):
        FileList(config).required("train")
    split = FileList(replace(config, allow_duplicates=True)).required("train")
    assert split.labels_of(np.arange(7)).tolist() == [1, 0, 0, 0, 0, 0, 1]
    (tmp_path / "wrong.csv").write_text("path,label\n1.dcm#6,0\n")
    with pytest.raises(ConfigError, match=r"/1.dcm has 5 frames, and frame 6 is listed"):
        FileList(FileList.Config(train=str(tmp_path / "wrong.csv"), **CHANNELS)).required("train")


def test_the_frame_of_a_name() -> None:
    assert parse_frame("s3://b/x#1/a.DICOM#20") == ("s3://b/x#1/a.DICOM", 20)
    assert parse_frame("a.png#2") == ("a.png#2", 0)
    assert parse_frame("a.dcm#0") == ("a.dcm#0", 0)


@pytest.mark.thorough
def test_ingest_stores_each_frame_without_the_patient_and_training_reads_the_same_pixels(tmp_path: Path) -> None:
    path = folder(tmp_path / "in", {"a/1.dcm": dicom(VOLUME), "b/2.dcm": dicom(VOLUME[0])})
    data = ImageFolder.Config(path=str(path), **CHANNELS)
    ingest_source(data, str(tmp_path / "out"), Layout(rows_per_file=4, rows_per_group=2, seed=None))
    stored = Parquet(Parquet.Config(path=str(tmp_path / "out"), **CHANNELS)).required("train")
    rows = all_rows(stored)
    assert rows.names == [f"{path}/a/1.dcm#{frame}" for frame in range(1, 6)] + [f"{path}/b/2.dcm"]
    assert same(pixels(stored), [*EXPECTED, EXPECTED[0]])
    assert rows.labels.tolist() == [0] * 5 + [1]
    for file in (tmp_path / "out").glob("*.parquet"):
        assert PATIENT.encode() not in file.read_bytes()
    assert not any(PATIENT.encode() in image for image in rows.images if isinstance(image, bytes))


def test_checking_a_folder_counts_dicom_files(tmp_path: Path) -> None:
    path = folder(tmp_path, {"a/1.dcm": dicom(VOLUME), "b/2.dcm": dicom(VOLUME[0])[:-9]})
    table = inspect(ImageFolder.Config(path=str(path), **CHANNELS)).table()
    assert "DICOM 5" in table
    assert f"train 5 {path}/b/2.dcm: corrupt: a damaged DICOM file" in table


def test_members_of_a_tar_may_be_dicom_files(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "train-0.tar", "w") as tar:
        for number in range(3):
            member, content = tarfile.TarInfo(f"{number}.dcm"), dicom(VOLUME[number])
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    source = resolve("source", "webdataset")
    split = source(source.Config(path=str(tmp_path), **CHANNELS)).required("train")
    assert same(pixels(split), EXPECTED[:3])


@pytest.mark.thorough
@pytest.mark.parametrize("channels", ["1", "gray"])
def test_a_step_of_training_takes_slices(channels: str, tmp_path: Path) -> None:
    volumes = RANDOM.integers(0, 1000, (2, 8, 20, 24)).astype(np.int16)
    window = {"WindowCenter": "500", "WindowWidth": "1000"}
    path = folder(tmp_path, {f"train/{name}/1.dcm": dicom(volumes[name], **window) for name in range(2)})
    words = [f"data={path}", f"data.channels={channels}", "data.image_size=16", "data.limit=null"]
    words += ["data.value_range=[0,1000]"] if channels == "1" else []
    words += ["backbone.num_stages=1", "backbone.width=4", "method.hidden_dim=8", "method.output_dim=4"]
    config = load_config("quickstart", words)
    config = replace(config, train=replace(config.train, batch_size=8, accumulate=1), benchmarks={})
    assert make_source(config.data).required("train").num_samples == 16
    run = prepare(config)
    state = TrainState.create(run.setup, "cpu")
    batch = run.loader.finish(run.loader.load(0, 0, 1), 0, torch.device("cpu"))
    assert next(iter(batch.views.values())).shape[-3] == (1 if channels == "1" else 3)
    loss = state.method(batch, Step(0, 10, 2)).loss
    loss.backward()
    assert torch.isfinite(loss)


def test_a_split_arrives_whole_in_another_process(tmp_path: Path) -> None:
    split = opened(folder(tmp_path, {"1.dcm": dicom(VOLUME)}))
    assert sent(split).read(np.array([2])).images == split.read(np.array([2])).images
