"""The fields of Scale's older API."""

import json
from typing import Any

from tests.parameters.cases_conversation import prompt
from tests.parameters.registry import OUT, Answer, case
from tests.parameters.spots import (
    OLD_CHAT,
    OLD_IMAGE_DATA,
    OLD_IMAGE_URL,
    OLD_MESSAGE,
    OLD_PARAMETERS,
    OLD_PART,
    OLD_PROMPT_IMAGE,
    OLD_TEXT,
)

OLD = (*OLD_CHAT, *OLD_TEXT)
OTHER = "https://example.org/a.png"
GIF = "data:image/gif;base64,AAAA"
DATA = {"data": "AAAA", "media_type": "image/gif"}
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"


def read(body: Any) -> tuple[str, str | None]:
    """The text and the finish reason of an answer, or of an event of a stream."""
    choice = body.get("completion") or body["chat_completion"]
    return choice["text"] if "text" in choice else choice["message"]["content"], choice["finish_reason"]


def text(answer: Answer) -> str:
    assert answer.status == 200, answer.body
    return read(answer.json)[0]


def count(answer: Answer) -> int:
    """Tokens of the prompt."""
    assert answer.status == 200, answer.body
    found: int = answer.json["token_usage"]["prompt"]
    return found


def drawn(*answers: Answer) -> list[Any]:
    """How the tokens of recorded answers are drawn."""
    assert all(answer.status == 200 for answer in answers), [answer.body for answer in answers]
    return [answer.asked[0].sampling for answer in answers]


def parts(answer: Answer) -> Any:
    """The parts that reached the vendor."""
    return json.loads(text(answer))["parts"]


# --- a request ---


@case(OLD_CHAT, "messages", {}, [{"content": "Who are you?"}], [{"content": "What is two plus two?"}])
@case(OLD_TEXT, "prompt", {}, "Once upon a time", "The fox saw the")
def another_question_has_another_answer(one: Answer, other: Answer) -> None:
    assert text(one) != text(other)


@case(OLD, "model", {}, "cantor", "mood", "none")
def the_model_is_the_one_that_is_named(cantor: Answer, mood: Answer, none: Answer) -> None:
    assert text(cantor) != text(mood) and none.status == 404


@case(OLD, "account_id", {}, OUT, "acme", ledgered=True)
def the_account_is_a_tag_of_the_entry(without: Answer, named: Answer) -> None:
    assert without.entry is not None and named.entry is not None
    assert (without.entry["tags"], named.entry["tags"]) == ({}, {"account_id": "acme"})


@case(OLD, "account_id", {}, OUT, "acme")
def an_account_is_named_where_nothing_is_recorded(without: Answer, named: Answer) -> None:
    assert named.headers["x-antiphon-ignored"] == "account_id"
    assert "x-antiphon-ignored" not in without.headers


@case(OLD, "model_parameters", {}, {"max_tokens": 2}, {"max_tokens": 5})
@case(OLD_PARAMETERS, "max_tokens", {}, 2, 5)
def so_many_tokens_are_made(two: Answer, five: Answer) -> None:
    assert [each.json["token_usage"]["completion"] for each in (two, five)] == [2, 5]
    assert read(two.json)[1] == "length"


@case(OLD, "stream", {}, False, True)
def a_stream_ends_with_reason_and_usage(whole: Answer, streamed: Answer) -> None:
    assert whole.json and not whole.events and streamed.headers["content-type"].startswith("text/event")
    *deltas, last = streamed.events
    assert "".join(read(each)[0] for each in streamed.events) == text(whole)
    assert all(read(each)[1] is each["token_usage"] is None for each in deltas)
    assert read(last)[1] == read(whole.json)[1] and last["token_usage"] == whole.json["token_usage"]


@case(OLD_CHAT, "chat_template", {}, OUT, TEMPLATE)
def the_template_takes_the_place_of_the_models(own: Answer, short: Answer) -> None:
    assert count(short) < count(own)


@case(OLD_CHAT, "instructions", {}, OUT, "You are a pirate.", recorded=True)
def instructions_come_first(without: Answer, told: Answer) -> None:
    assert len(prompt(told)) > len(prompt(without)) and told.status == 200


LAST = {"name": "last_k", "params": {"k": 1}}
ABOUT: Any = {
    "messages": [{"content": "One."}, {"role": "assistant", "content": "Two."}, {"content": "Three."}]
}


@case(OLD_CHAT, "memory_strategy", ABOUT, OUT, LAST, LAST | {"params": {"k": 2}}, recorded=True)
def the_model_sees_the_last_messages(whole: Answer, last: Answer, two: Answer) -> None:
    assert len(prompt(last)) < len(prompt(two)) < len(prompt(whole))
    assert last.headers["x-antiphon-memory"] == "kept=1, dropped=2, summarised=0"


# --- its parameters ---


@case(OLD_PARAMETERS, "temperature", {}, OUT, 0, 1, recorded=True)
def a_fifth_is_the_default(usual: Answer, cold: Answer, hot: Answer) -> None:
    assert [each.temperature for each in drawn(usual, cold, hot)] == [0.2, 0, 1]


