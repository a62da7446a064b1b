"""An error names the field as its caller sent it, whatever the dialect makes of it."""

from typing import Any

import pytest

from antiphon.dialects.common.field_table import FieldSupport
from antiphon.dialects.common.fields import TABLES as OPENAI
from antiphon.dialects.empower.fields import TABLES as EMPOWER
from antiphon.dialects.fireworks.fields import TABLES as FIREWORKS
from antiphon.dialects.jamai.fields import TABLES as JAMAI
from antiphon.dialects.jamai.fields import JamaiScope
from antiphon.dialects.sgp.fields import TABLES as SGP
from antiphon.dialects.sgp.fields import SgpScope
from antiphon_testing import Script, ScriptedEmbeddingEngine, ScriptedTokenEngine, scripted_info
from tests.support.http_server import CHAT, HELLO, PROMPT, TEXT, serving_tokens
from tests.support.reasoning_models import NOT_AT_ALL, OPENING, QWEN

FIREWORKS_CHAT, FIREWORKS_TEXT = (
    f"/fireworks/inference/v1{path}" for path in ("/chat/completions", "/completions")
)
EMPOWER_CHAT, DEPLOY = (f"/empower/api/v1{path}" for path in ("/chat/completions", "/lora"))
VECTORS = {"model": "e", "input": "a"}
LORA = {"model_name": "me/mine", "model_source": "HF_HUB", "name": "mine"}
TOOL = {"type": "function", "function": {"name": "f"}}
NAMED: dict[str, dict[str, Any]] = {
    CHAT: HELLO,
    TEXT: PROMPT,
    "/v1/embeddings": VECTORS,
    FIREWORKS_CHAT: HELLO,
    FIREWORKS_TEXT: PROMPT,
    EMPOWER_CHAT: HELLO,
    SgpScope.CHAT: HELLO,
    SgpScope.TEXT: PROMPT,
    DEPLOY: LORA,
    JamaiScope.CHAT: HELLO,
    JamaiScope.EMBEDDINGS: VECTORS,
}
WRONG: Any = [[]]
"""A list with an empty list in it: nothing takes that, but for one field."""
OTHER = {"images": [7]}


@pytest.fixture
async def plain():
    """A server whose model does not reason."""
    async with serving(NOT_AT_ALL) as running:
        yield running


def serving(template: str):
    engine = ScriptedTokenEngine(Script("hi"), info=scripted_info(chat_template=template))
    return serving_tokens(m=engine, e=ScriptedEmbeddingEngine())


def flat(reply: Any) -> Any:
    said = reply.json()
    if "detail" in said:
        (problem,) = said["detail"]
        return {"param": ".".join(map(str, problem["loc"][1:])), "message": problem["msg"]}
    return said.get("error", said)


async def test_every_field_of_every_table_is_blamed_by_its_name(plain):
    blamed = 0
    for table in (OPENAI, FIREWORKS, EMPOWER, SGP, JAMAI):
        for path, known in table.items():
            for name, field in known.items() if path in NAMED else ():
                value = OTHER.get(name, WRONG)
                reply = await plain.ask(str(path), NAMED[path] | {name: value})
                if field.support is FieldSupport.IGNORED and reply.status == 200:
                    continue
                assert reply.status == (422 if table in (SGP, JAMAI) else 400), (path, name, reply.body)
                assert (flat(reply)["param"] or "").startswith(name), (path, name, reply.body)
                assert name in flat(reply)["message"], (path, name, reply.body)
                blamed += 1
    assert blamed > 200


