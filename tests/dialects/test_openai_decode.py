"""From bodies to generation requests: what each field becomes, and the sentence for what it may not be."""

import json
import time
import timeit

import pytest

from antiphon.dialects.common.decode import read_sampling
from antiphon.dialects.common.request_types import BodyShape
from antiphon.dialects.openai.dialect import decode_chat, decode_text
from antiphon.domain.messages import Message, Role
from antiphon.domain.request import Conversation, Mirostat, Output, RawPrompt, SamplingOptions, Truncation
from antiphon.errors import AntiphonError, InvalidValue, MissingParameter

MESSAGES = [{"role": "user", "content": "hi"}]


def chat(**fields):
    return decode_chat(json.dumps({"model": "m", "messages": MESSAGES} | fields).encode())


def text(**fields):
    return decode_text(json.dumps({"model": "m", "prompt": "hi"} | fields).encode())


def refusal(decode, **fields) -> AntiphonError:
    with pytest.raises(AntiphonError) as caught:
        decode(**fields)
    return caught.value


def test_a_bare_chat_asks_for_one_answer_of_any_length():
    call = chat()
    assert call.request.prompts == (Conversation((Message(Role.USER, "hi"),)),)
    assert (call.request.model, call.request.sampling, call.request.output) == (
        "m",
        SamplingOptions(),
        Output(),
    )
    assert (call.stream, call.include_usage, call.ignored) == (False, False, ())


def test_a_bare_text_completion_makes_sixteen_tokens():
    call = text()
    assert call.request.prompts == (RawPrompt(text="hi"),)
    assert call.request.output == Output(max_tokens=16, is_default_max_tokens=True)


@pytest.mark.parametrize("decode", [chat, text])
def test_every_supported_field_arrives(decode):
    call = decode(
        temperature=0, top_p=1, top_k=40, min_p=0.05, seed=-(2**63), max_tokens=5, n=3, stop=["a", "b"],
        stop_token_ids=[0, 7], stream=True, stream_options={"include_usage": True}, user="u",
    )  # fmt: skip
    assert call.request.sampling == SamplingOptions(0.0, 1.0, 40, 0.05, -(2**63))
    assert call.request.output == Output(5, 3, ("a", "b"), (0, 7))
    assert (call.stream, call.include_usage, call.attribution.end_user) == (True, True, "u")


def test_nulls_mean_absent_everywhere():
    nulls = dict.fromkeys(
        ["temperature", "top_p", "top_k", "min_p", "seed", "max_tokens", "n", "stop", "stream", "tools",
         "stream_options", "stop_token_ids", "user", "logit_bias", "max_completion_tokens"]
    )  # fmt: skip
    message = {"role": "user", "content": "hi", "name": None, "tool_calls": None}
    assert chat(**nulls, messages=[message]) == chat()


def test_roles_names_and_parts_become_messages():
    messages = [
        {"role": "system", "content": "s"},
        {"role": "developer", "content": "d", "name": "dev"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": "", "tool_calls": [], "refusal": None},
    ]
    (conversation,) = chat(messages=messages).request.prompts
    assert conversation.messages == (
        Message(Role.SYSTEM, "s"),
        Message(Role.DEVELOPER, "d", "dev"),
        Message(Role.USER, "ab"),
        Message(Role.ASSISTANT, ""),
    )


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("a", (RawPrompt("a"),)),
        (["a", "b"], (RawPrompt("a"), RawPrompt("b"))),
        ([1, 2], (RawPrompt(tokens=(1, 2)),)),
        ([[1], [2, 3]], (RawPrompt(tokens=(1,)), RawPrompt(tokens=(2, 3)))),
    ],
)
def test_a_prompt_has_four_forms(prompt, prompts):
    assert text(prompt=prompt).request.prompts == prompts


@pytest.mark.parametrize(("given", "cap"), [({"max_tokens": 3}, 3), ({"max_completion_tokens": 4}, 4)])
def test_a_chat_has_two_names_for_its_cap(given, cap):
    assert chat(**given).request.output.max_tokens == cap


def test_both_names_may_agree_and_may_not_differ():
    assert chat(max_tokens=3, max_completion_tokens=3).request.output.max_tokens == 3
    error = refusal(chat, max_tokens=3, max_completion_tokens=4)
    assert (error.code, error.param) == ("invalid_value", "max_completion_tokens")


def test_one_stop_text_needs_no_list():
    assert chat(stop="a").request.output.stop == ("a",)


