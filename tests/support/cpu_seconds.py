"""`--cpu-seconds N` prints the CPU seconds of the N costliest test files and of the N costliest tests.

A figure is what the process of a test and all its descendants used since the end of the test
before: a server of several tests counts for each test that it works for.
"""

import os
from collections import defaultdict
from collections.abc import Generator

import psutil
import pytest

__all__ = ["pytest_addoption", "pytest_configure"]


class CpuSeconds:
    """A worker measures its tests; the process that prints adds up what their reports say."""

    def __init__(self, shown: int) -> None:
        self._shown = shown
        self._before: float | None = None
        """What was used when the test before ended. To look is slow where many processes run."""
        self._tests = defaultdict[str, float](float)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self) -> None:
        self._before = _used() if self._before is None else self._before

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if report.when == "teardown" and self._before is not None:
            used = _used()
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
        for title, counted in (("files", files), ("tests", self._tests)):
            terminalreporter.section(f"CPU seconds of the costliest {title}")
            ranked = sorted(counted.items(), key=lambda each: -each[1])
            for name, seconds in ranked[: self._shown]:
                terminalreporter.line(f"{seconds:8.2f} {name}")
        terminalreporter.line(f"{sum(files.values()):8.2f} in all tests")


def pytest_addoption(parser: pytest.Parser) -> None:
    words = "print the CPU seconds of the N costliest files and tests"
    parser.addoption("--cpu-seconds", type=int, default=0, metavar="N", help=words)


def pytest_configure(config: pytest.Config) -> None:
    if shown := config.getoption("cpu_seconds"):
        config.pluginmanager.register(CpuSeconds(shown))


def _used() -> float:
    """CPU seconds of this process, of its descendants, and of those that were waited for."""
    return sum(os.times()[:4]) + sum(map(_used_by, psutil.Process().children(recursive=True)))


def _used_by(process: psutil.Process) -> float:
    """CPU seconds of a running process and of its children that ended; none where it ends in this moment."""
    try:
        return float(sum(process.cpu_times()[:4]))
    except psutil.NoSuchProcess:
        return 0.0
