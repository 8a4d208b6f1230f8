"""Sources made of sources: one after the other, and side by side."""

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raysl.config.dump import dump, plain
from raysl.config.load import load_config
from raysl.config.schema import DataConfig
from raysl.data.source import Split
from raysl.data.sources.catalog import Catalog
from raysl.data.sources.concat import Concat
from raysl.data.sources.digits import Digits
from raysl.data.sources.image_folder import ImageFolder
from raysl.data.sources.paired import Paired
from raysl.data.sources.parquet import Parquet
from raysl.data.sources.synthetic import Synthetic
from raysl.errors import ConfigError
from tests.data.samples import all_rows, png, sent


def folder(root: Path, *files: str) -> ImageFolder.Config:
    """Images, each of the shade that its name is."""
    for file in files:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_bytes(png(int(Path(file).stem)))
    return ImageFolder.Config(path=str(root))


def table(path: Path, shades: list[int], labels: Any) -> Parquet.Config:
    pq.write_table(pa.table({"image": [png(shade) for shade in shades], "label": labels}), path)
    return Parquet.Config(path=str(path))


def concat(**sources: DataConfig) -> Concat:
    return Concat(Concat.Config(sources=sources))


def paired(**sources: DataConfig) -> Paired:
    return Paired(Paired.Config(sources=sources))


def content(split: Split) -> list[tuple[Any, Any]]:
    rows = all_rows(split)
    return list(zip(rows.images, rows.labels.tolist(), strict=True))


# one after the other


def test_classes_are_merged_by_name_in_the_order_they_come(tmp_path: Path) -> None:
    source = concat(
        x=folder(tmp_path / "x", "train/dog/1.png", "train/cat/2.png", "val/dog/3.png"),
        y=folder(tmp_path / "y", "train/ant/4.png", "train/dog/5.png", "val/ant/6.png"),
        z=folder(tmp_path / "z", "7.png"),
    )
    train, test = source.required("train"), source.required("test")
    assert train.classes == test.classes == ("cat", "dog", "ant")
    assert content(train) == [(png(2), 0), (png(1), 1), (png(4), 2), (png(5), 1), (png(7), -1)]
    assert content(test) == [(png(3), 1), (png(6), 2)]
    assert train.unit_sizes.tolist() == [2, 2, 1]


def test_rows_come_in_the_order_asked_for(tmp_path: Path) -> None:
    train = sent(
        concat(x=folder(tmp_path / "x", "a/1.png", "b/2.png"), y=folder(tmp_path / "y", "b/3.png")).required("train")
    )
    index = np.array([2, 0, 2, 1])
    rows = train.read(index)
    assert rows.images == [png(3), png(1), png(3), png(2)]
    assert rows.labels.tolist() == train.labels_of(index).tolist() == [1, 0, 1, 1]
    assert rows.names == train.names_of(index)
    assert [Path(name).name for name in rows.names] == ["3.png", "1.png", "3.png", "2.png"]


def test_a_multi_label_class_that_a_source_has_not_is_to_be_ignored(tmp_path: Path) -> None:
    several = table(tmp_path / "a.parquet", [1, 2], [[1, 0], [0, 1]])
    others = Parquet.Config(path=table(tmp_path / "b.parquet", [3], [[1, 0]]).path, classes=("1", "2"))
    split = concat(a=several, b=others).required("train")
    assert split.is_multilabel
    assert split.classes == ("0", "1", "2")
    assert all_rows(split).labels.tolist() == [[1, 0, -1], [0, 1, -1], [-1, 1, 0]]


def test_multi_label_and_single_label_do_not_mix(tmp_path: Path) -> None:
    single = table(tmp_path / "a.parquet", [1], [0])
    several = table(tmp_path / "b.parquet", [2], [[1, 0]])
    with pytest.raises(ConfigError, match=r"data.sources.b is multi-label and data.sources.a is not"):
        concat(a=single, b=several).required("train")
    with pytest.raises(ConfigError, match=r"data.sources.b is multi-label and data.sources.a is not"):
        concat(b=several, a=single).required("train")