@case(OLD_PARAMETERS, "topK", {}, 3, 7, recorded=True)
def so_many_tokens_stay(three: Answer, seven: Answer) -> None:
    assert [each.top_k for each in drawn(three, seven)] == [3, 7]


@case(OLD_PARAMETERS, "topP", {}, 0.25, 0.5, recorded=True)
def so_much_probability_stays(quarter: Answer, half: Answer) -> None:
    assert [each.top_p for each in drawn(quarter, half)] == [0.25, 0.5]


@case(OLD_PARAMETERS, "frequency_penalty", {}, -2, 2, recorded=True)
def each_time_is_punished(low: Answer, high: Answer) -> None:
    assert [each.frequency_penalty for each in drawn(low, high)] == [-2, 2]


@case(OLD_PARAMETERS, "presence_penalty", {}, -2, 2, recorded=True)
def once_is_punished(low: Answer, high: Answer) -> None:
    assert [each.presence_penalty for each in drawn(low, high)] == [-2, 2]


@case(OLD_PARAMETERS, "stop_sequences", {}, OUT, ["§", "a"])
def a_stop_text_is_cut(free: Answer, stopped: Answer) -> None:
    assert text(stopped) == text(free)[: text(free).index("a")] and read(stopped.json)[1] == "stop"


# --- messages and images ---


@case(OLD_MESSAGE, "role", {}, OUT, "user", "system", recorded=True)
def a_message_without_a_role_is_the_users(left_out: Answer, user: Answer, system: Answer) -> None:
    assert prompt(left_out) == prompt(user) != prompt(system)


@case(OLD_MESSAGE, "content", {}, "Hello.", [{"text": "Hello, "}, {"text": "world."}], recorded=True)
@case(OLD_PART, "text", {}, "Hello.", "Hello, world.", recorded=True)
def the_text_reaches_the_model(short: Answer, long: Answer) -> None:
    assert len(prompt(short)) < len(prompt(long))


@case(OLD_PART, "type", {}, OUT, "text", "image_url")
def a_type_is_that_of_its_part(left_out: Answer, right: Answer, wrong: Answer) -> None:
    assert text(left_out) == text(right)
    assert wrong.status == 422 and "messages[0].content[0].type" in wrong.refusal


@case(OLD_PART, "text", {"messages": [{"content": [{"image_url": {"url": GIF}}]}]}, OUT, "Hi.", hosted=True)
def a_part_is_one_thing(one: Answer, two: Answer) -> None:
    assert parts(one) == [["image/gif", "AAAA", "", None]]
    assert two.status == 422 and "exactly one" in two.refusal


IMAGE_PART: Any = {"messages": [{"content": [{}]}]}


@case(OLD_PART, "image_url", IMAGE_PART, {"url": GIF}, {"url": OTHER}, hosted=True)
@case(OLD_IMAGE_URL, "url", {}, GIF, OTHER, hosted=True)
def the_image_reaches_the_vendor(whole: Answer, address: Answer) -> None:
    assert parts(whole) == [["image/gif", "AAAA", "", None]]
    assert parts(address) == [["", "", OTHER, None]]


@case(OLD_PROMPT_IMAGE, "image_url", {}, GIF, OTHER, hosted=True)
@case(OLD_TEXT, "images", {}, [{"image_url": GIF}], [{"image_url": OTHER}], hosted=True)
def an_image_stands_before_the_prompt(whole: Answer, address: Answer) -> None:
    assert parts(whole)[0] == ["image/gif", "AAAA", "", None]
    assert parts(address)[0] == ["", "", OTHER, None]
    assert isinstance(parts(whole)[1], str)


@case(OLD_TEXT, "images", {}, [], [{"image_url": GIF}])
def a_model_that_reads_text_refuses_an_image(none: Answer, one: Answer) -> None:
    assert none.status == 200 and one.status == 422 and "images[0]" in one.refusal


@case((*OLD_IMAGE_URL, *OLD_IMAGE_DATA, *OLD_PROMPT_IMAGE), "detail", {}, OUT, "low", hosted=True)
def the_vendor_looks_less_closely(without: Answer, low: Answer) -> None:
    assert [parts(answer)[0][3] for answer in (without, low)] == [None, "low"]


@case(OLD_PART, "image_data", IMAGE_PART, DATA, DATA | {"data": "AAAABBBB"}, hosted=True)
@case(OLD_IMAGE_DATA, "data", {}, "AAAA", "AAAABBBB", hosted=True)
def the_data_reach_the_vendor(short: Answer, long: Answer) -> None:
    assert [parts(answer)[0][1] for answer in (short, long)] == ["AAAA", "AAAABBBB"]


@case(OLD_IMAGE_DATA, "media_type", {}, "image/gif", "image/webp", "image/tiff", hosted=True)
def data_have_their_media_type(gif: Answer, webp: Answer, tiff: Answer) -> None:
    assert [parts(answer)[0][0] for answer in (gif, webp)] == ["image/gif", "image/webp"]
    assert tiff.status == 422 and "image_data.media_type" in tiff.refusal


@case(OLD_IMAGE_DATA, "type", {}, "base64", "hex", hosted=True)
def data_are_base64(right: Answer, wrong: Answer) -> None:
    assert right.status == 200 and wrong.status == 422 and "image_data.type" in wrong.refusal