def test_minus_one_keeps_all_as_zero_does():
    assert chat(top_k=-1).request.sampling.top_k == chat(top_k=0).request.sampling.top_k == 0


OUT_OF_RANGE = [
    ("temperature", "hot", "must be a number; got a string"),
    ("temperature", 2.1, "must be a number of at most 2; got 2.1"),
    ("temperature", -0.1, "must be a number of at least 0; got -0.1"),
    ("temperature", True, "must be a number; got true"),
    ("temperature", [1], "must be a number; got a list"),
    ("top_p", 1.01, "must be a number of at most 1; got 1.01"),
    ("min_p", -1, "must be a number of at least 0; got -1"),
    ("top_k", -2, "must be an integer of at least -1; got -2"),
    ("top_k", 0.5, "must be an integer; got 0.5"),
    ("seed", 2**63, "must be an integer of at most 9223372036854775807; got 9223372036854775808"),
    ("seed", "1", "must be an integer; got a string"),
    ("n", 0, "must be an integer of at least 1; got 0"),
    ("n", 129, "must be an integer of at most 128; got 129"),
    ("n", True, "must be an integer; got true"),
    ("presence_penalty", -2.1, "must be a number of at least -2; got -2.1"),
    ("frequency_penalty", 2.5, "must be a number of at most 2; got 2.5"),
    ("repetition_penalty", 0, "must be a number above 0; got 0"),
    ("repetition_penalty", 2.01, "must be a number of at most 2; got 2.01"),
    ("typical_p", 1.5, "must be a number of at most 1; got 1.5"),
    ("mirostat_target", 0, "must be a number above 0; got 0"),
    ("mirostat_lr", 1.1, "must be a number of at most 1; got 1.1"),
    ("min_tokens", -1, "must be an integer of at least 0; got -1"),
    ("ignore_eos", 1, "must be true or false; got 1"),
    ("allowed_token_ids", [], "must be a list that is not empty; got an empty list"),
    ("logit_bias", [], "must be an object; got an empty list"),
    (
        "logit_bias",
        {str(token): 0 for token in range(2000)},
        "must be an object of at most 1024 items; got 2000",
    ),
    ("cache_salt", "", "must be a text that is not empty; got an empty string"),
    ("max_tokens", 2**31, "must be an integer of at most 2147483647; got 2147483648"),
    ("max_tokens", 10**100, "must be an integer of at most 2147483647; got a number of many digits"),
    ("max_tokens", 1.5, "must be an integer; got 1.5"),
    ("stop", "", "must be a text that is not empty; got an empty string"),
    ("stop", ["a"] * 5, "must be a list of at most 4 items; got 5"),
    ("stop", "x" * 1025, "must be a text of at most 1024 characters; got 1025"),
    ("stop", 3, "must be a text or a list; got 3"),
    ("stop_token_ids", [0] * 129, "must be a list of at most 128 items; got 129"),
    ("bad_words", ["a"] * 129, "must be a list of at most 128 items; got 129"),
    ("bad_words", "a", "must be a list; got a string"),
    ("priority", 2**31, "must be an integer of at most 2147483647; got 2147483648"),
    ("priority", 0.5, "must be an integer; got 0.5"),
    ("stream", 1, "must be true or false; got 1"),
    ("stream", "true", "must be true or false; got a string"),
    ("stream_options", [], "must be an object; got an empty list"),
    ("model", 3, "must be a text; got 3"),
    ("model", "", "must be a text that is not empty; got an empty string"),
    ("model", "x" * 257, "must be a text of at most 256 characters; got 257"),
    ("user", 5, "must be a text; got 5"),
]


@pytest.mark.parametrize("decode", [chat, text])
@pytest.mark.parametrize(("name", "value", "says"), OUT_OF_RANGE)
def test_a_wrong_value_is_refused_with_expected_and_given_values(decode, name, value, says):
    error = refusal(decode, **{name: value})
    assert (error.status, error.code, error.param) == (400, "invalid_value", name)
    assert error.message == f"{name} {says}"


def test_infinity_by_overflow_is_out_of_range():
    body = b'{"model":"m","prompt":"hi","temperature":1e999}'
    with pytest.raises(InvalidValue) as caught:
        decode_text(body)
    assert caught.value.param == "temperature"


