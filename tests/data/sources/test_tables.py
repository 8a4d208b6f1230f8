import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raysl.config.places import source_at
from raysl.data.source import Split
from raysl.data.sources.file_list import FileList
from raysl.data.sources.lists import label_columns
from raysl.data.sources.tables import read_table
from raysl.errors import ConfigError
from tests.data.samples import png


@pytest.fixture(autouse=True)
def images(tmp_path: Path) -> Path:
    for number in range(6):
        (tmp_path / f"{number}.png").write_bytes(png(number))
    return tmp_path


def read(folder: Path, name: str, content: str | bytes, **settings: Any) -> Split:
    (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return FileList(FileList.Config(train=str(folder / name), **settings)).required("train")


def held_out(folder: Path, train: str, test: str) -> Split:
    for name, content in (("train.csv", train), ("test.csv", test)):
        (folder / name).write_text(content)
    config = FileList.Config(train=str(folder / "train.csv"), test=str(folder / "test.csv"))
    return FileList(config).required("test")


def content(split: Split) -> tuple[list[Any], list[Any]]:
    """Shades and labels."""
    rows = split.read(np.arange(split.num_samples))
    return [[png(shade) for shade in range(6)].index(image) for image in rows.images], rows.labels.tolist()  # type: ignore[arg-type]


# the grammar of a table


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('0.png,cat\n1.png,"cat\n2.png,cat\n3.png,cat\n', "line 3: unexpected end of data; a quote begins and ends"),
        ('0.png,cat\n1.png,"cat\n2.png,"cat\n3.png,cat\n', "line 3: ',' expected after '\"'; a quote begins"),
        ('0.png,"a"b\n', "line 2: ',' expected after '\"'"),
        ('0.png,cat\n1.png,"cat\n2.png,cat"\n', "line 3: 'label' .* has a line break; is a quote missing, or too"),
        ('"0.png\n1.png",cat\n', "line 2: 'path' '0.png.n1.png' has a line break; is a quote missing, or too many"),
        ("0.png,cat\n1.png,cat,dog\n", "line 3: 3 values for the 2 columns of the header; quote a value that contains"),
        ("0.png,cat\n\n1.png\n", "line 4: 1 values for the 2 columns of the header; .* leave none out"),
        ("0.png,cat\n1.png,c\0t\n", "line 3: the character NUL, which no text has; save it as UTF-8"),
    ],
)
def test_a_row_that_breaks_the_grammar_is_refused_with_its_line(images: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"l.csv, {message}"):
        read(images, "l.csv", f"path,label\n{text}")


@pytest.mark.parametrize(
    "text",
    [
        "path,label\n0.png,dog\n1.png,cat\n",
        "\ufeffpath,label\r\n0.png,dog\r\n1.png,cat",
        "path,label\r0.png,dog\r1.png,cat\r",
        "\npath,label\n\n0.png,dog\n   \n1.png,cat\n\n",
        "path;label\n0.png;dog\n1.png;cat\n",
        'note;path;label\n"a;b, c";0.png;dog\n;1.png;cat\n',
        "path\tlabel\n0.png\tdog\n1.png\tcat\n",
        'path,note,label\n0.png,"a ""quoted""\nword",dog\n1.png,b"c,cat\n',
        "path,note,note,label\n0.png,1,2,dog\n1.png,,,cat\n",
    ],
)
@pytest.mark.parametrize("name", ["l.csv", "l.tsv", "L.CSV"])
def test_a_table_is_read_whatever_its_line_ends_delimiter_and_quotes(images: Path, name: str, text: str) -> None:
    split = read(images, name, text)
    assert content(split) == ([0, 1], [1, 0])
    assert split.classes == ("cat", "dog")


def test_a_text_of_another_encoding_is_refused(images: Path) -> None:
    with pytest.raises(ConfigError, match=r"l.csv is not a UTF-8 text: .* at byte 0; save it as UTF-8"):
        read(images, "l.csv", "path,label\n0.png,dog\n".encode("utf-16"))


def test_a_column_of_labels_alone_has_a_line_for_each_image(images: Path) -> None:
    (images / "y.csv").write_text('label\ndog\n""\ncat\n')
    split = read(images, "l.txt", "0.png\n1.png\n2.png\n", train_labels=str(images / "y.csv"))
    assert content(split) == ([0, 1, 2], [1, -1, 0])


def parquet(**columns: Any) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer)
    return buffer.getvalue()


