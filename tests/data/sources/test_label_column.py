from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raysl.data.sources.class_names import parse_labels
from raysl.data.sources.file_list import FileList
from raysl.errors import ConfigError
from tests.data.samples import png


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        (["0", "1", "1.0", "2", "10", "nan"], [0, 1, 1, 2, 10, -1]),
        ([0, 1.0, "1", "01", "+1", " 1 ", "1."], [0, 1, 1, 1, 1, 1, 1]),
        (["3", "", None, float("nan"), "NaN", "null", "NULL", "-1", -1, "-1.0", " "], [3, *[-1] * 10]),
        (["", "nan"], [-1, -1]),
        ([], []),
    ],
)
def test_a_column_of_numbers_has_one_class_for_each_number(values: list[Any], labels: list[int]) -> None:
    parsed = parse_labels(values, "l.csv")
    assert parsed.dtype == np.int64
    assert parsed.tolist() == labels


def test_a_column_of_names_has_no_class_of_what_is_unlabelled() -> None:
    parsed = parse_labels(["dog", "", "nan", "NULL", None, " cat ", "-1", "3d", "nano"], "l.csv")
    assert parsed.tolist() == ["dog", "", "", "", "", "cat", "", "3d", "nano"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["0", "1", "unknown"], "l.csv, line 4: the label 'unknown' is no whole number, but line 2 has the number '0'"),
        (["0", "1.5"], "l.csv, line 3: the label '1.5' is no whole number, but line 2"),
        (["1.5", "2.5"], "l.csv, line 2: the label '1.5' is no whole number; leave"),
        ([0.5], "l.csv, line 2: the label 0.5 is no whole number; leave"),
        (["cat", "", "7"], "l.csv, line 2: the label 'cat' is no whole number, but line 4 has the number '7'"),
        (["1e3"], "l.csv, line 2: the label '1e3' is no whole number"),
        (["9" * 5000], "is no whole number"),
        (["0", "99999999999999999999"], "l.csv has the label 99999999999999999999; the largest is 10,000,000"),
        (["0", "-2"], "l.csv has the label -2; labels are 0, 1, ..., and -1 is unlabelled"),
        ([True], "l.csv, line 2: the label True; write whole numbers or names"),
        ([{"a": 1}], "l.csv, line 2: the label {'a': 1}; write whole numbers or names"),
    ],
)
def test_other_values_are_refused_with_their_line(values: list[Any], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_labels(values, "l.csv", range(2, 2 + len(values)))
    assert message in str(raised.value)


def test_the_message_names_the_row_and_what_to_do() -> None:
    with pytest.raises(ConfigError, match=r"^a.parquet, row 2: the label 'x' .*, or give data.classes= if all"):
        parse_labels(["0", "x"], "a.parquet", remedy="give data.classes=")


def test_numbers_are_names_where_the_user_says_so() -> None:
    parsed = parse_labels(["0", "A", "1.5", 7, 2.0, "nan", ""], "l.csv", as_names=True)
    assert parsed.tolist() == ["0", "A", "1.5", "7", "2", "", ""]


@pytest.mark.parametrize(("name", "row"), [("l.csv", "{}.png,{}\n"), ("l.txt", "{}.png\t{}\n")])
def test_lists_of_digits_and_letters_are_read_as_names_on_request(tmp_path: Path, name: str, row: str) -> None:
    labels = ["0", "A", "1", "1.0"]
    for number in range(4):
        (tmp_path / f"{number}.png").write_bytes(png(number))
    head = "path,label\n" if name == "l.csv" else ""
    (tmp_path / name).write_text(head + "".join(row.format(*pair) for pair in enumerate(labels)))
    config = {"train": str(tmp_path / name)}
    with pytest.raises(ConfigError, match=rf"{name}, line \d: the label 'A' is no whole .*set data.label_names=true"):
        FileList(FileList.Config(**config)).required("train")
    split = FileList(FileList.Config(**config, label_names=True)).required("train")
    assert split.classes == ("0", "1", "1.0", "A")
    assert split.labels_of(np.arange(4)).tolist() == [0, 3, 1, 2]
