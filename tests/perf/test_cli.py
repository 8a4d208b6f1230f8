"""The options of `python -m perf`."""

import re
from collections.abc import Callable, Iterable
from inspect import signature

import pytest

from perf import benchmark, cli, cores, loss_cases, options, sweep


@pytest.mark.parametrize(
    ("command", "names"),
    [
        (cli.benchmark, benchmark.CASES),
        (cli.cores, cores.case_names()),
        (cli.loss, loss_cases.CASES),
        (cli.options, options.option_names()),
        (cli.sweep, sweep.CASES),
    ],
)
def test_the_help_of_only_shows_a_name_that_there_is(command: Callable[..., None], names: Iterable[str]) -> None:
    (option,) = signature(command).parameters["only"].annotation.__metadata__
    example = re.search(r"such as '?(.+?)'?;", option.help)
    assert example is not None
    assert example[1] in names
