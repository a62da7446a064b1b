"""Reasoning: how much of it, whether it is shown, and that of earlier turns."""

from typing import Any

from tests.parameters.registry import OUT, Answer, case
from tests.parameters.spots import CHAT, CHATS, MESSAGES

HELLO: Any = [{"role": "user", "content": "What is two plus two?"}]
TALK: Any = [*HELLO, {"role": "assistant", "content": "Four."}]
HELD: Any = {"messages": HELLO, "guided_regex": "[a-c]{4}", "max_tokens": 60}
BOUND = HELD | {"thinking_token_budget": 6}


def thought(answer: Answer) -> int:
    """Tokens of reasoning."""
    found: int = answer.usage.get("completion_tokens_details", {"reasoning_tokens": 0})["reasoning_tokens"]
    return found


@case(CHATS, "thinking_token_budget", HELD, 0, 9, OUT, thinks=True)
def reasoning_ends_with_its_budget(none: Answer, some: Answer, unbound: Answer) -> None:
    assert not none.message.get("reasoning") and some.message["reasoning"]
    assert len(none.text) == len(some.text) == 4
    assert thought(some) - thought(none) == 9
    assert unbound.finish == "length" and not unbound.text and thought(unbound) == 60


@case(CHAT, "reasoning_effort", BOUND, "none", "medium", thinks=True)
def no_effort_is_no_reasoning(none: Answer, some: Answer) -> None:
    assert not none.message.get("reasoning") and thought(none) == 0
    assert some.message["reasoning"] and thought(some) > 6


@case(CHAT, "reasoning_effort", BOUND, "none", "high", thinks=True)
def an_effort_that_nobody_would_see_is_refused(none: Answer, high: Answer) -> None:
    assert none.status == 200 and "reasoning_effort high" in high.refusal


@case(CHATS, "include_reasoning", BOUND, OUT, True, False, thinks=True)
def what_is_not_shown_is_counted(left_out: Answer, shown: Answer, hidden: Answer) -> None:
    assert left_out.message == shown.message and shown.message["reasoning"]
    assert shown.message["reasoning"] == shown.message["reasoning_content"]
    assert not {"reasoning", "reasoning_content"} & set(hidden.message)
    assert hidden.text == shown.text and thought(hidden) == thought(shown) > 6


@case(MESSAGES, "reasoning_content", {"messages": TALK}, OUT, "Two and two.", thinks=True)
def what_was_thought_is_shown_to_the_model(without: Answer, shown: Answer) -> None:
    assert shown.usage["prompt_tokens"] > without.usage["prompt_tokens"] + 3


@case(MESSAGES, "reasoning", {"messages": TALK}, OUT, "Two and two.", thinks=True)
def its_newer_name_says_the_same(without: Answer, shown: Answer) -> None:
    assert shown.usage["prompt_tokens"] > without.usage["prompt_tokens"] + 3


@case(MESSAGES, "reasoning_content", {"messages": TALK}, OUT, "Two and two.")
@case(MESSAGES, "reasoning", {"messages": TALK}, OUT, "Two and two.")
def reasoning_that_the_template_does_not_read_is_named(without: Answer, unread: Answer) -> None:
    assert "x-antiphon-ignored" not in without.headers and without.text == unread.text
    assert unread.headers["x-antiphon-ignored"].startswith("messages[].reasoning")


@case(MESSAGES, "reasoning_content", {"messages": TALK}, 1, "Two and two.", thinks=True)
def reasoning_that_the_template_reads_is_not(wrong: Answer, shown: Answer) -> None:
    assert wrong.status == 400 and shown.status == 200
    assert "x-antiphon-ignored" not in shown.headers
