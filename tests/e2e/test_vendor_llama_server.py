"""llama-server as a provider: what is taken acts, and what it ignores or does in another way is refused."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx2
import openai
import pytest

from tests.support.llama_server import serve_llama_server
from tests.support.server import serving

CONFIG = """
[providers.llama-server]
base_url = "{url}/v1"

[[models]]
name = "llama/*"
provider = "llama-server"
"""

ASK: Any = [{"role": "user", "content": "Hello, who are you?"}]
WILD: dict[str, Any] = {"temperature": 2, "seed": 3, "top_p": 1, "max_tokens": 12}
WIDE = {"top_k": 0, "min_p": 0}
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


WEATHER: Any = [{"role": "user", "content": "What is the weather in Paris?"}]


def build_tool(name: str) -> Any:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


@dataclass
class Place:
    """llama-server, and this server before it."""

    url: str
    client: openai.OpenAI

    def ask(self, **options: Any) -> Any:
        """A chat's first choice through this server."""
        extra = {
            name: options.pop(name)
            for name in ("top_k", "min_p", "typical_p", "ignore_eos")
            if name in options
        }
        asked = {"model": "llama/m", "messages": ASK, "max_tokens": 40, "temperature": 0} | options
        return self.client.chat.completions.create(**asked, extra_body=extra).choices[0]

    def ask_direct(self, **options: Any) -> Any:
        """A chat's first choice from llama-server itself."""
        body = {"messages": ASK, "max_tokens": 40, "temperature": 0} | options
        return httpx2.post(f"{self.url}/v1/chat/completions", json=body, timeout=60).json()["choices"][0]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    home = tmp_path_factory.mktemp("llama-server")
    with serve_llama_server() as url:
        file = home / "antiphon.toml"
        file.write_text(CONFIG.format(url=url))
        with serving("--config", str(file), threads=None, env={"ANTIPHON_HOME": str(home)}) as server:
            client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60)
            with client:
                yield Place(url, client)


