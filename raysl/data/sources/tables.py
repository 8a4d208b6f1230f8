"""Tables in files: the columns of .csv, .tsv, .jsonl and .parquet."""

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from raysl.errors import ConfigError
from raysl.storage.whole import plain_name, read_whole

TABLES = (".csv", ".tsv", ".jsonl", ".parquet", ".pq")
DELIMITERS = (",", ";", "\t")

Choice = Callable[[Sequence[str]], Sequence[str]]
"""Function of the names of all columns that returns those to read; names that no column has are left out."""


@dataclass(frozen=True)
class Table:
    """Some columns of a table.

    Args:
        names: names of all its columns.
        columns: the values of the columns that were read.
        lines: line of each row; None of a format without lines.
    """

    uri: str
    names: tuple[str, ...]
    columns: Mapping[str, list[Any]]
    lines: list[int] | None

    def where(self, row: int) -> str:
        """Return the file and the line of a row, for messages."""
        return f"{self.uri}, row {row + 1}" if self.lines is None else f"{self.uri}, line {self.lines[row]}"

    def column(self, name: str, setting: str) -> list[Any]:
        """Return the values of a column; none of a table without rows."""
        if not self.names:
            return []
        if name not in self.columns:
            names = ", ".join(self.names)
            raise ConfigError(f"{self.uri} has no column {name!r}; its columns: {names}; set {setting}")
        values = self.columns[name]
        for row, value in enumerate(values):
            if isinstance(value, str) and ("\n" in value or "\r" in value):
                broken = f"{name!r} {value[:40]!r} has a line break"
                raise ConfigError(f"{self.where(row)}: {broken}; is a quote missing, or too many?")
        return values


def read_table(uri: str, key: str, choose: Choice) -> Table:
    """Read some columns of a table.

    Args:
        uri: address of a file that ends in one of TABLES, and maybe in .gz, .bz2 or .zst behind it.
        key: name of a column; the delimiter of a .csv or .tsv is the one that gives its header such a column.
        choose: function from the names of all columns to those to read. Of a .jsonl the columns are the fields of the
            first line.
    """
    kind = plain_name(uri)
    if kind.endswith((".parquet", ".pq")):
        return _read_parquet(uri, choose)
    if kind.endswith(".jsonl"):
        return _collect(uri, _json_rows(uri), choose)
    return _collect(uri, _csv_rows(uri, key, choose), choose)


def read_text(uri: str, remedy: str = "save it as UTF-8") -> str:
    """Read a text in UTF-8; one with a NUL is refused.

    Args:
        remedy: action of the user that mends the file, for messages.
    """
    content = read_whole(uri)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        reason = f"{error.reason} at byte {error.start}"
        raise ConfigError(f"{uri} is not a UTF-8 text: {reason}; {remedy}") from error
    if "\0" in text:
        line = text[: text.index("\0")].count("\n") + 1
        raise ConfigError(f"{uri}, line {line}: the character NUL, which no text has; {remedy}")
    return text


def read_lines(uri: str, remedy: str = "save it as UTF-8") -> Iterator[tuple[int, str]]:
    """Yield the numbers, from 1, and contents of the lines of a text that are not blank; arguments of `read_text`."""
    for number, line in enumerate(io.StringIO(read_text(uri, remedy), newline=None), 1):
        if line.strip():
            yield number, line.removesuffix("\n")


def _collect(uri: str, rows: Iterable[tuple[int, Mapping[str, Any]]], choose: Choice) -> Table:
    names: dict[str, None] = {}
    columns: dict[str, list[Any]] = {}
    lines: list[int] = []
    for line, row in rows:
        if not names:
            columns = {name: [] for name in choose(list(row))}
        names |= dict.fromkeys(row)
        lines.append(line)
        for name, values in columns.items():
            values.append(row.get(name))
    return Table(uri, tuple(names), {name: columns[name] for name in columns if name in names}, lines)


def _csv_rows(uri: str, key: str, choose: Choice) -> Iterator[tuple[int, Mapping[str, str]]]:
    """Yield the first line and the values of each row; a wrong number of values or a stray quote is an error."""
    text = read_text(uri)
    delimiter = _delimiter(text, key, "\t" if plain_name(uri).endswith(".tsv") else ",")
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True, strict=True)
    header: list[str] = []
    line = 1
    try:
        for row in reader:
            # empty lines are skipped; but a quoted empty text is a row where the table has one column
            if any(map(str.strip, row)) or len(row) > 1 or (row and len(header) == 1):
                if not header:
                    header = [name.strip() for name in row]
                    _check_names(uri, header, choose(header))
                elif len(row) == len(header):
                    yield line, dict(zip(header, row, strict=True))
                else:
                    raise ConfigError(
                        f"{uri}, line {line}: {len(row)} values for the {len(header)} columns of the header; quote a "
                        f"value that contains {delimiter!r}, and leave none out"
                    )
            # a quoted value may span several lines, so rows are not counted for this
            line = reader.line_num + 1
    except csv.Error as error:
        raise ConfigError(
            f"{uri}, line {line}: {error}; a quote begins and ends a whole value, and is doubled inside it"
        ) from error


def _check_names(uri: str, names: Sequence[str], chosen: Sequence[str]) -> None:
    repeated = next((name for name in chosen if name and names.count(name) > 1), None)
    if repeated is not None:
        raise ConfigError(f"{uri} has {names.count(repeated)} columns {repeated!r}; give each its own name")


def _delimiter(text: str, key: str, default: str) -> str:
    """Return the character between the columns of a header that has the column `key`."""
    header = re.search(r"[^\r\n]+", text)
    for delimiter in (default, *DELIMITERS):
        names = next(csv.reader([header[0]], delimiter=delimiter, skipinitialspace=True)) if header else []
        if key in (name.strip() for name in names):
            return delimiter
    return default


def _json_rows(uri: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for number, line in read_lines(uri):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{uri}, line {number}: not JSON: {str(error).partition(': line')[0]}") from error
        if not isinstance(row, dict):
            raise ConfigError(f'{uri}, line {number}: {line[:40]!r} is not an object such as {{"path": "a.jpg"}}')
        try:
            json.dumps(row, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            half = f"{line[:40]!r} has half of a character"
            raise ConfigError(f"{uri}, line {number}: {half}; write the whole one") from error
        yield number, row


def _read_parquet(uri: str, choose: Choice) -> Table:
    content = read_whole(uri)
    try:
        # not read_table: with torch loaded, its threads may abort at exit
        file = pq.ParquetFile(pa.BufferReader(content))
        names = file.schema_arrow.names
        chosen = [name for name in choose(names) if name in names]
        table = file.read(columns=chosen)
        columns = {name: column.to_pylist() for name, column in zip(table.column_names, table.columns, strict=True)}
    except (pa.ArrowException, OSError, ValueError) as error:
        raise ConfigError(f"{uri} is no whole Parquet file: {str(error).splitlines()[0]}; make it again") from error
    _check_names(uri, names, chosen)
    return Table(uri, tuple(names), columns, None)
