"""A server whose processes get no time, or find half a package: callers wait or are told to come again, and
no answer blames them or says that the engine failed."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest

from tests.support.server import Server, serving
from tests.support.waiting import wait_until

STANDIN = """
import sys
from pathlib import Path
if Path({flag!r}).exists():
    raise ImportError("cannot import name 'LLMatcher'")
sys.path.remove({place!r})
del sys.modules["llguidance"]
import llguidance
"""
"""A library that cannot be imported while a file is there."""

TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


def asked(server: Server, **more: object) -> httpx2.Response:
    message = {"role": "user", "content": "What is the weather in Paris?"}
    with server.client() as client:
        return client.post(
            "/v1/chat/completions",
            json={"model": "cantor", "messages": [message], "max_tokens": 40, "temperature": 0} | more,
        )


@pytest.fixture
def flag(tmp_path: Path) -> Path:
    return tmp_path / "being replaced"


@pytest.fixture
def replaced(tmp_path: Path, flag: Path) -> Iterator[Server]:
    """A server that runs while its package is being replaced, as long as the flag is there."""
    (tmp_path / "llguidance.py").write_text(STANDIN.format(flag=str(flag), place=str(tmp_path)))
    env = {"PYTHONPATH": str(tmp_path), "ANTIPHON_ENGINE_RESTART_PATIENCE": "60"}
    with serving("--log-level", "warning", env=env) as server:
        yield server


def test_callers_wait_and_are_answered_during_a_package_upgrade(replaced: Server, flag: Path) -> None:
    """The process that checks constraints is started by the first that has one, from what is on disk then."""
    assert asked(replaced).status_code == 200
    flag.touch()

    def finish() -> None:
        wait_until(lambda: replaced.records("checker_not_started"), 60, "a start fails")
        flag.unlink()

    with ThreadPoolExecutor(1) as beside:
        finished = beside.submit(finish)
        answer = asked(replaced, tools=[TOOL])
        finished.result()
    assert answer.status_code == 200, answer.text
    assert "LLMatcher" in str(replaced.records("checker_not_started")[0]["problem"])
