"""How conversations are rendered, over the wire: on cantor as it ships, and on a model without a template.
The server takes templates of callers."""

import json
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from tests.support.docs import list_commands
from tests.support.model_files import CANTOR
from tests.support.server import Server, serving

ASK: Any = [{"role": "user", "content": "Who are you?"}]
ASK_CANTOR = {"model": "cantor", "messages": ASK}
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


@pytest.fixture(scope="module")
def trusting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Has cantor, and raw, which is cantor without its template."""
    whole = CANTOR.read_bytes()
    assert whole.count(b"tokenizer.chat_template") == 1
    raw = tmp_path_factory.mktemp("raw") / "raw.gguf"
    raw.write_bytes(whole.replace(b"tokenizer.chat_template", b"tokenizer.chat_templatX"))
    env = {"ANTIPHON_REQUEST_TEMPLATES": "true"}
    with serving("--model", "cantor", "--model", str(raw), env=env) as running:
        yield running


@pytest.fixture(scope="module")
def client(trusting: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{trusting.url}/v1", api_key="none", max_retries=0, timeout=60) as made:
        yield made


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
    shown = client.post("/apply-template", body=ASK_CANTOR, cast_to=dict[str, str])["prompt"]
    assert shown == "<s><|im_start|>user\nWho are you?<|im_end|>\n<|im_start|>assistant\n"
    raw = client.completions.create(prompt=shown, **GREEDY)
    assert raw.choices[0].text == said(client, ASK)
    tokens = client.post("/tokenize", body=ASK_CANTOR, cast_to=dict[str, Any])
    assert tokens["count"] == raw.usage.prompt_tokens if raw.usage else False
    ids = {"model": "cantor", "tokens": tokens["tokens"]}
    back = client.post("/detokenize", body=ids, cast_to=dict[str, str])
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
    body = {"model": "cantor", "messages": several}
    shown = client.post("/apply-template", body=body, cast_to=dict[str, str])["prompt"]
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


def test_a_model_without_a_template_chats_through_a_requests(client: openai.OpenAI, trusting: Server) -> None:
    with trusting.client() as other:
        asked = GREEDY | {"model": "raw", "messages": ASK}
        refused = other.post("/v1/chat/completions", json=asked).json()["error"]
        assert (refused["code"], refused["param"]) == ("template_refused", "messages")
        assert "chat_template" in refused["message"]
        template = "{{ bos_token }}" + CHATML
        answer = other.post("/v1/chat/completions", json=asked | {"chat_template": template}).json()
        assert answer["choices"][0]["message"]["content"] == said(client, ASK)
        shown = other.post(
            "/v1/apply-template", json={"model": "raw", "messages": ASK, "chat_template": template}
        ).json()
        assert shown["prompt"].endswith("<|im_start|>assistant\n")


def test_the_template_in_a_request_of_the_pages_is_taken(trusting: Server) -> None:
    """The other commands of the pages run in tests/e2e/test_docs_commands.py."""
    commands = [command.text for command in list_commands() if '"chat_template"' in command.text]
    assert commands
    for text in commands:
        command = ["sh", "-c", text.replace("http://127.0.0.1:8000", trusting.url)]
        done = subprocess.run(command, capture_output=True, check=True, timeout=180)
        assert json.loads(done.stdout)["choices"][0]["message"]["content"]