@pytest.mark.parametrize("name", ["l.parquet", "l.pq", "l.PARQUET"])
@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (pa.array([2.0, float("nan"), 0.0]), [2, -1, 0]),
        (pa.array([2, None, 0], pa.uint8()), [2, -1, 0]),
        (pa.array(["dog", None, "cat"]), [1, -1, 0]),
        (pa.array(["dog", "", "cat"]).dictionary_encode(), [1, -1, 0]),
        (pa.array(["1", "1.0", "nan"]), [1, 1, -1]),
        (pa.array([[1, 0], None, [1, -1]]), [[1, 0], [-1, -1], [1, -1]]),
        (pa.array([[1, None], [0, 1], None]), [[1, -1], [0, 1], [-1, -1]]),
        (pa.array([["a", "c"], None, []]), [[1, 1], [-1, -1], [0, 0]]),
    ],
)
def test_a_parquet_table_of_paths_has_labels_by_the_same_rule(
    images: Path, name: str, labels: pa.Array, expected: list[Any]
) -> None:
    table = parquet(path=["0.png", "2.png", "1.png"], label=labels)
    assert content(read(images, name, table)) == ([0, 2, 1], expected)


def test_a_parquet_table_that_is_damaged_or_has_other_labels_is_refused(images: Path) -> None:
    table = parquet(path=["0.png", "1.png"], label=["0", "x"])
    with pytest.raises(ConfigError, match=r"l.parquet, row 2: the label 'x' is no whole number"):
        read(images, "l.parquet", table)
    with pytest.raises(ConfigError, match=r"l.parquet is no whole Parquet file: .*; make it again"):
        read(images, "l.parquet", table[:-9])
    with pytest.raises(ConfigError, match=r"l.parquet has no column 'path'; its columns: file; set data.path_column="):
        read(images, "l.parquet", parquet(file=["0.png"]))
    twice = io.BytesIO()
    pq.write_table(pa.table([pa.array(["0.png"]), pa.array(["1.png"])], names=["path", "path"]), twice)
    with pytest.raises(ConfigError, match=r"l.parquet has 2 columns 'path'; give each its own name"):
        read(images, "l.parquet", twice.getvalue())


@pytest.mark.parametrize("name", ["l.csv", "l.jsonl", "l.parquet"])
def test_only_the_columns_for_paths_and_labels_are_kept(images: Path, name: str) -> None:
    table = pa.table({"path": ["0.png", "1.png"], "label": ["a", "b"], "caption": ["x", "y"]})
    content = {
        "l.csv": b"path,label,caption,caption\n0.png,a,x,x\n1.png,b,y,y\n",
        "l.jsonl": "".join(json.dumps(row) + "\n" for row in table.to_pylist()).encode(),
        "l.parquet": parquet(**dict(zip(table.column_names, table.columns, strict=True))),
    }
    (images / name).write_bytes(content[name])
    read_columns = read_table(str(images / name), "path", lambda names: label_columns(names, "path", "label"))
    assert read_columns.columns == {"path": ["0.png", "1.png"], "label": ["a", "b"]}
    assert read_columns.names[2] == "caption"


@pytest.mark.parametrize("name", ["l.tsv", "L.CSV", "l.csv.gz", "l.jsonl.zst", "L.TXT.BZ2"])
def test_a_list_is_known_by_its_ending(images: Path, name: str) -> None:
    (images / name).touch()
    assert source_at(str(images / name)) == {"name": "file_list", "train": str(images / name)}
    assert source_at(f"s3://bucket/{name}?region=x")["name"] == "file_list"


# labels in other columns than one of single labels


def test_a_column_of_0_and_1_for_each_class_is_read(images: Path) -> None:
    split = read(images, "l.csv", "path,dog,cat\n0.png,1,0\n1.png,0.0,1.0\n2.png,1,0\n")
    assert content(split) == ([0, 1, 2], [1, 0, 1])
    assert split.classes == ("cat", "dog")
    assert split.notes == (f"the labels of {images}/l.csv are read from its columns of 0 and 1, one 1 a row: dog, cat",)


def test_columns_with_several_or_no_1_a_row_are_multi_label(images: Path) -> None:
    split = read(images, "l.csv", "path,dog,cat,emu\n0.png,1,1,0\n1.png,0,,-1\n2.png,0,0,0\n")
    assert content(split) == ([0, 1, 2], [[1, 1, 0], [0, -1, -1], [0, 0, 0]])
    assert split.classes == ("dog", "cat", "emu")
    assert split.notes == (
        f"the labels of {images}/l.csv are read as multi-label, from its columns of 1, 0 and -1: dog, cat, emu",
    )


def test_other_columns_are_named_and_nothing_is_labelled(images: Path) -> None:
    split = read(images, "l.csv", "path,width,cat\n0.png,64,1\n1.png,32,0\n")
    assert content(split) == ([0, 1], [-1, -1])
    assert split.notes == (
        f"{images}/l.csv has no column 'label', and nothing is labelled; its columns width, cat: set "
        "data.label_column= (null: unlabelled)",
    )
    for settings in ({"label_column": None}, {"label_column": "cat"}):
        assert read(images, "l.csv", "path,width,cat\n0.png,64,1\n", **settings).notes == ()


