"""The engine that the documentation writes keeps the contract, and serves."""

import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import httpx2
import pytest

from antiphon_testing import check_token_engine

PAGE = Path(__file__).parents[2] / "docs" / "writing-a-token-engine.md"


@pytest.fixture
def page(tmp_path: Path) -> Path:
    """The page's code as the module that it says it is."""
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 3
    path = tmp_path / "bigram.py"
    path.write_text("\n\n".join(blocks))
    return path


@pytest.fixture
def module(page: Path) -> ModuleType:
    loaded = ModuleType("bigram")
    exec(compile(page.read_text(), str(page), "exec"), loaded.__dict__)
    return loaded


async def test_it_keeps_the_contract(module: ModuleType) -> None:
    await check_token_engine(module.BigramEngine())


def test_it_serves_over_http(page: Path) -> None:
    command = [sys.executable, "-c", "import sys, bigram; sys.exit(bigram.serve(0))"]
    environ = os.environ | {"PYTHONPATH": str(page.parent)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            body = {"model": "bigram", "prompt": "the c", "max_tokens": 8, "temperature": 0}
            answer = httpx2.post(f"{url}/v1/completions", json=body, timeout=30).json()
        finally:
            process.terminate()
    assert answer["usage"]["completion_tokens"] == 8
    assert answer["choices"][0]["text"].isprintable()