TRANSLATED: list[tuple[str, dict[str, Any], str]] = [
    (FIREWORKS_CHAT, {"reasoning_effort": 100}, "reasoning_effort"),
    (FIREWORKS_CHAT, {"reasoning_effort": "high"}, "reasoning_effort"),
    (FIREWORKS_CHAT, {"reasoning_effort": True}, "reasoning_effort"),
    (FIREWORKS_CHAT, {"thinking": {"type": "enabled"}}, "thinking"),
    (FIREWORKS_CHAT, {"thinking": {"type": "enabled", "budget_tokens": 2000}}, "thinking.budget_tokens"),
    (FIREWORKS_CHAT, {"thinking": {"type": "enabled", "budget_tokens": 2}}, "thinking.budget_tokens"),
    (FIREWORKS_CHAT, {"thinking": {"type": "enabled"}, "reasoning_effort": "low"}, "thinking"),
    (FIREWORKS_CHAT, {"tools": [TOOL], "tool_choice": {"type": "function", "name": "g"}}, "tool_choice.name"),
    (FIREWORKS_CHAT, {"tool_choice": {"type": "function", "name": "g"}}, "tool_choice"),
    (FIREWORKS_CHAT, {"tool_choice": "any"}, "tool_choice"),
    (FIREWORKS_CHAT, {"parallel_tool_calls": True}, "parallel_tool_calls"),
    (FIREWORKS_CHAT, {"max_completion_tokens": 7, "max_tokens": 8}, "max_completion_tokens"),
    (FIREWORKS_CHAT, {"top_logprobs": 2}, "top_logprobs"),
    (FIREWORKS_CHAT, {"logit_bias": {"x": 1}}, "logit_bias.x"),
    (FIREWORKS_CHAT, {"logit_bias": {"1": 101}}, "logit_bias.1"),
    (FIREWORKS_CHAT, {"logit_bias": {"99999": 1}}, "logit_bias"),
    (FIREWORKS_CHAT, {"response_format": {"type": "grammar"}}, "response_format.grammar"),
    (FIREWORKS_CHAT, {"response_format": {"type": "json_object", "schema": "x"}}, "response_format.schema"),
    (
        FIREWORKS_CHAT,
        {"response_format": {"type": "json_schema", "json_schema": "x"}},
        "response_format.json_schema",
    ),
    (FIREWORKS_CHAT, {"response_format": {"type": "json_object"}}, "response_format"),
    (FIREWORKS_CHAT, {"prompt_cache_isolation_key": ""}, "prompt_cache_isolation_key"),
    (FIREWORKS_CHAT, {"user": "\0"}, "user"),
    (FIREWORKS_CHAT, {"metadata": {"": "x"}}, "metadata"),
    (FIREWORKS_TEXT, {"max_tokens": 0}, "max_tokens"),
    (FIREWORKS_TEXT, {"prompt": ["a"] * 3, "n": 128}, "prompt"),
    (FIREWORKS_TEXT, {"prompt": [99_999]}, "prompt"),
    (FIREWORKS_TEXT, {"images": ["a"]}, "images"),
    (EMPOWER_CHAT, {"include_thinking": True}, "include_thinking"),
    (EMPOWER_CHAT, {"tool_choice": "any"}, "tool_choice"),
    (EMPOWER_CHAT, {"logit_bias": {"1": 1}}, "logit_bias"),
    (EMPOWER_CHAT, {"stop_token_ids": [99_999]}, "stop_token_ids"),
    (EMPOWER_CHAT, {"messages": ["a", ""]}, "messages[1]"),
    (EMPOWER_CHAT, {"messages": ["a"] * 3, "n": 128}, "messages"),
    (CHAT, {"thinking_token_budget": 100}, "thinking_token_budget"),
    (CHAT, {"reasoning_effort": "low"}, "reasoning_effort"),
]


async def test_what_a_dialect_translates_is_blamed_by_its_own_name(plain):
    for path, more, param in TRANSLATED:
        reply = await plain.ask(path, NAMED[path] | more)
        assert (reply.status, flat(reply)["param"]) == (400, param), (more, reply.body)
        said = flat(reply)["message"]
        assert param.partition(".")[0].partition("[")[0] in said, (more, said)
        assert path == CHAT or "thinking_token_budget" not in said, (more, said)


@pytest.mark.parametrize(
    ("template", "more", "says"),
    [
        (OPENING, {"reasoning_effort": "none"}, "reasoning_effort none is not supported: this model always"),
        (OPENING, {"reasoning_effort": "low"}, "or a number of tokens for less"),
        (
            OPENING,
            {"thinking": {"type": "disabled"}},
            "thinking disabled is not supported: this model always",
        ),
        (OPENING, {"thinking": {"type": "disabled"}}, "send enabled, or thinking.budget_tokens for less"),
        (QWEN, {"reasoning_effort": "high"}, "send medium or none, or a number of tokens for less"),
        (NOT_AT_ALL, {"thinking": {"type": "enabled"}}, "leave it out, or send disabled"),
    ],
)
async def test_a_refusal_of_reasoning_says_what_its_dialect_takes(template, more, says):
    async with serving(template) as server:
        reply = await server.ask(FIREWORKS_CHAT, HELLO | more)
    assert reply.status == 400 and says in flat(reply)["message"], reply.body
