"""How a conversation is rendered: the assistant's turn, a request's own template, what it reads."""

from typing import Any

from tests.parameters.registry import OUT, Answer, Asker, case
from tests.parameters.spots import APPLY, CHATS, TALK, TEXTS, TOKENIZE, TOOLED, USER, WEATHER

READS: dict[str, Any] = {
    "chat_template": "{{ mood }}{% for d in documents or [] %}{{ d.text }}{% endfor %}"
    "{% for m in messages %}{{ m.content }}{% endfor %}"
}
OPEN: dict[str, Any] = {
    "messages": [*TALK["messages"], {"role": "assistant", "content": "I am"}],
}
TALKED: dict[str, Any] = {"prompt": None, "messages": TALK["messages"]}
SHORT_TEMPLATE = "{{ messages[0].content }}"
CALM, GLAD = {"mood": "calm"}, {"mood": "glad, and more than that"}
DOCUMENT = [{"text": "The moon makes the tides, and the sun a little."}]


def size(answer: Answer) -> int:
    """Tokens or characters of the prompt, wherever the answer says it."""
    assert answer.status == 200, answer.body
    if "usage" in answer.json:
        count: int = answer.json["usage"]["prompt_tokens"]
        return count
    return len(answer.json["prompt"] if "prompt" in answer.json else answer.json["tokens"])


@case(CHATS, "add_generation_prompt", {}, False, True)
@case(CHATS, "chat_template", {}, SHORT_TEMPLATE, OUT)
@case(CHATS, "chat_template_kwargs", READS, CALM, GLAD, recorded=True)
@case(CHATS, "documents", READS, OUT, DOCUMENT, recorded=True)
@case(CHATS, "add_special_tokens", {"chat_template": SHORT_TEMPLATE}, False, True, recorded=True)
@case(TEXTS, "add_special_tokens", {}, False, True)
@case(TOKENIZE, "continue_final_message", TALKED | OPEN, True, False)
@case(TOKENIZE, "chat_template", TALKED, SHORT_TEMPLATE, OUT, recorded=True)
@case(TOKENIZE, "chat_template_kwargs", TALKED | READS, CALM, GLAD, recorded=True)
@case(TOKENIZE, "documents", TALKED | READS, OUT, DOCUMENT, recorded=True)
@case(APPLY, "messages", {}, TALK["messages"], OPEN["messages"])
@case(APPLY, "tools", {}, OUT, [WEATHER])
@case(APPLY, "add_generation_prompt", {}, False, True)
@case(APPLY, "continue_final_message", OPEN, True, False)
@case(APPLY, "chat_template", {}, SHORT_TEMPLATE, OUT, recorded=True)
@case(APPLY, "chat_template_kwargs", READS, CALM, GLAD, recorded=True)
@case(APPLY, "documents", READS, OUT, DOCUMENT, recorded=True)
def the_prompt_is_longer(shorter: Answer, longer: Answer) -> None:
    assert size(shorter) < size(longer)


@case(APPLY, "model", {}, "cantor", "nobody")
def an_unknown_model_has_no_template(known: Answer, unknown: Answer) -> None:
    assert known.status == 200 and unknown.status == 404 and "nobody" in unknown.refusal


def greeted(asker: Asker) -> list[dict[str, Any]]:
    """The first words of an answer, in the place of the answer."""
    said = asker.ask("/v1/chat/completions", TALK).text
    return [*TALK["messages"], {"role": "assistant", "content": said[: said.index(" ", 8)]}]


@case(CHATS, "continue_final_message", lambda asker: {"messages": greeted(asker)}, OUT, True)
def the_answer_goes_on_where_the_message_ends(anew: Answer, further: Answer) -> None:
    whole = further.json["usage"]["prompt_tokens"]
    assert further.text.startswith(" ") and not anew.text.startswith(" ")
    assert whole < anew.json["usage"]["prompt_tokens"]


CLOSED = {"messages": [USER, {"role": "assistant", "content": "Look: "}], "tools": TOOLED["tools"]}


@case(CHATS, "continue_final_message", CLOSED | {"tool_choice": "required", "max_tokens": 60}, OUT, True)
def a_call_may_follow_an_open_message(anew: Answer, further: Answer) -> None:
    assert anew.calls and further.calls
    assert further.usage["prompt_tokens"] < anew.usage["prompt_tokens"]
