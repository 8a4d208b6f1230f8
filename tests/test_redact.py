"""Credentials in addresses: used, and never shown or stored."""

import base64
import json
import logging
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from aiohttp import ClientResponseError

from raysl import cli
from raysl.checkpoint.backbone import load_checkpoint
from raysl.cli.arguments import refuse_credentials
from raysl.config.docs import annotate
from raysl.config.dump import differences, dump
from raysl.config.load import load_config, load_dumped
from raysl.config.schema import RunConfig
from raysl.data.decode.images import read_images
from raysl.data.sources.file_list import FileList
from raysl.errors import ConfigError, RunFailed
from raysl.plan.setup import Setup
from raysl.redact import redact, redact_uri, redact_variables, without_hidden
from raysl.report.run_page import write_report
from raysl.runs.folder import RunFolder
from raysl.storage.addresses import open_uri
from raysl.storage.reads import read_file
from raysl.sweeps.load import dump_sweep
from raysl.sweeps.schema import SweepConfig
from raysl.train.state import TrainState
from tests.data.samples import png
from tests.report.run import example

KEY = "s3://AKIA7:SeCrEt@bucket/images"
TOKEN = "https://host/images?token=SeCrEt&size=3"


@pytest.mark.parametrize(
    ("uri", "shown", "opened"),
    [
        (KEY, "s3://***@bucket/images", "s3://bucket/images"),
        (TOKEN, "https://host/images?token=***&size=3", "https://host/images?size=3"),
        ("s3://AKIA7:a/b+c@bucket/x", "s3://***@bucket/x", "s3://bucket/x"),
        ("s3://AKIA7:a@b@bucket/x", "s3://***@bucket/x", "s3://bucket/x"),
        ("https://user:pass@host:8080/x", "https://***@host:8080/x", "https://host:8080/x"),
        ("https://ghp7@host/x", "https://***@host/x", "https://host/x"),
        ("sftp://me:pass@host/x", "sftp://me:***@host/x", "sftp://me@host/x"),
        ("abfs://box:key@acc.dfs.core.windows.net/x", "abfs://box:***@acc.dfs.core.windows.net/x", None),
        ("simplecache::s3://K:S@bucket/x", "simplecache::s3://***@bucket/x", "simplecache::s3://bucket/x"),
        ("zip://a.txt::https://u:p@h/a.zip", "zip://a.txt::https://***@h/a.zip", "zip://a.txt::https://h/a.zip"),
        ("s3://b?endpoint_override=http://u:p@h&region=r", "s3://b?endpoint_override=http://***@h&region=r", None),
        *[
            (f"s3://b/x?{name}=S%2FS;S&region=r", f"s3://b/x?{name}=***&region=r", "s3://b/x?region=r")
            for name in ("access_key", "secret_key", "session_token", "token", "password", "sig", "SIG", "api-key")
        ],
        *[
            (f"https://h/x?X-Amz-{name}=S", f"https://h/x?X-Amz-{name}=***", "https://h/x")
            for name in ("Signature", "Credential", "Security-Token")
        ],
    ],
)  # fmt: skip
def test_credentials_are_hidden_and_then_left_out(uri: str, shown: str, opened: str | None) -> None:
    assert redact_uri(uri) == redact_uri(shown) == shown
    assert redact(f"cannot open {uri!r}: no rights; look at ({uri}), {uri}") == (
        f"cannot open '{shown}': no rights; look at ({shown}), {shown}"
    )
    assert opened is None or without_hidden(shown) == opened


@pytest.mark.parametrize(
    "uri",
    [
        "/local/a@b?token=x", "http://host:9000/a@b", "s3://bucket/a:b@c", "gs://anonymous@bucket/x",
        "abfs://box@acc.dfs.core.windows.net/x", "hf://datasets/me/x@rev/a", "file:///x/y?mode=1",
        "s3://b?credential_kind=default&X-Amz-Date=1&tokenizer=2&region=r", "memory://a/b",
    ],
)  # fmt: skip
def test_what_is_no_credential_stays(uri: str) -> None:
    assert redact_uri(uri) == without_hidden(uri) == uri


# the places where addresses are shown or stored


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    words = ["data=image_folder", f"data.path={KEY}", f"storage=file://{tmp_path}?secret_key=SeCrEt", "name=one"]
    return load_config("quickstart", words)


@pytest.mark.thorough
def test_stored_and_printed_settings_hold_no_credentials(config: RunConfig, tmp_path: Path) -> None:
    RunFolder.of(config).claim(config)
    TrainState.create(Setup.of(config, 64, 10)).save(tmp_path / "one" / "checkpoint_000000001", {})
    for text in (
        (tmp_path / "one" / "run.yaml").read_text(),
        (tmp_path / "one" / "checkpoint_000000001" / "run.yaml").read_text(),
        annotate(config),
    ):
        assert "SeCrEt" not in text
        assert "s3://***@bucket/images" in text
        assert f"file://{tmp_path}?secret_key=***" in text
    assert "SeCrEt" not in dump_sweep(SweepConfig(space={"data.path": {"choice": [KEY, TOKEN]}}))
    loaded = load_checkpoint(str(tmp_path / "one"))
    assert loaded.config.storage == f"file://{tmp_path}?secret_key=***"
    assert RunFolder.of(loaded.config).exists("run.yaml"), "and can be opened"
    assert load_checkpoint(str(tmp_path / "one"), config=config).config is config


