"""Anthropic's own client, unchanged, with a local model: answers, streams, two turns with a tool, a count and
an error."""

import json
from typing import Any

import pytest

from tests.contract.clients import RESULT, execute
from tests.contract.conftest import Target

pytestmark = pytest.mark.timeout(480)


@pytest.fixture(scope="module")
def results(cantor: Target) -> dict[str, Any]:
    asked = {"base_url": cantor.base_url.removesuffix("/v1"), "model": cantor.model}
    printed = execute(
        ["vendors/bin/python", "-m", "tests.contract.vendors.messages_sdk"], json.dumps(asked) + "\n"
    )
    found: dict[str, Any] = json.loads(printed[printed.index(RESULT) + len(RESULT) :])
    return found


def said(message: dict[str, Any]) -> dict[str, Any]:
    """What does not change from one answer to the next."""
    content = [{name: value for name, value in block.items() if name != "id"} for block in message["content"]]
    return {
        "content": content,
        "stop_reason": message["stop_reason"],
        "tokens": message["usage"]["output_tokens"],
    }


def test_a_stream_is_the_whole_answer(results: dict[str, Any]) -> None:
    assert said(results["streamed"]) == said(results["whole"])
    assert results["whole"]["content"][0]["text"]
    assert {"message_start", "content_block_delta", "text", "message_stop"} <= {*results["kinds"]}


def test_a_tool_is_called_and_its_result_answered(results: dict[str, Any]) -> None:
    for name in ("called", "called_streamed"):
        block = results[name]["content"][-1]
        assert (block["type"], block["name"]) == ("tool_use", "get_weather") and "city" in block["input"]
        assert results[name]["stop_reason"] == "tool_use"
    assert results["second"]["content"][0]["type"] in ("text", "tool_use")


def test_the_count_is_the_usage_of_the_prompt(results: dict[str, Any]) -> None:
    usage = results["whole"]["usage"]
    assert results["count"] == usage["input_tokens"] + usage["cache_read_input_tokens"]


def test_an_unknown_model_is_the_clients_own_error(results: dict[str, Any]) -> None:
    assert results["missing"]["error"]["type"] == "not_found_error" and results["missing"]["request_id"]
    assert results["missing_id"] == results["missing"]["request_id"]


def test_models_are_listed_and_shown(results: dict[str, Any]) -> None:
    assert results["model"] in results["models"]