def test_a_chat_is_the_same_direct_buffered_and_streamed(place: Place):
    direct, through = place.ask_direct(), place.ask()
    assert through.message.content == direct["message"]["content"]
    assert through.finish_reason == direct["finish_reason"]
    stream = place.client.chat.completions.create(
        model="llama/m",
        messages=ASK,
        max_tokens=40,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == through.message.content
    assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens > 1


@pytest.mark.parametrize(
    ("plain", "changed"),
    [
        (WIDE, WIDE | {"seed": 4}),
        (WIDE, WIDE | {"top_k": 1}),
        (WIDE, WIDE | {"min_p": 0.9}),
        (WIDE, WIDE | {"typical_p": 0.1}),
        (WIDE, WIDE | {"top_p": 0.01}),
        (WIDE, WIDE | {"temperature": 0}),
        ({"temperature": 0}, {"temperature": 0, "logit_bias": {"100": 100}}),
        ({"temperature": 0, "max_tokens": 40}, {"temperature": 0, "max_tokens": 40, "frequency_penalty": -2}),
        ({"temperature": 0}, {"temperature": 0, "stop": ["a"]}),
        ({"temperature": 0, "max_tokens": 60}, {"temperature": 0, "max_tokens": 60, "ignore_eos": True}),
    ],
)
def test_a_parameter_that_is_taken_acts(place: Place, plain: dict[str, Any], changed: dict[str, Any]):
    texts = [place.ask(**WILD | options).message.content for options in (plain, plain, changed)]
    assert texts[0] == texts[1] != texts[2]


def test_several_choices_come(place: Place):
    answer = place.client.chat.completions.create(model="llama/m", messages=ASK, n=2, **WILD, extra_body=WIDE)
    assert len({choice.message.content for choice in answer.choices}) == 2


def test_a_schema_is_obeyed(place: Place):
    schema = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
    choice = place.ask(response_format=schema, max_tokens=200)
    assert json.loads(choice.message.content).keys() == {"name", "age"}


@pytest.mark.parametrize(
    "choice", ["auto", "required", {"type": "function", "function": {"name": "get_weather"}}]
)
def test_a_call_comes_whole_and_streamed(place: Place, choice: Any):
    asked: Any = {
        "messages": WEATHER,
        "tools": [build_tool("get_weather")],
        "tool_choice": choice,
        "temperature": 0,
        "max_tokens": 100,
    }
    whole = place.ask(**asked)
    with place.client.chat.completions.stream(model="llama/m", **asked) as stream:
        streamed: Any = stream.get_final_completion().choices[0]
    for found in (whole, streamed):
        (call,) = found.message.tool_calls
        assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Paris"})
        assert found.finish_reason == "tool_calls"


def test_a_result_is_answered(place: Place):
    tools = [build_tool("get_weather")]
    said = place.ask(messages=WEATHER, tools=tools).message
    result = {"role": "tool", "tool_call_id": said.tool_calls[0].id, "content": "sunny"}
    assert place.ask(messages=[*WEATHER, said, result], tools=tools).message.content


@pytest.mark.parametrize("most", [0, 2])
def test_scores_come_with_as_many_alternatives_as_asked(place: Place, most: int):
    scores = place.ask(logprobs=True, top_logprobs=most or openai.omit, max_tokens=4).logprobs.content
    assert len(scores) == 4 and {len(each.top_logprobs) for each in scores} == {most}
    answer = place.client.completions.create(
        model="llama/m", prompt="The sea", logprobs=most, max_tokens=4, temperature=0
    )
    arrays = answer.choices[0].logprobs
    assert arrays is not None and arrays.tokens is not None and len(arrays.tokens) == 4
    assert [len(each) for each in arrays.top_logprobs or ()] == [2] * 4 * bool(most)
    assert arrays.text_offset is not None and arrays.text_offset[0] == 0


def test_a_long_prompt_is_told_in_openais_words(place: Place):
    with pytest.raises(openai.BadRequestError) as caught:
        place.ask(messages=[{"role": "user", "content": "word " * 3000}])
    assert caught.value.code == "context_length_exceeded"


ANSWERED = [*ASK, {"role": "assistant", "content": "The sea"}]
CHOSEN = {"type": "function", "function": {"name": "get_weather"}}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"tools": [build_tool("get_weather"), build_tool("clock")], "tool_choice": CHOSEN}, "tool_choice"),
    ({"messages": ANSWERED}, "messages"),
    ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
    *(
        (options, next(iter(options)))
        for options in (
            {"repetition_penalty": 1.5},
            {"mirostat_target": 3},
            {"guided_regex": "a"},
            {"guided_choice": ["a"]},
            {"guided_grammar": 'root ::= "a"'},
            {"min_tokens": 3},
            {"stop_token_ids": [5]},
            {"allowed_token_ids": [5]},
            {"bad_words": ["a"]},
            {"best_of": 2},
            {"skip_special_tokens": False},
            {"truncate_prompt_tokens": 3},
            {"cache_salt": "a"},
            {"priority": 1},
            {"documents": [{"text": "a"}]},
            {"chat_template": "a"},
            {"reasoning_effort": "low"},
            {"thinking_token_budget": 9},
            {"verbosity": "low"},
            {"service_tier": "flex"},
        )
    ),
]


@pytest.mark.parametrize(("options", "param"), REFUSED)
def test_what_it_ignores_is_refused(place: Place, options: dict[str, Any], param: str):
    with pytest.raises(openai.BadRequestError) as caught:
        place.client.chat.completions.create(model="llama/m", messages=ASK, extra_body=options)
    assert caught.value.param == param
    assert "provider llama-server" in caught.value.message


def test_llama_server_still_ignores_what_is_refused(place: Place):
    """If one of these fails, the preset can take the parameter."""
    both = [build_tool("get_weather"), build_tool("clock")]
    chosen = place.ask_direct(tools=both, tool_choice=CHOSEN)
    assert not chosen["message"].get("tool_calls")
    assert place.ask_direct(messages=ANSWERED)["message"]["content"].startswith("The sea")
    assert "logprobs" not in place.ask_direct(logprobs=True, top_logprobs=-1)


def test_a_hint_that_it_ignores_is_named(place: Place):
    answer = place.client.chat.completions.with_raw_response.create(
        model="llama/m", messages=ASK, max_tokens=3, prompt_cache_key="k"
    )
    assert answer.headers["x-antiphon-ignored"] == "prompt_cache_key"