def test_held_out_images_are_those_of_the_sources_that_have_some(tmp_path: Path) -> None:
    with_test = folder(tmp_path / "x", "train/a/1.png", "val/a/2.png")
    without = folder(tmp_path / "y", "a/3.png")
    assert content(concat(x=without, y=with_test).required("test")) == [(png(2), 0)]
    assert concat(x=without).optional("test") is None


def test_parts_of_sources_and_of_the_whole_are_chosen_in_turn() -> None:
    first, second = Synthetic.Config(num_train=10, limit=4), Synthetic.Config(num_train=6)
    whole = Concat(Concat.Config(sources={"a": first, "b": second}, limit=5, label_type="sample_index"))
    names = all_rows(whole.required("train")).names
    assert names == ["synthetic 0", "synthetic 5", "synthetic 0", "synthetic 2", "synthetic 4"]
    assert all_rows(whole.required("train")).labels.tolist() == [0, 1, 2, 3, 4]


def test_a_concatenation_streams_if_one_part_does() -> None:
    streamed = Synthetic.Config(num_train=10, is_random_access=False)
    assert not concat(a=Synthetic.Config(), b=streamed).required("train").is_random_access
    assert concat(a=Synthetic.Config(), b=Synthetic.Config()).required("train").is_random_access


def test_the_order_of_sources_is_in_the_fingerprint(tmp_path: Path) -> None:
    first, second = folder(tmp_path / "x", "1.png"), folder(tmp_path / "y", "22.png")
    prints = {concat(a=a, b=b).required("train").fingerprint for a, b in ((first, second), (second, first))}
    assert len(prints) == 2


# by weight


def mixed(tmp_path: Path, weights: dict[str, float], **settings: Any) -> Concat.Config:
    """Three grey images of 1 to 3 in `a`, seven of 11 to 17 in `b`."""
    sources = {
        "a": folder(tmp_path / "a", "train/one/1.png", "train/one/2.png", "train/two/3.png"),
        "b": folder(tmp_path / "b", *(f"train/two/{shade}.png" for shade in range(11, 18))),
    }
    return Concat.Config(sources=sources, weights=weights, **settings)


def test_a_weighted_source_has_its_share_of_an_epoch(tmp_path: Path) -> None:
    whole = Concat(mixed(tmp_path, {"a": 0.7, "b": 0.3})).required("train")
    assert whole.num_samples == 10
    assert [(part.name, part.rows) for part in whole.mix] == [("a", 7), ("b", 3)]
    other = Concat(mixed(tmp_path, {"b": 4, "a": 1})).required("train")
    assert [(part.name, part.rows) for part in other.mix] == [("a", 2), ("b", 8)]
    assert other.fingerprint != whole.fingerprint
    relabelled = Concat(mixed(tmp_path, {"a": 0.7, "b": 0.3}, label_type="zero")).required("train")
    assert relabelled.mix == whole.mix


@pytest.mark.parametrize(
    ("weights", "settings", "message"),
    [
        ({"a": 0.7}, {}, "data.weights has a, and data.sources has a, b; give each source a weight"),
        ({}, {}, "data.weights has nothing, and data.sources has a, b; give each source a weight"),
        ({"a": 1e-6, "b": 1}, {}, "data.weights.a=1e-06 is less than one of the 10 images of an epoch"),
        ({"a": 0, "b": 1}, {}, "weights=.* 0"),
        ({"a": 1, "b": 1}, {"limit": 5}, "set limit, skip and subset on the inner sources"),
    ],
)
def test_weights_that_fit_no_source_are_refused(
    tmp_path: Path, weights: dict[str, float], settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        Concat(mixed(tmp_path, weights, **settings)).required("train")


def test_weights_of_a_source_inside_another_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="weights on no source inside another"):
        concat(both=mixed(tmp_path, {"a": 1, "b": 1})).required("train")


# side by side


