"""`--cpu-seconds N` prints the CPU seconds of the N costliest test files and of the N costliest tests.

A figure is the CPU time of a test's process and its descendants since the end of the previous test. A server
that several tests share counts in each test that it works for.
"""

import os
from collections import defaultdict
from collections.abc import Generator

import psutil
import pytest

from tests.support.processes import list_children

__all__ = ["pytest_addoption", "pytest_configure"]


class CpuSeconds:
    """Each worker measures its tests; the main process adds up the reported figures."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._before: float | None = None
        """The CPU time when the previous test ended."""
        self._tests = defaultdict[str, float](float)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self) -> None:
        self._before = _measure() if self._before is None else self._before

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if report.when == "teardown" and self._before is not None:
            used = _measure()
            report.user_properties.append(("cpu_seconds", used - self._before))
            self._before = used
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._tests[report.nodeid] += sum(
            float(str(value)) for name, value in report.user_properties if name == "cpu_seconds"
        )

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        files = defaultdict[str, float](float)
        for test, seconds in self._tests.items():
            files[test.partition("::")[0]] += seconds
        for title, seconds_by_name in (("files", files), ("tests", self._tests)):
            terminalreporter.section(f"CPU seconds of the costliest {title}")
            ranked = sorted(seconds_by_name.items(), key=lambda item: -item[1])
            for name, seconds in ranked[: self._count]:
                terminalreporter.line(f"{seconds:8.2f} {name}")
        terminalreporter.line(f"{sum(files.values()):8.2f} in all tests")


def pytest_addoption(parser: pytest.Parser) -> None:
    help_text = "print the CPU seconds of the N costliest files and tests"
    parser.addoption("--cpu-seconds", type=int, default=0, metavar="N", help=help_text)


def pytest_configure(config: pytest.Config) -> None:
    if count := config.getoption("cpu_seconds"):
        config.pluginmanager.register(CpuSeconds(count))


def _measure() -> float:
    """Returns the CPU seconds of this process and its descendants, including ended children."""
    return sum(os.times()[:4]) + sum(map(_measure_family, list_children(psutil.Process())))


def _measure_family(process: psutil.Process) -> float:
    """Returns the CPU seconds of a process and its descendants; of one that has ended 0."""
    try:
        own = float(sum(process.cpu_times()[:4]))
    except psutil.NoSuchProcess:
        return 0.0
    return own + sum(map(_measure_family, list_children(process)))
