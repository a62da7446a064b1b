"""A conversation that outgrows the model's context: with a memory strategy it goes on answering."""

from collections.abc import Iterator, Mapping
from typing import Any

import openai
import pytest

from tests.e2e.talks import QUESTION, Messages, build_talk
from tests.support.server import Server

CONTEXT = 2048
TURNS = 200

STRATEGIES: Mapping[str, dict[str, Any]] = {
    "last_k": {"name": "last_k", "k": 7},
    "last_tokens": {"name": "last_tokens", "tokens": 400},
    "summary": {"name": "summary", "tokens": 700},
}


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        yield client


def ask(
    client: openai.OpenAI, messages: Messages, strategy: dict[str, Any] | None, stream: bool
) -> tuple[str, str, int]:
    """The answer, the header that says what the model saw, and the tokens of the prompt."""
    body: dict[str, Any] = {"model": "cantor", "messages": messages, "max_tokens": 12}
    if strategy:
        body["extra_body"] = {"memory_strategy": strategy}
    if stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    raw = client.chat.completions.with_raw_response.create(**body)
    answer: Any = raw.parse()
    if stream:
        chunks = list(answer)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        usage = chunks[-1].usage
    else:
        text, usage = answer.choices[0].message.content, answer.usage
    return text, raw.headers["x-antiphon-memory"], usage.prompt_tokens


def talk_on(
    client: openai.OpenAI,
    strategy: dict[str, Any],
    answered: int,
    turns: int = TURNS,
    *,
    is_streamed: bool = True,
) -> int:
    """Asks the rest of so many turns, each with all that was said before. Returns how often the summary came
    to cover more. `is_streamed`: whether every second answer is."""
    messages, written, covered = build_talk(answered), 0, 0
    for number in range(answered, turns):
        messages.append({"role": "user", "content": QUESTION.format(number=number)})
        text, header, tokens = ask(client, messages, strategy, stream=is_streamed and bool(number % 2))
        told = dict(each.split("=") for each in header.split(", "))
        kept, dropped = int(told["kept"]), int(told["dropped"])
        summarised = int(told["summarised"])
        assert text and kept + dropped + summarised == len(messages)
        assert not (dropped if strategy["name"] == "summary" else summarised)
        assert tokens <= strategy.get("tokens", CONTEXT)
        if "k" in strategy:
            assert kept == min(len(messages), 1 + strategy["k"])
        written, covered = written + (summarised > covered), summarised
        messages.append({"role": "assistant", "content": text})
    return written


def test_without_a_strategy_a_long_talk_is_refused(client: openai.OpenAI):
    messages = [*build_talk(TURNS - 1), {"role": "user", "content": "And now?"}]
    with pytest.raises(openai.BadRequestError) as refused:
        ask(client, messages, None, stream=False)
    assert refused.value.code == "context_length_exceeded"


@pytest.mark.parametrize(
    "name", ["last_k", "last_tokens", pytest.param("summary", marks=pytest.mark.soak, id="summary")]
)
def test_a_talk_of_200_turns_goes_on_answering(client: openai.OpenAI, name: str):
    talk_on(client, STRATEGIES[name], answered=TURNS - 2)


def test_a_talk_beyond_the_context_goes_on_with_its_summary(client: openai.OpenAI):
    """Its first summary takes several calls, the next one covers what was said after it. In the soak, the
    talk has 200 turns: their summary takes 20 CPU seconds."""
    # A stream may begin before its summary is known.
    assert talk_on(client, STRATEGIES["summary"], answered=22, turns=30, is_streamed=False) >= 2


@pytest.mark.soak
@pytest.mark.parametrize("name", STRATEGIES)
def test_each_of_200_turns_is_answered(client: openai.OpenAI, name: str):
    talk_on(client, STRATEGIES[name], answered=0)


def test_a_short_talk_is_seen_whole(client: openai.OpenAI):
    messages = [*build_talk(2), {"role": "user", "content": "And now?"}]
    for strategy in ({"name": "last_k", "k": 50}, {"name": "last_tokens", "tokens": 1500}):
        assert ask(client, messages, strategy, stream=True)[1] == "kept=6, dropped=0, summarised=0"
