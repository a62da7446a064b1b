"""How conversations are rendered, over the wire: on cantor as it ships, and on a model without a template."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.support.model_files import CANTOR, write_thinker
from tests.support.server import Server, serving

ASK: Any = [{"role": "user", "content": "Who are you?"}]
GREEDY: Any = {"model": "cantor", "temperature": 0, "max_tokens": 40}
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
HOSTILE = (
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{{ 'a' * 10**9 }}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ messages.nothing.at.all }}",
    "{% for %}",
)


BETWEEN = 0.05
"""Seconds between two requests of the caller who is served beside the hostile ones."""


@pytest.fixture
def client(trusting: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{trusting.url}/v1", api_key="none", max_retries=0, timeout=60)


def said(client: openai.OpenAI, messages: Any, stream: bool = False, **extra: Any) -> str:
    """What the model answers, greedily."""
    asked = GREEDY | {key: extra.pop(key) for key in ("stop", "max_tokens") if key in extra}
    if not stream:
        answer = client.chat.completions.create(messages=messages, **asked, extra_body=extra)
        return answer.choices[0].message.content or ""
    parts = client.chat.completions.create(messages=messages, stream=True, **asked, extra_body=extra)
    return "".join(part.choices[0].delta.content or "" for part in parts)


def left_open(text: str) -> Any:
    return [*ASK, {"role": "assistant", "content": text}]


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_was_cut_goes_on_where_it_was(client: openai.OpenAI, stream: bool) -> None:
    whole = said(client, ASK)
    words = [at for at, letter in enumerate(whole) if letter == " "]
    for at in (words[0], words[len(words) // 2]):
        rest = said(client, left_open(whole[:at]), stream, continue_final_message=True)
        assert whole[:at] + rest == whole
    stop = whole[words[-1] + 1 :][:3]
    head = whole[: words[0]]
    cut = said(client, left_open(head), stream, continue_final_message=True, stop=[stop])
    assert head + cut == whole[: whole.index(stop)]


def test_without_the_field_a_message_of_the_assistants_is_closed(client: openai.OpenAI) -> None:
    def ends(**extra: Any) -> list[str]:
        body = {"model": "cantor", "messages": left_open("I am"), "return_token_strs": True} | extra
        tokens: list[str] = client.post("/tokenize", body=body, cast_to=dict[str, Any])["token_strs"]
        return tokens

    opened, closed = ends(continue_final_message=True), ends(add_generation_prompt=False)
    assert closed[: len(opened)] == opened and closed[len(opened)] == "<|im_end|>"
    assert ends()[: len(closed)] == closed and "".join(ends()[-2:]).startswith("assistant")


def test_what_apply_template_shows_is_what_is_generated_from(client: openai.OpenAI) -> None:
    shown = client.post("/apply-template", body={"messages": ASK}, cast_to=dict[str, str])["prompt"]
    assert shown == "<s><|im_start|>user\nWho are you?<|im_end|>\n<|im_start|>assistant\n"
    raw = client.completions.create(prompt=shown, **GREEDY)
    assert raw.choices[0].text == said(client, ASK)
    tokens = client.post("/tokenize", body={"messages": ASK}, cast_to=dict[str, Any])
    assert tokens["count"] == raw.usage.prompt_tokens if raw.usage else False
    back = client.post("/detokenize", body={"tokens": tokens["tokens"]}, cast_to=dict[str, str])
    assert "Who are you?" in back["prompt"]


def test_a_requests_template_takes_the_place_of_the_models(client: openai.OpenAI) -> None:
    assert said(client, ASK, chat_template="{{ bos_token }}" + CHATML) == said(client, ASK)
    shouted = (
        "{{ bos_token }}<|im_start|>user\nWhat is two plus two?<|im_end|>\n<|im_start|>assistant{{ '\n' }}"
    )
    assert said(client, ASK, chat_template=shouted) == said(
        client, [{"role": "user", "content": "What is two plus two?"}]
    )


def test_values_reach_a_template_that_reads_them_and_no_other(client: openai.OpenAI) -> None:
    reads = "{{ bos_token }}<|im_start|>user\n{{ question }}<|im_end|>\n<|im_start|>assistant{{ '\n' }}"
    values = {"question": "Who are you?"}
    assert said(client, ASK, chat_template=reads, chat_template_kwargs=values) == said(client, ASK)
    for extra, param in (
        ({"chat_template_kwargs": {"enable_thinking": False}}, "chat_template_kwargs.enable_thinking"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
        ({"documents": [{"text": "a"}]}, "documents"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"add_generation_prompt": True, "continue_final_message": True}, "continue_final_message"),
    ):
        with pytest.raises(openai.BadRequestError) as refused:
            said(client, ASK, **extra)
        assert refused.value.param == param


def test_several_system_messages_are_all_heard(client: openai.OpenAI) -> None:
    """cantor's template refuses a second one."""
    several = [
        {"role": "system", "content": "One."},
        {"role": "developer", "content": "Two."},
        *ASK,
        {"role": "assistant", "content": "Yes."},
        {"role": "system", "content": "Three."},
        *ASK,
    ]
    shown = client.post("/apply-template", body={"messages": several}, cast_to=dict[str, str])["prompt"]
    assert shown.startswith("<s><|im_start|>system\nOne.\n\nTwo.<|im_end|>\n<|im_start|>user\n")
    assert "<|im_start|>user\nThree.\n\nWho are you?" in shown
    assert shown.count("Who are you?") == 2 and shown.count("system") == 1
    assert said(client, several)