def test_a_pair_is_the_images_at_one_place(tmp_path: Path) -> None:
    split = paired(
        colour=folder(tmp_path / "c", "train/a/1.png", "train/b/2.png", "val/a/3.png"),
        depth=folder(tmp_path / "d", "train/4.png", "train/5.png", "val/6.png"),
    )
    train = sent(split.required("train"))
    rows = train.read(np.array([1, 0]))
    assert train.num_sources == 2
    assert (rows.images, rows.labels.tolist()) == ([png(2), png(1)], [1, 0])
    (depth,) = rows.partners
    assert depth.images == [png(5), png(4)]
    assert all_rows(split.required("test")).partners[0].images == [png(6)]


def test_partners_stay_with_a_subset_other_labels_and_a_concatenation() -> None:
    pair = Paired.Config(sources={"a": Synthetic.Config(num_train=8), "b": Synthetic.Config(num_train=8, limit=8)})
    source = Concat(Concat.Config(sources={"x": pair, "y": pair}, limit=4, label_type="zero"))
    rows = all_rows(source.required("train"))
    assert source.required("train").num_sources == 2
    assert rows.names == rows.partners[0].names == ["synthetic 0", "synthetic 4"] * 2
    for image, partner in zip(rows.images, rows.partners[0].images, strict=True):
        assert np.array_equal(image, partner)  # type: ignore[arg-type]


def test_three_sources_have_two_partners() -> None:
    one = Synthetic.Config(num_train=4)
    nested = paired(a=one, b=Paired.Config(sources={"c": one, "d": one})).required("train")
    flat = paired(a=one, b=one, c=one).required("train")
    for split in (nested, flat):
        assert split.num_sources == 3
        assert len(all_rows(split).partners) == 2
        assert all(partner.partners == () for partner in all_rows(split).partners)


def test_pairs_of_different_lengths_are_refused(tmp_path: Path) -> None:
    source = paired(a=folder(tmp_path / "x", "1.png", "2.png"), b=folder(tmp_path / "y", "3.png"))
    with pytest.raises(ConfigError, match=r"paired sources must have the same number of images, not a 2, b 1"):
        source.required("train")


def test_pairs_and_single_images_do_not_follow_each_other() -> None:
    one = Synthetic.Config(num_train=4)
    pair = Paired.Config(sources={"a": one, "b": one})
    with pytest.raises(ConfigError, match=r"data.sources.y has 2 images, one of data.sources.x has 1"):
        concat(x=one, y=pair).required("train")


def test_held_out_pairs_need_all_sources(tmp_path: Path) -> None:
    with_test = folder(tmp_path / "x", "train/a/1.png", "val/a/2.png")
    assert paired(a=with_test, b=folder(tmp_path / "y", "a/3.png")).optional("test") is None


# settings


