"""README's own words: its code runs, its request works, its commands and options exist."""

import json
import re
import subprocess
import sys
from pathlib import Path

import httpx2

from tests.support.commands import run_command
from tests.support.server import Server

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def test_its_python_streams_an_answer(server: Server) -> None:
    (code,) = blocks("python")
    code = code.replace("http://127.0.0.1:8000", server.url)
    ran = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=180
    )
    assert len(ran.stdout.split()) >= 3 and not ran.stderr


def test_its_request_works_as_it_is_printed(server: Server) -> None:
    (body,) = re.findall(r"-d '(\{.*?\})'", README)
    answer = httpx2.post(f"{server.url}/v1/chat/completions", json=json.loads(body), timeout=180)
    assert answer.status_code == 200 and answer.json()["choices"][0]["message"]["content"]


def test_its_comparison_names_tests_that_exist() -> None:
    found = re.findall(r"\| \[(test_\w+)\]\((tests/[\w/.]+)\) \|$", README, re.MULTILINE)
    rows = README.partition("## Beside others")[2].partition("\n## ")[0].count("\n| ") - 1
    assert len(found) == rows > 3
    for name, path in found:
        assert re.search(rf"^(async )?def {name}\(", (ROOT / path).read_text("utf-8"), re.MULTILINE), name


def test_its_make_targets_and_options_exist() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    targets = set(re.findall(r"(?:`|^)make ([a-z]+)", README, re.MULTILINE))
    assert {"serve", "test", "check", "soak"} <= targets
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)
    shown = run_command("serve", "--help", cwd=ROOT, env={"COLUMNS": "200"})
    options = set(re.findall(r"`(--[a-z-]+)", README))
    assert options and all(option in shown.stdout for option in options)