@pytest.mark.thorough
@pytest.mark.parametrize("path", [KEY, "s3://***@bucket/images", "s3://bucket/images", "s3://OTHER:key@bucket/images"])
def test_credentials_make_no_other_run(config: RunConfig, path: str) -> None:
    RunFolder.of(config).claim(config)
    words = ["data=image_folder", f"data.path={path}", f"storage={config.storage}", "name=one"]
    again = load_config("quickstart", words)
    RunFolder.of(again).claim(again)
    assert differences(load_dumped(dump(config)), again) == []
    other = load_config("quickstart", ["data=image_folder", "data.path=s3://K:SeCrEt@other"])
    assert differences(config, other) == ["data.path: s3://***@bucket/images -> s3://***@other"]


@pytest.mark.thorough
def test_reports_hold_no_credentials(tmp_path: Path) -> None:
    report = example(
        config={"data": {"path": KEY}},
        checkpoint=TOKEN,
        command=f"raysl pretrain data.path={KEY} 'storage={TOKEN}'",
        events=[f"replaced a broken image: '{TOKEN}': truncated"],
    )
    write_report(report, tmp_path)
    for name in ("report.json", "report.html"):
        text = (tmp_path / name).read_text()
        assert "SeCrEt" not in text
        assert "s3://***@bucket/images" in text
        assert "token=***" in text


def test_logs_and_errors_hold_no_credentials(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "raysl"):
        logging.getLogger("raysl").info("reads %s and %r", KEY, TOKEN)
        logging.getLogger("raysl").info("100 %% of %s", 3)
    assert caplog.messages == ["reads s3://***@bucket/images and 'https://host/images?token=***&size=3'", "100 % of 3"]
    for kind in (ConfigError, RunFailed):
        assert str(kind(f"no {KEY}")) == "no s3://***@bucket/images"


@pytest.mark.thorough
def test_the_command_line_shows_no_credentials(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text("raise ZeroDivisionError('at s3://K:SeCrEt@bucket')\n")
    written = tmp_path / "mine.yaml"
    written.write_text(f"base: simclr\ndata: {{path: '{KEY}'}}\n")
    for words, code, shown in (
        (["config", str(written)], 0, "path: s3://***@bucket/images"),
        (["config", str(written), "data.pth=1"], 2, "error: data.pth: no such setting"),
        (["benchmark", "--checkpoint", "foo://$KEY:$SECRET@bucket"], 2, "error: cannot open 'foo://"),
        (
            ["config", f"method.name={tmp_path}/mine.py:Mine"],
            1,
            "error: mine.py, line 1, in <module>: ZeroDivisionError",
        ),
    ):
        monkeypatch.setattr(sys, "argv", ["raysl", *words])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        printed = capsys.readouterr()
        assert (caught.value.code or 0) == code
        assert shown in printed.out + printed.err
        assert "SeCrEt" not in printed.out + printed.err
    monkeypatch.setenv("RAYSL_VERBOSE", "1")
    with pytest.raises(ZeroDivisionError) as mistake:
        cli.main()
    sys.excepthook(mistake.type, mistake.value, mistake.tb)
    printed = capsys.readouterr()
    assert "ZeroDivisionError: at s3://***@bucket" in printed.err
    assert "SeCrEt" not in printed.err


AWS = "leave it out and set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY on each node"
WRITTEN = "write it as $NAME in a configuration file and export NAME where the command runs"


@pytest.mark.parametrize("command", [["pretrain", "simclr"], ["sweep"], ["benchmark"], ["ingest"], ["extract"]])
@pytest.mark.parametrize(
    ("word", "shown", "advice"),
    [
        (f"data.path={KEY}", "data.path=s3://***@bucket/images", AWS),
        (KEY, "s3://***@bucket/images", AWS),
        ("--out=s3://b/x?secret_key=SeCrEt", "--out=s3://b/x?secret_key=***", AWS),
        (f"space.data.path=[s3://bucket/a,{KEY}]", "space.data.path=[s3://bucket/a,s3://***@bucket/images]", AWS),
        (f"data.train={TOKEN}", "data.train=https://host/images?token=***&size=3", WRITTEN),
        ("data.path=s3://b?endpoint_override=http://u:SeCrEt@h", "http://***@h", WRITTEN),
        ("storage=abfs://box:SeCrEt@acc.dfs.core.windows.net/x", "storage=abfs://box:***@acc", "AZURE_CLIENT_SECRET"),
        ("data.path=https://SeCrEt:@host/x", "https://***@host/x", WRITTEN),
        ("data.path=https://me:SeCrEt$X@host/x", "https://***@host/x", WRITTEN),
        ("storage=gs://b/x?access_token=SeCrEt", "access_token=***", "GOOGLE_APPLICATION_CREDENTIALS"),
    ],
)
def test_a_credential_on_the_command_line_is_refused_with_what_to_use_instead(
    command: list[str],
    word: str,
    shown: str,
    advice: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["raysl", *command, word])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    printed = "".join(capsys.readouterr())
    assert caught.value.code == 2
    assert shown in printed
    assert advice in printed
    assert "SeCrEt" not in printed
    assert "job list" not in printed


def test_in_a_job_a_refused_credential_is_said_to_be_in_the_job_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}")
    with pytest.raises(ConfigError, match="Ray's job list shows this one already, so replace it with a new one"):
        refuse_credentials([KEY])


