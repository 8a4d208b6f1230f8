import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from raysl import cli
from raysl.cli.arguments import show_json
from raysl.config.config_files import config_names
from raysl.config.load import load_config
from raysl.errors import ConfigError, RunFailed
from raysl.nn.backbones import shapes
from tests.console import Console

PARTS = Path(__file__).parent / "config" / "parts.py"
TINY = f"""\
method: {{name: "{PARTS}:Contrast"}}
backbone: {{name: "{PARTS}:Net", width: 8}}
data: {{name: "{PARTS}:Pictures"}}
optim: {{name: "{PARTS}:Adam"}}
"""


@pytest.fixture
def tiny(tmp_path: Path) -> str:
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY)
    return str(path)


def shell(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "raysl", *arguments], capture_output=True, text=True, check=False)


@pytest.mark.cluster
def test_wrong_input_is_one_message_and_exit_code_2(tiny: str) -> None:
    done = shell("config", tiny, "lr=0.1")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: lr: no such setting; did you mean optim.lr?\n"


@pytest.mark.cluster
def test_help_loads_neither_torch_nor_ray() -> None:
    code = (
        "import sys, raysl.cli\n"
        "sys.argv = ['raysl', '--help']\n"
        "try: raysl.cli.main()\n"
        "except SystemExit as done: assert not done.code\n"
        "print(sorted({'torch', 'ray', 'torchvision', 'pyarrow', 'omegaconf'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[0].startswith("Usage: raysl ")
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["confg"], r"error: No such command 'confg'. Did you mean 'config'\?\n"),
        (["pretrain", "--epochs", "3"], r"error: No such option: --epochs; settings are written key=value, .*\n"),
        (["list", "methods", "--jsn"], r"error: No such option: --jsn.*--json.*\n"),
        (["list", "method"], r"error: no list 'method'; did you mean 'methods'\? Known: methods, .*, weights\n"),
        (
            ["list", "models"],
            r"error: no list 'models'; did you mean 'methods' or 'backbones' or 'weights'\? Known: .*\n",
        ),
        (["simclr"], r"error: No such command 'simclr'. Did you mean `raysl pretrain simclr`\?\n"),
        (["sweep/quickstart"], r"error: .* Did you mean `raysl sweep sweep/quickstart`\?\n"),
        (["help"], r"error: No such command 'help'. Did you mean `raysl --help`\?\n"),
        (["version"], r"error: No such command 'version'. Did you mean `raysl --version`\?\n"),
        (
            ["config", "resnet50"],
            r"error: .*'resnet50'; .* `raysl pretrain simclr backbone.depth=50`; .*\n",
        ),
        (["config", "swin_t"], r"error: .*`raysl pretrain simclr backbone=torchvision backbone.model=swin_t`.*\n"),
        (["config", "simclr", "nofolder"], r"error: 'nofolder' is .*; there is no folder or file 'nofolder'; .*\n"),
        (["config", "gone.yaml"], r"error: no file 'gone.yaml'.*\n"),
        (["report", "views", "simcrl"], r"error: .*'simcrl'.*did you mean 'simclr'.*\n"),
        (["config", "a", "b", "c=1"], r"error: 'b' is neither CONFIG nor a setting; .*\n"),
        ([], r"Usage: raysl .*"),
        (["report"], r"Usage: raysl report .*"),
        (["report", "foo"], r"error: No such command 'foo'\. `raysl report --help` lists the commands\n"),
        (["xyz"], r"error: No such command 'xyz'\. `raysl --help` lists the commands\n"),
        (["convert"], r"error: Missing argument 'SOURCE'; `raysl convert --help` explains it\n"),
        (["runs", "--foo"], r"error: No such option: --foo; `raysl runs --help` lists the options\n"),
    ],
)
def test_misspelt_words_come_with_what_was_meant(console: Console, arguments: list[str], message: str) -> None:
    code, out, err = console(*arguments)
    assert (code, out) == (2, "")
    assert re.fullmatch(message, err, re.DOTALL)


def test_list_alone_shows_the_kinds(console: Console) -> None:
    code, out, err = console("list")
    assert (code, err) == (0, "")
    assert out.splitlines()[0] == "raysl list methods"