@pytest.mark.soak
def test_hostile_templates_are_refused_while_others_are_served(client: openai.OpenAI) -> None:
    begun, over, waited = time.monotonic(), threading.Event(), []
    patient = client.with_options(max_retries=20)  # a busy machine has no process for a template: 503

    def refused(source: str) -> str | None:
        with pytest.raises(openai.BadRequestError) as caught:
            said(patient, ASK, chat_template=source)
        assert caught.value.code == "template_refused"
        return caught.value.param

    def served() -> None:
        while not over.wait(BETWEEN):
            asked = time.monotonic()
            assert said(patient, ASK, max_tokens=2)
            waited.append(time.monotonic() - asked)

    with ThreadPoolExecutor(len(HOSTILE) + 1) as threads:
        other = threads.submit(served)
        try:
            while len(waited) < 2 and not other.done():  # as often as others need to be served meanwhile
                found = list(threads.map(refused, HOSTILE))
                assert found == ["chat_template"] * len(HOSTILE)
        finally:
            over.set()
        other.result()
    assert len(waited) > 1 and min(waited) < time.monotonic() - begun


def test_a_model_without_a_template_chats_through_a_requests(client: openai.OpenAI, tmp_path: Path) -> None:
    whole = CANTOR.read_bytes()
    assert whole.count(b"tokenizer.chat_template") == 1
    raw = tmp_path / "raw.gguf"
    raw.write_bytes(whole.replace(b"tokenizer.chat_template", b"tokenizer.chat_templatX"))
    env = {"ANTIPHON_REQUEST_TEMPLATES": "true"}
    with serving("--model", f"cantor={raw}", env=env) as running, running.client() as other:
        asked = GREEDY | {"messages": ASK}
        refused = other.post("/v1/chat/completions", json=asked).json()["error"]
        assert (refused["code"], refused["param"]) == ("template_refused", "messages")
        assert "chat_template" in refused["message"]
        template = "{{ bos_token }}" + CHATML
        answer = other.post("/v1/chat/completions", json=asked | {"chat_template": template}).json()
        assert answer["choices"][0]["message"]["content"] == said(client, ASK)
        shown = other.post("/v1/apply-template", json={"messages": ASK, "chat_template": template}).json()
        assert shown["prompt"].endswith("<|im_start|>assistant\n")


def test_template_values_and_continued_messages_are_rendered(tmp_path: Path) -> None:
    model = write_thinker(tmp_path / "thinker.gguf")
    with serving("--model", f"cantor={model}") as running, running.client() as client:

        def shown(**extra: Any) -> str:
            text: str = client.post("/v1/apply-template", json={"messages": ASK} | extra).json()["prompt"]
            return text

        assert shown().endswith("<|im_start|>assistant\n<think>\n")
        values = {"chat_template_kwargs": {"enable_thinking": False}}
        assert shown(**values).endswith("<|im_start|>assistant\n<think>\n</think>\n\n")
        last = {"role": "assistant", "content": "I am", "reasoning_content": "The user asks."}
        opened = {"messages": [*ASK, last], "continue_final_message": True}
        assert shown(**opened).endswith("<think>\nThe user asks.\n</think>\n\nI am")
        answer = client.post("/v1/chat/completions", json=GREEDY | opened).json()
        message, usage = answer["choices"][0]["message"], answer["usage"]
        assert message["content"] and "reasoning_content" not in message
        assert "completion_tokens_details" not in usage
