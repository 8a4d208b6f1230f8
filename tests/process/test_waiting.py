"""What a start is waiting for is said from its first second on."""

import logging
import os
import pty
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import raysl
from raysl.process.screen import duration, logging_shown
from raysl.process.waiting import Waiting, waiting

ROOT = Path(raysl.__path__[0]).parent
LIVE = """
import logging
from raysl.train.progress import ProgressView
from raysl.process.waiting import waiting
with waiting() as waits:
    waits.enter("reading the dataset")
    waits.enter("starting Ray")
    logging.getLogger("raysl").info("saved checkpoint_000000005")
    waits._live.refresh()
    waits.end()
    view = ProgressView(40, 5)
    view.show(10, {"loss": 1.5, "step_s": 2.0})
    logging.getLogger("raysl").info("saved checkpoint_000000010")
    view.bar.refresh()
    view.close()
print("done")
"""


def on_a_terminal(code: str) -> str:
    """What a child process writes to its terminal, its standard error; its standard output is another one's."""
    master, slave = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "200", "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=slave, stdout=subprocess.PIPE, stderr=slave, env=environment
    )
    os.close(slave)
    seen = b""
    while True:
        try:
            part = os.read(master, 4096)
        except OSError:  # the other side is closed
            break
        if not part:
            break
        seen += part
    os.close(master)
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, b"done\n"), seen.decode()
    return seen.decode()


def test_a_log_gets_a_line_for_each_thing_that_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "raysl")
    with waiting() as waits, waiting(show=False) as inner:
        assert inner is waits
        for what in ("reading the dataset", "starting Ray", "starting Ray", "starting workers"):
            inner.enter(what)
    waits.enter("too late")
    words = [re.sub(r"^ *\d+\.\d s  ", "", message) for message in caplog.messages]
    assert words == ["reading the dataset ...", "starting Ray ...", "starting workers ..."]
    assert all(re.match(r" *\d+\.\d s  ", message) for message in caplog.messages)


def test_what_takes_long_is_said_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "raysl")
    said = threading.Event()

    class Heard(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "still" in record.getMessage():
                said.set()

    heard = Heard()
    logging.getLogger("raysl").addHandler(heard)
    waits = Waiting(0.0, still_s=0.01)
    waits.enter("starting workers")
    assert said.wait(30)
    waits.end()
    logging.getLogger("raysl").removeHandler(heard)
    assert caplog.messages[1].endswith("still starting workers ...")


def test_how_much_is_done_and_how_long_the_rest_takes_is_said_again_with_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "raysl")
    waits = Waiting(0.0, still_s=3600.0)
    waits.enter("computing features of 1,512 test images")
    waits._entered -= 100.0
    waits.count(512, 1512, before=12)
    assert str(waits._line()).startswith("computing features of 1,512 test images, 512 of 1,512, about 3 min left ... ")
    waits.count(1512, 1512, before=12)
    assert "1,512 of 1,512 ..." in str(waits._line())
    waits.enter("writing")
    assert str(waits._line()).startswith("writing ...")
    waits.end()


def test_nothing_is_said_where_nothing_is_to_be_shown(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "raysl")
    with waiting(show=False) as waits:
        waits.enter("starting Ray")
    assert caplog.messages == []


@pytest.mark.cluster
def test_on_a_terminal_one_line_lives_and_log_lines_stand_above_it_whole() -> None:
    seen = on_a_terminal(LIVE)
    assert "starting Ray ... 0 s (0 s in all)" in seen
    plain = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line).rstrip("\r") for line in re.split(r"\n|\r(?!\n)", seen)]
    assert "saved checkpoint_000000005" in plain
    assert "saved checkpoint_000000010" in plain
    assert any(re.fullmatch(r"step 10/40 .*loss 1\.5000.*left 60 s\s*", line) for line in plain), plain
    assert seen.count("\x1b[?25h") == seen.count("\x1b[?25l"), "the cursor is shown again"


@pytest.mark.cluster
def test_the_command_says_that_it_loads_libraries_before_it_does() -> None:
    code = "import sys; sys.modules['torch'] = None; sys.argv = ['raysl', 'pretrain']; import raysl.cli as c; c.main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert re.match(r" *\d+\.\d s  loading libraries \.\.\.\n", done.stderr), done.stderr
    assert "torch" in done.stderr, "which it could not load"


def test_a_script_sees_the_lines_of_the_command_unless_it_has_a_log_level_of_its_own(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = logging.getLogger("raysl")
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    monkeypatch.setattr(log, "level", logging.NOTSET)
    log.info("before")
    with logging_shown():
        log.info("step 1/40")
    log.info("after")
    log.setLevel(logging.ERROR)
    with logging_shown():
        log.info("silenced")
    assert capsys.readouterr().err == "step 1/40\n"


def test_seconds_are_told_as_people_do() -> None:
    assert [duration(seconds) for seconds in (0.4, 89, 95, 3599, 11_100)] == [
        "0 s",
        "89 s",
        "2 min",
        "1 h 00 min",
        "3 h 05 min",
    ]


@pytest.mark.cluster
def test_what_a_shell_did_before_is_no_part_of_a_start() -> None:
    code = "import time; from raysl.process.waiting import process_start; print(time.time() - process_start())"
    shell = f'sleep 2; exec "{sys.executable}" -c "{code}"'
    assert float(subprocess.run(["sh", "-c", shell], capture_output=True, text=True, check=True).stdout) < 2