def test_too_few_sources_are_told() -> None:
    with pytest.raises(ConfigError, match=r"concat needs data.sources=, at least one source"):
        concat().required("train")
    with pytest.raises(ConfigError, match=r"paired needs data.sources=, at least two"):
        paired(a=Synthetic.Config()).required("train")


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["concat", "paired"])
def test_sources_are_settings_like_any_other(tmp_path: Path, name: str) -> None:
    words = [f"data={name}", "data.sources={a: {name: image_folder}}", f"data.sources.a.path={tmp_path}"]
    config: Any = load_config("quickstart", [*words, "data.sources.b=digits", "data.sources.b.limit=7"])
    assert config.data.sources["a"] == ImageFolder.Config(path=str(tmp_path))
    assert (config.data.sources["b"].name, config.data.sources["b"].limit) == ("digits", 7)
    file = tmp_path / "again.yaml"
    file.write_text(dump(config))
    assert load_config(str(file), ["name=quickstart"]) == config


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("data.sources.a.path=/x", "data.sources.a: missing; choose one with data.sources.a=NAME ("),
        (
            "data.sources.a=imagefolder",
            "data.sources.a.name: unknown source 'imagefolder'; did you mean 'image_folder'",
        ),
        ("data.sources.a={name: digits, pth: 3}", "data.sources.a.pth: no such setting; "),
        ("data.sources.a={name: digits, limit: 0}", "data.sources.a.limit: 0 is out of range; give a finite number"),
        ("data.sources.a={name: digits, window: 8}", "data: sources.a: window has no effect there; set data.window in"),
        ("data.sources.a={name: digits, label_type: zero}", "data: sources.a: label_type has no effect there; set da"),
        ("data.sources.a={name: digits, balanced: true}", "data.sources.a.balanced: it divides data.sources.a.limi"),
    ],
)
def test_settings_of_inner_sources_are_checked(words: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config("quickstart", ["data=concat", words])
    assert str(caught.value).startswith(message)


CHANGED = {
    "image_size": 8,
    "eval_resize": 999,
    "eval_interpolation": "bicubic",
    "mean": (0.1, 0.1, 0.1),
    "std": (0.1, 0.1, 0.1),
    "channels": "bgr",
    "value_range": (0.0, 128.0),
    "limit": 2,
    "balanced": True,
    "skip": 1,
    "subset": "list.txt",
    "subset_by": "index",
    "background": "black",
    "label_type": "zero",
    "lanes": 3,
    "window": 7,
    "drop_last": False,
    "exact_below": 5,
    "augment_on": "task",
    "scaled_decode": False,
    "max_corrupt": 0.5,
    "max_pixels": 5,
    "max_file_bytes": 5,
    "changed": "accept",
    "buffer_gb": 1.0,
}


@pytest.mark.parametrize("name", [field.name for field in fields(DataConfig) if field.name != "name"])
def test_a_common_setting_of_an_inner_source_changes_its_images_or_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    assert CHANGED.keys() == {field.name for field in fields(DataConfig)} - {"name"}, "a new setting needs a value here"
    (tmp_path / "list.txt").write_text("1\n" if name == "subset_by" else "1.png\n")
    given: dict[str, Any] = {name: str(tmp_path / "list.txt") if name == "subset" else CHANGED[name]}
    given |= {"limit": 2} if name == "balanced" else {}
    given |= {"channels": 3} if name == "value_range" else {}
    given |= {"subset": str(tmp_path / "list.txt")} if name == "subset_by" else {}
    whole = folder(tmp_path / "x", "a/1.png", "a/2.png", "a/3.png", "b/4.png")
    inner = replace(whole, **given)
    (tmp_path / "catalog.yaml").write_text(dump_plain({"mine": inner}))
    monkeypatch.setenv("RAYSL_CATALOG", str(tmp_path / "catalog.yaml"))
    other = Synthetic.Config(num_train=4)
    for make in (
        lambda one: concat(x=one),
        lambda one: paired(x=one, y=replace(other, num_train=ImageFolder(one).required("train").num_samples)),
        lambda _: Catalog(Catalog.Config(dataset="mine")),
    ):
        if name in ("limit", "balanced", "skip", "subset", "subset_by"):
            images = all_rows(make(inner).required("train")).images
            assert images != all_rows(ImageFolder(whole).required("train")).images
        else:
            first = "channels" if name == "value_range" else name  # the one needs the other
            with pytest.raises(ConfigError, match=rf": {first} has no effect there; set data.{first} instead"):
                make(inner).required("train")


@pytest.mark.thorough
def test_the_size_of_images_that_an_inner_source_draws_takes_effect() -> None:
    (image,) = {image.shape for image in all_rows(concat(a=Synthetic.Config(image_size=8)).required("train")).images}  # type: ignore[union-attr]
    assert image == (8, 8, 3)
    for source in (Digits.Config(image_size=8), ImageFolder.Config(image_size=8)):
        with pytest.raises(
            ConfigError, match=r"sources.a: image_size has no effect there; set data.image_size instead"
        ):
            concat(a=source)


def dump_plain(datasets: dict[str, DataConfig]) -> str:
    return json.dumps({key: plain(config) for key, config in datasets.items()})
