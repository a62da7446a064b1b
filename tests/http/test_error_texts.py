"""The words that clients look for in errors. Which class of theirs an error becomes, and whether they try
again, depends on them; the tables name who looks for what."""

import re
from typing import Any

import pytest

from antiphon.domain.limits import Measure, Window
from antiphon_testing import Script, ScriptedEmbeddingEngine, ScriptedTokenEngine, scripted_info
from tests.support.accounting import limit, limited
from tests.support.http_server import CHAT, HELLO, KEY, PROMPT, TEXT, serving, serving_tokens

FIREWORKS = "/fireworks/inference/v1"
EMPOWER = "/empower/api/v1/chat/completions"
CONTEXT = 60
LONG = "x" * 100
HERE = {"context_length_exceeded_behavior": "error"}
TOOL = {"type": "function", "function": {"name": "f"}}
LONG_CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": LONG}]}

OVERFLOW = {
    "LiteLLM": "this model's maximum context length is",
    "pydantic-ai, Continue": "maximum context length",
    "the same, of messages": "reduce the length of the ",
    "OpenAI": f"this model's maximum context length is {CONTEXT} tokens. however, you",
}
"""In lower case; aider, CrewAI and others catch LiteLLM's class."""
FIREWORKS_OVERFLOW = "prompt is too long"
"""LangChain's package for Fireworks."""

TOO_LONG: dict[str, tuple[str, dict[str, Any], str]] = {
    "a chat": (CHAT, LONG_CHAT, "messages"),
    "a stream": (CHAT, LONG_CHAT | {"stream": True}, "messages"),
    "a chat with tools": (CHAT, LONG_CHAT | {"tools": [TOOL]}, "messages"),
    "a chat that asks for much": (CHAT, HELLO | {"max_tokens": 1000}, "messages"),
    "a text": (TEXT, PROMPT | {"prompt": LONG}, "prompt"),
    "a text far beyond": (TEXT, PROMPT | {"prompt": "x" * 100_000}, "prompt"),
    "a text that asks for much": (TEXT, PROMPT | {"max_tokens": 1000}, "prompt"),
    "Fireworks' chat": (f"{FIREWORKS}/chat/completions", LONG_CHAT, "messages"),
    "Fireworks' text": (f"{FIREWORKS}/completions", PROMPT | {"prompt": LONG}, "prompt"),
    "Fireworks' text that asks for much": (
        f"{FIREWORKS}/completions",
        PROMPT | {"max_tokens": 1000, "context_length_exceeded_behavior": "error"},
        "prompt",
    ),
    "Empower's chat": (EMPOWER, LONG_CHAT, "messages"),
    "Empower's text": (EMPOWER, {"model": "m", "messages": LONG}, "messages"),
    "more tokens than there is room for": (CHAT, HELLO | {"min_tokens": 1000}, "min_tokens"),
    "a text for a vector": ("/v1/embeddings", {"model": "e", "input": "y" * 2000}, "input"),
    "one of several": ("/v1/embeddings", {"model": "e", "input": ["a", "y" * 2000]}, "input[1]"),
}


def flat(reply: Any) -> Any:
    """An error without its envelope, if it has one."""
    said = reply.json()
    return said.get("error", said)


@pytest.mark.parametrize(("path", "body", "param"), TOO_LONG.values(), ids=TOO_LONG)
async def test_exceeding_the_context_uses_words_that_clients_know(path, body, param):
    generating = ScriptedTokenEngine(Script("hi"), info=scripted_info(context_length=CONTEXT))
    async with serving_tokens(m=generating, e=ScriptedEmbeddingEngine()) as server:
        reply = await server.ask(path, body)
    error = flat(reply)
    words = error["message"].lower().replace("is 512 tokens", f"is {CONTEXT} tokens")
    wanted = dict(OVERFLOW)
    if param == "min_tokens":
        wanted["OpenAI"] = wanted["OpenAI"].removesuffix(" you")
    missed = [who for who, text in wanted.items() if text not in words]
    assert (reply.status, error["param"], missed) == (400, param, [])
    if path.startswith("/fireworks"):
        assert FIREWORKS_OVERFLOW in error["message"]
    else:
        assert (error["code"], error["type"]) == ("context_length_exceeded", "invalid_request_error")
    assert not re.search(r"rate[\s_-]*limit|\b429\b", words)  # LiteLLM looks for these first


async def test_the_sentence_about_too_much_is_openais_to_the_letter():
    generating = ScriptedTokenEngine(Script("hi"), info=scripted_info(context_length=CONTEXT))
    async with serving_tokens(m=generating) as server:
        error = (await server.ask(CHAT, HELLO | {"max_tokens": 1000})).error
        with_tools = (await server.ask(CHAT, LONG_CHAT | {"tools": [TOOL]})).error
    said = re.match(
        rf"This model's maximum context length is {CONTEXT} tokens\. However, you requested (\d+) tokens "
        r"\((\d+) in the messages, 1000 in the completion\)\. Please reduce the length of the messages or "
        r"completion\.",
        error["message"],
    )
    assert said is not None and int(said[1]) == int(said[2]) + 1000
    assert "your messages and tools resulted in" in with_tools["message"]


async def test_a_model_that_is_not_there_is_said_in_openais_words(served):
    sentence = "The model `gpt-9` does not exist or you do not have access to it."
    for path, body in ((CHAT, HELLO), (TEXT, PROMPT), (f"{FIREWORKS}/completions", PROMPT), (EMPOWER, HELLO)):
        reply = await served.ask(path, body | {"model": "gpt-9"})
        assert reply.status == 404 and f"{sentence} This server has: m." in flat(reply)["message"]


@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer sk-wrong"}], ids=["none", "wrong"])
async def test_a_key_that_is_not_accepted_is_said_in_openais_words(headers):
    async with serving(key=KEY) as server:
        for path in (CHAT, f"{FIREWORKS}/completions", EMPOWER):
            reply = await server.ask(path, HELLO, headers=headers)
            assert reply.status == 401 and "Incorrect API key provided" in flat(reply)["message"]


@pytest.mark.parametrize(
    ("rule", "status", "texts"),
    [
        (limit(amount=1), 429, [r"^Rate limit reached for ", r"Please try again in \d+s\.$"]),
        (limit(Measure.TOKENS, 18, Window.DAY), 429, [r"^You exceeded your current quota"]),
        (limit(Measure.TOKENS, 3, Window.DAY), 400, [r"ask for less$"]),
    ],
    ids=["rate", "budget", "never"],
)
async def test_limits_refuse_in_openais_words_unless_it_can_never_fit(rule, status, texts):
    """Also LlamaIndex, which looks for `rate limit`; what never fits must not be sent again."""
    async with limited(rule) as (served, _):
        replies = [await served.ask(TEXT, PROMPT | {"max_tokens": 16}) for _ in range(2)]
    error = replies[-1].error
    assert replies[-1].status == status and all(re.search(text, error["message"]) for text in texts)
    if status == 400:
        assert not re.search(r"rate[\s_-]*limit|\b429\b", str(error).lower())