def test_each_line_of_a_config_error_is_marked(console: Console, tiny: str) -> None:
    code, _, err = console("config", tiny, "train.epochs=x", "optim.lr=y")
    assert code == 2
    assert [line[:20] for line in err.splitlines()] == ["error: optim.lr: 'y'", "error: train.epochs:"]


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (ConfigError("wrong"), 2, "error: wrong\n"),
        (RunFailed("loss is nan at step 3"), 1, "error: loss is nan at step 3\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (typer.Exit(3), 3, ""),
    ],
)
def test_how_a_command_ends_is_its_exit_code(
    console: Console, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, message: str
) -> None:
    app = typer.Typer(pretty_exceptions_enable=False)

    @app.command()
    def fails() -> None:
        raise error

    monkeypatch.setattr(cli, "app", app)
    assert console() == (code, "", message)


def test_our_own_mistakes_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    app = typer.Typer(pretty_exceptions_enable=False)

    @app.command()
    def fails() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(cli, "app", app)
    monkeypatch.setattr(sys, "argv", ["raysl"])
    with pytest.raises(ZeroDivisionError):
        cli.main()


def test_version_is_told(console: Console) -> None:
    code, out, _ = console("--version")
    assert code == 0
    assert out.startswith("raysl ")


@pytest.mark.thorough
def test_printed_config_loads_back_with_and_without_its_comments(console: Console, tiny: str, tmp_path: Path) -> None:
    code, out, err = console("config", tiny, "optim.lr=1e-3", "name=x")
    assert (code, err) == (0, "")
    assert re.search(r"^  lr: 0.001 +# Peak learning rate", out, re.MULTILINE)
    bare = "".join(re.sub(r"  # .*$", "", line) + "\n" for line in out.splitlines())
    for text in (out, bare):
        (tmp_path / "printed.yaml").write_text(text)
        assert load_config(str(tmp_path / "printed.yaml")) == load_config(tiny, ["optim.lr=1e-3", "name=x"])


@pytest.mark.parametrize(
    "kind", ["methods", "backbones", "sources", "transforms", "benchmarks", "optimizers", "configs"]
)
def test_every_listed_name_has_its_class_and_a_line(
    console: Console, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shapes, "SHAPES", {"resnet": {"resnet18": {"depth": 18}}})  # all are built in test_shapes.py
    code, out, _ = console("list", kind, "--json")
    rows = json.loads(out)
    assert code == 0
    assert rows
    assert all(row["name"] and row["class"] and row["doc"] and "not available" not in row["doc"] for row in rows)
    _, table, _ = console("list", kind)
    assert [line.split()[0] for line in table.splitlines()] == [row["name"] for row in rows]


def test_json_has_null_for_numbers_that_it_has_not(capsys: pytest.CaptureFixture[str]) -> None:
    show_json([{"loss": float("nan"), "step_s": [float("inf"), 0.5]}])
    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail) == [{"loss": None, "step_s": [None, 0.5]}]


@pytest.mark.thorough
def test_the_page_of_views_is_written_and_its_path_printed(console: Console, tmp_path: Path) -> None:
    page = tmp_path / "views.html"
    few = ("data=photos", "data.size=16", "data.num_train=4", "--num", "1", "--epochs", "3", "--out", str(page))
    code, out, err = console("report", "views", "simclr", *few)
    assert (code, out) == (0, f"views       {page}\n"), err
    assert page.read_text().count("<img") == 1 + 3 * 2


@pytest.mark.thorough
def test_every_packaged_run_loads() -> None:
    runs = [name for name in config_names() if not name.startswith(("data/", "digits/", "sweep/"))]
    assert cli.DEFAULT_CONFIG in runs
    for name in runs:
        assert load_config(name).name


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], (None, [])),
        (["simclr"], ("simclr", [])),
        (["optim.lr=0.6"], (None, ["optim.lr=0.6"])),
        (["simclr", "optim.lr=0.6", "data.path=a=b"], ("simclr", ["optim.lr=0.6", "data.path=a=b"])),
        (["runs/a=b/run.yaml", "seed=1"], ("runs/a=b/run.yaml", ["seed=1"])),
        (["train.expect={a/b: [1, 2]}", "data.path="], (None, ["train.expect={a/b: [1, 2]}", "data.path="])),
    ],
)
def test_config_comes_first_and_settings_follow(words: list[str], expected: tuple[str | None, list[str]]) -> None:
    assert cli.split_arguments(words) == expected


@pytest.mark.parametrize("words", [["a", "b"], ["seed=1", "simclr"], ["a", "seed=1", "a"], ["a", "=1"]])
def test_stray_words_are_refused(words: list[str]) -> None:
    with pytest.raises(ConfigError, match="is neither CONFIG nor a setting"):
        cli.split_arguments(words)