def test_a_column_of_the_name_labels_is_read_where_there_is_no_label(images: Path) -> None:
    split = read(images, "l.csv", "path,labels\n0.png,dog\n1.png,cat\n")
    assert content(split) == ([0, 1], [1, 0])
    assert split.notes == (f"the labels of {images}/l.csv are read from its column 'labels'",)
    assert read(images, "l.csv", "path,labels,label\n0.png,dog,x\n").classes == ("x",)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("l.csv", "path,label\n0.png,B|A\n1.png,A\n2.png,\n3.png, C | A |\n"),
        ("l.txt", "0.png\tB|A\n1.png\tA\n2.png\t-1\n3.png\tC|A\n"),
        (
            "l.jsonl",
            '{"path": "0.png", "label": ["A", "B"]}\n{"path": "1.png", "label": "A"}\n{"path": "2.png"}\n'
            '{"path": "3.png", "label": ["C", "A"]}\n',
        ),
    ],
)
def test_cells_with_several_names_are_multi_label(images: Path, name: str, text: str) -> None:
    split = read(images, name, text)
    assert content(split) == ([0, 1, 2, 3], [[1, 1, 0], [1, 0, 0], [-1, -1, -1], [1, 0, 1]])
    assert split.classes == ("A", "B", "C")
    assert split.notes == (
        f"{images}/{name} has several classes per image: its labels are read as multi-label, of 3 classes",
    )


def test_numbers_with_a_stroke_are_classes_by_their_number(images: Path) -> None:
    split = read(images, "l.csv", "path,label\n0.png,0|10\n1.png,2\n")
    assert split.classes == tuple(map(str, range(11)))
    assert np.flatnonzero(split.labels_of(np.array([0]))[0] == 1).tolist() == [0, 10]
    with pytest.raises(ConfigError, match=r"l.csv, line 3: the label 'x' is no whole number"):
        read(images, "l.csv", "path,label\n0.png,0|10\n1.png,2|x\n")


def test_a_stroke_belongs_to_the_name_where_the_user_says_so(images: Path) -> None:
    split = read(images, "l.csv", "path,label\n0.png,A|B\n1.png,A\n", label_names=True)
    assert (split.classes, split.is_multilabel, split.notes) == (("A", "A|B"), False, ())


@pytest.mark.parametrize(
    ("train", "test", "labels"),
    [
        ("path,label\n0.png,A|B\n1.png,C\n", "path,label\n2.png,C\n3.png,\n", [[0, 0, 1], [-1, -1, -1]]),
        ("path,label\n0.png,A|B\n1.png,C\n", "path\n2.png\n", [[-1, -1, -1]]),
        ("path,label\n0.png,1|0\n1.png,2\n", "path,label\n2.png,2\n", [[0, 0, 1]]),
        ("path,A,B\n0.png,1,1\n1.png,0,1\n", "path,B,A\n2.png,1,0\n3.png,1,0\n", [[0, 1], [0, 1]]),
        ("path,A,B,C\n0.png,1,1,0\n1.png,0,1,0\n", "path,C,B\n2.png,1,1\n", [[-1, 1, 1]]),
        ("path,A,B,C\n0.png,1,1,0\n1.png,0,1,1\n", "path,A,B\n2.png,1,0\n3.png,0,1\n", [[1, 0, -1], [0, 1, -1]]),
        ("path,label\n0.png,A|B\n1.png,C\n", "path,A,B\n2.png,1,0\n3.png,1,0\n", [[1, 0, -1], [1, 0, -1]]),
        ("path,A,B\n0.png,1,0\n1.png,0,1\n", "path,B,A\n2.png,1,0\n3.png,0,1\n", [1, 0]),
    ],
)
def test_held_out_labels_follow_the_classes_of_the_training_images(
    images: Path, train: str, test: str, labels: list[Any]
) -> None:
    assert content(held_out(images, train, test))[1] == labels


def test_a_held_out_class_of_no_training_image_is_refused(images: Path) -> None:
    train = "path,label\n0.png,A|B\n"
    with pytest.raises(ConfigError, match=r"test.csv has classes that no training image has: 'C'; use the same names"):
        held_out(images, train, "path,label\n2.png,A|C\n")
    with pytest.raises(ConfigError, match=r"test.csv has labels of shape \[1, 2\], the training images of \[2\]; save"):
        held_out(images, "path,A,B\n0.png,1,0\n1.png,0,1\n", "path,A,B\n2.png,1,1\n")


@pytest.mark.parametrize("labels", ["[[1, 0], [1]]", "[[1, 0], 1]", "[[2, 0], [1, 0]]", '[["a"], [1]]'])
def test_lists_of_labels_that_fit_no_rule_are_refused(images: Path, labels: str) -> None:
    first, second = labels[1:-1].split(", [") if ", [" in labels else labels[1:-1].rsplit(", ", 1)
    second = f"[{second}" if second.endswith("]") else second
    rows = f'{{"path": "0.png", "label": {first}}}\n{{"path": "1.png", "label": {second}}}\n'
    with pytest.raises(
        ConfigError, match=r"l.jsonl.* (has the label 2|mixes lists of numbers)|l.jsonl, line \d: the label"
    ):
        read(images, "l.jsonl", rows)