IN_MESSAGES = [
    ("x", "invalid_value", "messages"),
    ([], "invalid_value", "messages"),
    ({}, "invalid_value", "messages"),
    ([1], "invalid_value", "messages[0]"),
    ([{"content": "hi"}], "missing_required_parameter", "messages[0].role"),
    ([{"role": "user"}], "missing_required_parameter", "messages[0].content"),
    ([{"role": "user", "content": None}], "missing_required_parameter", "messages[0].content"),
    ([{"role": "user", "content": 5}], "invalid_value", "messages[0].content"),
    ([{"role": "user", "content": []}], "invalid_value", "messages[0].content"),
    ([{"role": "user", "content": ["a"]}], "invalid_value", "messages[0].content[0]"),
    (
        [{"role": "user", "content": [{"type": "text"}]}],
        "missing_required_parameter",
        "messages[0].content[0].text",
    ),
    (
        [{"role": "user", "content": [{"text": "a"}]}],
        "missing_required_parameter",
        "messages[0].content[0].type",
    ),
    (
        [{"role": "user", "content": [{"type": "x", "text": "a"}]}],
        "invalid_value",
        "messages[0].content[0].type",
    ),
    (
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://10.0.0.1/"}}]}],
        "unsupported_parameter",
        "messages[0].content[0].image_url",
    ),
    (
        [
            {
                "role": "user",
                "content": [{"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}],
            }
        ],
        "invalid_value",
        "messages[0].content[0].input_audio.data",
    ),
    ([{"role": "function", "content": "a", "name": "f"}], "unsupported_parameter", "messages[0].role"),
    ([{"role": "king", "content": "a"}], "invalid_value", "messages[0].role"),
    ([{"role": 5, "content": "a"}], "invalid_value", "messages[0].role"),
    ([{"role": "user", "content": "a", "name": ""}], "invalid_value", "messages[0].name"),
    ([{"role": "user", "content": "a", "colour": "red"}], "unknown_parameter", "messages[0].colour"),
    (
        [{"role": "assistant", "content": "a", "tool_calls": [{"id": "c"}]}],
        "missing_required_parameter",
        "messages[0].tool_calls[0].function",
    ),
    ([{"role": "user", "content": "a"}] * 4097, "invalid_value", "messages"),
]


@pytest.mark.parametrize(
    ("messages", "code", "param"), IN_MESSAGES, ids=[str(index) for index in range(len(IN_MESSAGES))]
)
def test_a_wrong_message_is_refused_with_its_place(messages, code, param):
    error = refusal(chat, messages=messages)
    assert (error.status, error.code, error.param) == (400, code, param)


IN_PROMPTS = [
    ([], "prompt"),
    ([[]], "prompt[0]"),
    ([1, "a"], "prompt"),
    ([[1], 2], "prompt"),
    ([1, -1], "prompt[1]"),
    ([True], "prompt[0]"),
    ([1.5], "prompt[0]"),
    ([2**31], "prompt[0]"),
    ([[2**31]], "prompt[0][0]"),
    ([["a"]], "prompt[0][0]"),
    (7, "prompt"),
    ({"a": 1}, "prompt"),
    (["a"] * 257, "prompt"),
]


@pytest.mark.parametrize(
    ("prompt", "param"), IN_PROMPTS, ids=[str(index) for index in range(len(IN_PROMPTS))]
)
def test_a_wrong_prompt_is_refused_with_its_place(prompt, param):
    error = refusal(text, prompt=prompt)
    assert (error.status, error.code, error.param) == (400, "invalid_value", param)


def test_no_prompt_is_an_empty_text():
    body = {"model": "m"}
    for fields in ({}, {"prompt": None}, {"prompt": ""}, {"prompt": [""]}):
        call = decode_text(json.dumps(body | fields).encode())
        assert call.request.prompts == (RawPrompt(text=""),)


@pytest.mark.parametrize("value", [None, ...])
@pytest.mark.parametrize(
    ("decode", "name"),
    [(decode_chat, "model"), (decode_chat, "messages"), (decode_text, "model")],
)
def test_what_is_required_must_be_there(decode, name, value):
    body = {"model": "m", "messages": MESSAGES} if decode is decode_chat else {"model": "m", "prompt": "hi"}
    body = {key: held for key, held in body.items() if key != name} | ({} if value is ... else {name: value})
    with pytest.raises(MissingParameter) as caught:
        decode(json.dumps(body).encode())
    assert caught.value.param == name


@pytest.mark.parametrize("decode", [chat, text])
def test_stream_options_belong_to_streams(decode):
    for more in ({}, {"stream": False}):
        assert refusal(decode, stream_options={"include_usage": True}, **more).param == "stream_options"
    error = refusal(decode, stream=True, stream_options={"include_usage": 1})
    assert error.param == "stream_options.include_usage"
    error = refusal(decode, stream=True, stream_options={"surprise": 1})
    assert (error.code, error.param) == ("unknown_parameter", "stream_options.surprise")
    error = refusal(decode, stream=True, stream_options={"include_obfuscation": True})
    assert (error.code, error.param) == ("unsupported_parameter", "stream_options.include_obfuscation")
    assert not decode(stream=True, stream_options={"include_obfuscation": False}).include_usage


def test_prompts_times_choices_are_bounded():
    assert len(text(prompt=["a"] * 128, n=2).request.prompts) == 128
    assert refusal(text, prompt=["a"] * 129, n=2).param == "prompt"
    assert refusal(text, prompt=["a", "b"], n=129).param == "n"


def test_best_of_may_not_be_less_than_n():
    assert text(best_of=1).request.output == text().request.output
    assert text(best_of=8, n=2).request.output == Output(16, 2, best_of=8, is_default_max_tokens=True)
    error = refusal(text, best_of=1, n=2)
    assert (error.param, error.message) == ("best_of", "best_of must be at least n, which is 2; got 1")
    assert refusal(text, best_of=21).param == "best_of"


def test_best_of_is_not_streamed():
    error = refusal(text, best_of=2, stream=True)
    assert error.param == "best_of" and "cannot be streamed" in error.message
    assert text(best_of=1, stream=True).stream


def test_the_candidates_of_all_prompts_are_bounded():
    assert refusal(text, prompt=["a"] * 13, best_of=20).message == "prompts times best_of must be at most 256"


def test_no_tokens_are_asked_for_only_with_echo():
    assert text(max_tokens=0, echo=True).request.output == Output(0, echo=True)
    for decode in (chat, text):
        error = refusal(decode, max_tokens=0)
        assert error.param == "max_tokens" and "at least 1" in error.message
    assert refusal(text, max_tokens=-5, echo=True).param == "max_tokens"


def test_logprobs_are_a_number_for_text_and_two_fields_for_chat():
    assert [text(logprobs=count).request.output.logprobs for count in (None, 0, 5, 20)] == [None, 0, 5, 20]
    assert refusal(text, logprobs=-2).param == refusal(text, logprobs=True).param == "logprobs"
    for fields, wanted in (
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": 20}, 20),
        ({"logprobs": False, "top_logprobs": 0}, None),
    ):
        assert chat(**fields).request.output.logprobs == wanted
    error = refusal(chat, top_logprobs=3)
    assert (error.param, error.message) == (
        "top_logprobs",
        "top_logprobs is taken only together with logprobs: true",
    )
    assert refusal(chat, logprobs=True, top_logprobs=-2).param == "top_logprobs"


@pytest.mark.parametrize("decode", [chat, text])
def test_listed_token_ids_need_scores_of_made_tokens(decode):
    scored = {"logprobs": True} if decode is chat else {"logprobs": 0}
    call = decode(**scored, logprob_token_ids=[7, 9, 7])
    assert (call.request.output.logprob_token_ids, call.ignored) == ((7, 9), ())
    assert decode(**scored, logprob_token_ids=[7] * 128).request.output.logprob_token_ids == (7,)
    assert refusal(decode, logprob_token_ids=[7]).param == "logprob_token_ids"
    for wrong in ([], [7] * 129):
        assert refusal(decode, **scored, logprob_token_ids=wrong).param == "logprob_token_ids"


def test_listed_token_ids_take_the_place_of_the_likeliest():
    assert chat(logprobs=True, top_logprobs=2, logprob_token_ids=[7]).ignored == ("top_logprobs",)
    refused = refusal(text, logprobs=1, logprob_token_ids=[7], echo=True, max_tokens=0)
    assert refused.param == "logprob_token_ids" and "max_tokens 0" in refused.message


@pytest.mark.parametrize("decode", [chat, text])
def test_a_side_belongs_to_a_prompt_that_is_cut(decode):
    cut = decode(truncate_prompt_tokens=3, truncation_side="right").request.output
    assert (cut.truncate_prompt, cut.truncation) == (3, Truncation.RIGHT)
    assert decode(truncate_prompt_tokens=3).request.output.truncation is Truncation.LEFT
    for fields in ({"truncation_side": "left"}, {"truncation_side": "up", "truncate_prompt_tokens": 3}):
        assert refusal(decode, **fields).param == "truncation_side"


@pytest.mark.parametrize("decode", [chat, text])
def test_best_of_zero_is_absent(decode):
    assert decode(best_of=0).request == decode().request
    assert decode(best_of=0, n=3, stream=True).request == decode(n=3, stream=True).request


@pytest.mark.parametrize("decode", [chat, text])
def test_every_field_of_sampling_arrives(decode):
    sampling = decode(
        presence_penalty=-2, frequency_penalty=2, repetition_penalty=1.1, typical_p=0.5, min_tokens=3,
        logit_bias={"7": -100, "0": 1.5}, ignore_eos=True, allowed_token_ids=[7, 9, 7, 7], max_tokens=3,
    ).request.sampling  # fmt: skip
    assert sampling == SamplingOptions(
        presence_penalty=-2, frequency_penalty=2, repetition_penalty=1.1, typical_p=0.5, min_tokens=3,
        logit_bias=((7, -100), (0, 1.5)), ignore_eos=True, allowed_token_ids=(7, 9),
    )  # fmt: skip
    assert decode(cache_salt="s").request.cache_salt == "s"


def test_either_field_turns_mirostat_on():
    assert text().request.sampling.mirostat is None
    assert text(mirostat_target=3).request.sampling.mirostat == Mirostat(3, 0.1)
    assert text(mirostat_lr=0.2).request.sampling.mirostat == Mirostat(1.5, 0.2)


@pytest.mark.parametrize("key", ["", "a", "-1", "01", "1.0", " 1", "٣", "1" * 11])
def test_a_bias_is_of_a_token_id_in_its_one_spelling(key):
    error = refusal(text, logit_bias={key: 1})
    assert (error.param or "").startswith("logit_bias.") and "token ids" in error.message


def test_a_bias_is_bounded():
    error = refusal(text, logit_bias={"7": 100.5})
    assert (error.param, error.message) == (
        "logit_bias.7",
        "logit_bias.7 must be a number of -100 to 100; got 100.5",
    )
    assert refusal(text, logit_bias={str(token): 1 for token in range(1025)}).param == "logit_bias"


@pytest.mark.parametrize("value", [True, None, "1", [1]])
def test_a_bias_that_is_no_number_is_refused_by_its_field(value):
    error = refusal(text, logit_bias={"7": 1, "8": value})
    assert (error.param, error.message) == ("logit_bias", "logit_bias must have a number at each key")


def test_no_more_tokens_are_required_than_allowed():
    error = refusal(text, min_tokens=4, max_tokens=3)
    assert (error.param, error.message) == (
        "min_tokens",
        "min_tokens must be at most max_tokens, which is 3; got 4",
    )
    assert text(min_tokens=16).request.sampling.min_tokens == 16
    assert refusal(text, min_tokens=17).param == "min_tokens"


def test_no_refusal_repeats_what_was_written():
    """Only a short wrong choice is shown: a misspelled role or type."""
    canary = "canary-prompt-93fe-that-is-longer-than-a-name"
    for fields in (
        {"messages": canary},
        {"messages": [{"role": canary, "content": "a"}]},
        {"messages": [{"role": "user", "content": [{"type": canary, "text": canary}]}]},
        {"temperature": canary},
        {"stop": [canary, 1]},
        {"response_format": {"type": canary}},
        {"metadata": {canary: 5}},
        {"metadata": {canary * 10: "a"}},
        {"user": canary * 100},
    ):
        assert canary not in refusal(chat, **fields).message


def test_a_usual_body_is_decoded_in_a_moment():
    """Stated: 100 microseconds."""
    body = json.dumps(
        {"model": "m", "messages": [*MESSAGES, {"role": "user", "content": "x" * 300}],
         "temperature": 0.7, "max_tokens": 128, "stream": True, "stream_options": {"include_usage": True}}
    ).encode()  # fmt: skip
    taken = timeit.repeat(lambda: decode_chat(body), number=200, repeat=5, timer=time.process_time)
    assert min(taken) / 200 < 1000e-6


class OneOption(BodyShape, frozen=True):
    """A wire type with one sampling option."""

    temperature: float | None = None


def test_a_wire_type_may_have_one_sampling_option_or_none() -> None:
    assert read_sampling(OneOption(0.5)) == SamplingOptions(temperature=0.5)
    assert read_sampling(OneOption(), defaults={"temperature": 0.2}) == SamplingOptions(temperature=0.2)
    assert read_sampling(BodyShape()) == SamplingOptions()
