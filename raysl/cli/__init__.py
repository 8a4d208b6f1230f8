"""The `raysl` command.

Sub-commands import what they need when they run, so that `raysl --help` loads neither torch nor Ray.
"""

import os
import re
import sys
import traceback
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from types import TracebackType
from typing import Annotated

import typer

from raysl.cli import report
from raysl.cli.arguments import DEFAULT_CONFIG, refuse_credentials, require_command, split_arguments
from raysl.cli.benchmark import run_benchmark, run_cluster, run_extract
from raysl.cli.convert import run_convert, run_convert_config
from raysl.cli.doctor import run_doctor
from raysl.cli.ingest import run_ingest
from raysl.cli.listing import list_names, show_config
from raysl.cli.neighbours import run_neighbours
from raysl.cli.plan import run_plan
from raysl.cli.pretrain import run_pretrain
from raysl.cli.runs import run_runs
from raysl.cli.sweep import run_sweep
from raysl.errors import ConfigError, RunFailed, Stopped
from raysl.process.code_errors import code_error, is_of_user
from raysl.process.cpus import thread_variables
from raysl.process.signals import end_at_once, end_on_any_signal
from raysl.redact import redact

__all__ = ["DEFAULT_CONFIG", "app", "main", "split_arguments"]

INTERRUPTED = 130

app = typer.Typer(
    help="Self-supervised pre-training and evaluation of image backbones on Ray.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("config")(show_config)
app.command("pretrain")(run_pretrain)
app.command("plan")(run_plan)
app.command("benchmark")(run_benchmark)
app.command("extract")(run_extract)
app.command("neighbours")(run_neighbours)
app.command("cluster")(run_cluster)
app.command("ingest")(run_ingest)
app.command("convert")(run_convert)
app.command("convert-config")(run_convert_config)
app.command("sweep")(run_sweep)
app.command("runs")(run_runs)
app.command("list")(list_names)
app.command("doctor")(run_doctor)
app.add_typer(report.app, name="report")


def main() -> None:
    """Run the command line."""
    run_app(app, "raysl")


def run_app(app: typer.Typer, name: str) -> None:
    """Run a command line of raysl, print errors as single lines, and end the process.

    Exit code 0: done, 1: the run failed, 2: the input is wrong, 130: stopped by Ctrl-C, 143: stopped by SIGTERM.
    """
    os.environ |= thread_variables(os.environ)  # before torch is loaded
    try:
        refuse_credentials(sys.argv[1:])
        code = app(prog_name=name, standalone_mode=False)
    except Stopped as stopped:  # its message has been printed already
        end_on_any_signal(stopped.code)
        if "RAY_ADDRESS" not in os.environ:  # Ray's core may crash where it has started by half
            with suppress(OSError):  # nobody reads it any more
                sys.stdout.flush()
            end_at_once(stopped.code)
        sys.exit(stopped.code)
    except (ConfigError, RunFailed, typer.TyperException) as error:
        message = _usage(error) if isinstance(error, typer.TyperException) else str(error)
        if message:
            typer.echo("\n".join(f"error: {line}" for line in redact(message).splitlines()), err=True)
        code = 2 if isinstance(error, ConfigError) else 1 if isinstance(error, RunFailed) else error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except Exception as error:
        failure = code_error(error) if is_of_user(error) else None
        if failure is None or os.environ.get("RAYSL_VERBOSE") == "1":
            sys.excepthook = _show_traceback  # instead of typer's
            raise
        typer.echo(f"error: {failure}; RAYSL_VERBOSE=1 shows the traceback", err=True)
        code = 1
    if code == INTERRUPTED:
        typer.echo("interrupted", err=True)
    sys.exit(code)


def _usage(error: typer.TyperException) -> str:
    """Return typer's message with the next step: what was probably meant, or the help that says it."""
    message, command = error.format_message(), " ".join(["raysl", *sys.argv[1:2]])
    if unknown := re.match(r"No such command '(.*?)'\.", message):
        above = command if sys.argv[1:2] == ["report"] else "raysl"
        is_alone = message == unknown[0]
        return f"{message}{_way_from(unknown[1]) or (f' `{above} --help` lists the commands' if is_alone else '')}"
    if message.startswith("Missing "):
        return f"{message.removesuffix('.')}; `{command} --help` explains it"
    # a second -- in the message is an option that typer suggests, which is the better hint
    if message.startswith("No such option: --") and "--" not in message.removeprefix("No such option: --"):
        if sys.argv[1:2] in (["runs"], ["list"], ["doctor"]):
            return f"{message}; `{command} --help` lists the options"
        return f"{message}; settings are written key=value, such as train.epochs=3"
    return message


def _way_from(word: str) -> str:
    """Return what to type for a word that is no command: the line of a configuration, or the option of that name."""
    from raysl.config.config_files import packaged_file

    if packaged_file(word):
        return f" Did you mean `raysl {'sweep' if word.startswith('sweep/') else 'pretrain'} {word}`?"
    return f" Did you mean `raysl --{word}`?" if word in ("help", "version") else ""


def _show_traceback(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print the traceback of an unexpected error, of raysl or of a user's component, without credentials."""
    typer.echo(redact("".join(traceback.format_exception(kind, error, trace))), err=True, nl=False)


def _show_version(is_requested: bool) -> None:
    if is_requested:
        try:
            typer.echo(f"raysl {version('raysl')}")
        except PackageNotFoundError:
            typer.echo("raysl (not installed, run from its source)")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _options(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    require_command(context)