@pytest.mark.parametrize(
    "word",
    [
        "data.path=s3://bucket/x?endpoint_override=http://host:9000&region=r", "data.path=s3://***@bucket/images",
        "data.path=https://host/x?token=$TOKEN", "storage=s3://$KEY:${SECRET}@bucket", "data.path=http://me:$PASSWORD@host/x",
        "storage=sftp://me@host/x",
        "method.name=me/mine.py:Mine", "data.path=/local/a:b@c?token=x", "data.path=https://host/x?token=***&size=3",
        "data.path=s3://bucket/a:b@c", "name=token", "storage=gs://anonymous@bucket/x", "hf://datasets/me/x@rev/a",
        "data.path=abfs://box@acc.dfs.core.windows.net/x", "[s3://one/a,s3://two/b]", "knn.k=[20,200]",
    ],
)  # fmt: skip
def test_what_is_no_credential_may_be_on_the_command_line(word: str) -> None:
    refuse_credentials([word])


def test_variables_are_hidden_by_their_name_in_uris_and_in_the_settings_of_a_job() -> None:
    names = ("RAY_AUTH_TOKEN", "RAY_REDIS_PASSWORD", "RAYSL_SECRET", "TORCH_API_KEY", "RAY_credentials", "NCCL_PASSWD")
    assert redact_variables(dict.fromkeys(names, "SeCrEt")) == dict.fromkeys(names, "***")
    plain = {"RAY_AUTH_MODE": "token", "RAY_ADDRESS": "10.0.0.1:6379", "RAY_A": "{not json", "RAY_SECRET": ""}
    assert redact_variables(plain) == plain
    job = {"runtime_env": {"env_vars": {"AWS_SECRET_ACCESS_KEY": "SeCrEt", "A": KEY}, "pip": ["x"]}, "n": 1}
    (text,) = redact_variables({"RAY_JOB_CONFIG_JSON_ENV_VAR": json.dumps(job)}).values()
    job["runtime_env"] = {"env_vars": {"AWS_SECRET_ACCESS_KEY": "***", "A": "s3://***@bucket/images"}, "pip": ["x"]}
    assert json.loads(text) == job


# a website that asks who one is


class Guarded(BaseHTTPRequestHandler):
    """Serves a few files, from memory, to one user."""

    files: ClassVar[dict[str, bytes]] = {}
    user: ClassVar[str] = base64.b64encode(b"me:SeCrEt").decode()

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        content = self.files.get(self.path.partition("?")[0])
        is_known = self.headers["Authorization"] == f"Basic {self.user}"
        self.send_response(401 if not is_known else 200 if content is not None else 404)
        self.send_header("Content-Length", str(len(content or b"")))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content or b"")

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def website(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr("raysl.storage.reads.FIRST_WAIT_S", 0.0)
    monkeypatch.setattr(Guarded, "files", {"/list.txt": b"a.png 0\nb.png 1\n", "/a.png": png(1), "/b.png": b"broken"})
    server = HTTPServer(("127.0.0.1", 0), Guarded)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.cluster
def test_live_credentials_open_what_stored_settings_do_not(website: str) -> None:
    live = f"http://me:SeCrEt@{website}/a.png"
    assert read_file(*open_uri(live)) == png(1)
    with pytest.raises(ClientResponseError, match="401"):
        read_file(*open_uri(redact_uri(live)))


@pytest.mark.cluster
def test_a_list_on_a_website_has_one_order_whoever_reads_it_and_names_no_one(website: str) -> None:
    lists = (f"http://me:SeCrEt@{website}/list.txt", f"http://me:SeCrEt@{website}/list.txt?token=SeCrEt")
    first, second = (FileList(FileList.Config(train=train)).required("train") for train in lists)
    assert first.fingerprint == second.fingerprint
    read = read_images(second, np.arange(2))
    assert len(read.pictures[0].images) == 2
    (corrupt,) = read.corrupt
    assert corrupt.startswith(f"http://***@{website}/b.png?token=***: ")
