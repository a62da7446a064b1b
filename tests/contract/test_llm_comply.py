"""llm-comply, unchanged: its profiles of chat, of Responses and of the Messages API pass, but for what
cantor cannot do and says so."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.contract.conftest import Target

COMMAND = Path(sys.executable).with_name("llm-comply")

pytestmark = pytest.mark.timeout(480)
"""The first of them starts a server too."""


def comply(target: Target, *words: str, profile: str = "openai-chat") -> str:
    """What it prints of the profile; it ends with 1 when a case failed."""
    asked = ("-u", target.base_url, "-k", "none", "-m", target.model, "--format", profile, *words)
    env = os.environ | {"COLUMNS": "400", "NO_COLOR": "1"}
    done = subprocess.run(
        [COMMAND, "run", *asked], env=env, capture_output=True, text=True, timeout=400, check=False
    )
    assert done.returncode == 1 and not done.stderr
    return done.stdout


def test_every_case_passes_but_image_and_reasoning(cantor: Target) -> None:
    results = json.loads(comply(cantor, "--json"))["results"]
    others = {case["id"]: case["errors"] for case in results if case["status"] != "passed"}
    assert len(results) == 9
    assert {name: errors[0] for name, errors in others.items()} == {
        "chat-image-input": "HTTP 400 (expected [200])",
        "chat-reasoning-summary": "reasoning requires o-series or gpt-5 models",
    }


def test_the_image_is_refused_by_its_name(cantor: Target) -> None:
    shown = comply(cantor, "--filter", "chat-image-input", "--verbose")
    error = json.loads(shown[shown.index("Response: ") + len("Response: ") : shown.rindex("}") + 1])["error"]
    assert (error["code"], error["param"]) == ("unsupported_parameter", "messages[0].content[1].image_url")


def test_every_case_of_the_responses_api_passes_but_the_image(cantor: Target) -> None:
    results = json.loads(comply(cantor, "--json", profile="open-responses"))["results"]
    assert {case["id"]: case["status"] for case in results if case["status"] != "passed"} == {
        "image-input": "failed",
        "reasoning-summary": "skipped",
    }
    assert len(results) == 13


def test_every_case_of_the_messages_api_passes_but_the_image(cantor: Target) -> None:
    results = json.loads(comply(cantor, "--json", profile="anthropic"))["results"]
    assert {case["id"]: case["status"] for case in results if case["status"] != "passed"} == {
        "anth-image-input": "failed",
        "anth-thinking-display": "skipped",
    }
    assert len(results) == 9
