"""Fireworks' requests: the page's defaults, ranges and rules, and a sentence for each that is broken."""

import json

import pytest

from antiphon.dialects.fireworks.decode import FireworksCall
from antiphon.dialects.fireworks.dialect import FireworksChatCompletions, FireworksCompletions
from antiphon.domain.messages import MediaContent, TextContent, ToolChoice
from antiphon.domain.request import (
    NO_VENDOR_OPTIONS,
    ConstraintKind,
    Mirostat,
    Overflow,
    Prediction,
    RawPrompt,
    Reasoning,
    SamplingOptions,
    VendorOptions,
    build_user_message,
)
from antiphon.errors import (
    InvalidValue,
    MalformedBody,
    MissingParameter,
    RequestError,
    UnknownParameter,
    UnsupportedParameter,
)

TEXT, CHAT = FireworksCompletions(report_unknown=False), FireworksChatCompletions(report_unknown=False)
PROMPT = {"model": "m", "prompt": "p"}
HELLO = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
TOOLS = [{"type": "function", "function": {"name": name}} for name in ("add", "sub")]


def decode(operation, **body):
    base = PROMPT if operation is TEXT else HELLO
    return operation.decode(json.dumps(base | body).encode())


def refusal(operation, **body):
    with pytest.raises(RequestError) as refused:
        decode(operation, **body)
    return refused.value


# --- defaults ---


def test_a_text_has_the_pages_defaults():
    call = decode(TEXT)
    output, sampling = call.request.output, call.request.sampling
    assert (output.max_tokens, output.choices, output.echo, output.logprobs) == (16, 1, False, None)
    assert (output.overflow, output.include_stop, output.stop) == (Overflow.SHORTEN, True, ())
    assert sampling == SamplingOptions(
        temperature=1.0, top_p=1.0, frequency_penalty=0.0, presence_penalty=0.0, repetition_penalty=1.0
    )
    assert (call.stream, call.include_usage, call.request.prompts) == (False, True, (RawPrompt(text="p"),))


def test_a_chat_makes_200_tokens_and_the_rest_is_alike():
    text, chat = decode(TEXT).request, decode(CHAT).request
    assert chat.output.max_tokens == 200
    assert chat.sampling == text.sampling
    assert (chat.output.overflow, chat.output.include_stop) == (Overflow.SHORTEN, True)


def test_null_means_absent():
    fields = "max_tokens temperature top_p top_k n stop stream logprobs echo repetition_penalty user images"
    absent = dict.fromkeys([*fields.split(), "response_format", "mirostat_target"])
    assert decode(TEXT, **absent) == decode(TEXT)


# --- ranges, bounds included ---

RANGES = {
    "frequency_penalty": (-2, 2),
    "presence_penalty": (-2, 2),
    "repetition_penalty": (0, 2),
    "temperature": (0, 2),
    "top_p": (0, 1),
    "top_k": (1, 128),
    "n": (1, 128),
    "logprobs": (0, 5),
    "min_p": (0, 1),
    "typical_p": (0, 1),
}


@pytest.mark.parametrize("operation", [TEXT, CHAT], ids=["text", "chat"])
@pytest.mark.parametrize("name", RANGES)
def test_range_ends_are_included_and_a_value_outside_is_named(operation, name):
    low, high = RANGES[name]
    for value in (low, high):
        decode(operation, **{name: value})
    for value in (low - 1, high + 1):
        refused = refusal(operation, **{name: value})
        assert (refused.param, refused.status) == (name, 400)
        assert name in refused.message and str(value) in refused.message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", -1), ("max_tokens", 1.5), ("max_tokens", "16"), ("prompt", 5), ("prompt", [1.5]),
        ("echo", 1), ("ignore_eos", "yes"), ("images", "data:"), ("images", [5]), ("stream", "true"),
        ("stop", ["a", "b", "c", "d", "e"]), ("stop", ""), ("stop", [""]), ("mirostat_target", 0),
        ("mirostat_lr", -0.1), ("user", 5), ("model", ""), ("model", None), ("n", 1.5), ("top_k", 2.5),
        ("context_length_exceeded_behavior", "shorten"), ("response_format", "json"), ("logprobs", 2.5),
        ("response_format", {"type": "json"}), ("prompt", []), ("prompt", ""), ("prompt", ["a", ""]),
        ("prompt", ["a", 1]), ("prompt", None), ("prompt", [[]]),
    ],
)  # fmt: skip
def test_what_a_field_does_not_take_is_a_400_that_names_it(name, value):
    refused = refusal(TEXT, **{name: value})
    assert refused.status == 400
    assert (refused.param or "").startswith(name) and name in refused.message


# --- prompts ---


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        (["a", "b"], (RawPrompt(text="a"), RawPrompt(text="b"))),
        ([1, 2], (RawPrompt(tokens=(1, 2)),)),
        ([[1], [2, 3]], (RawPrompt(tokens=(1,)), RawPrompt(tokens=(2, 3)))),
    ],
)
def test_a_prompt_is_a_text_texts_token_ids_or_lists_of_them(prompt, prompts):
    assert decode(TEXT, prompt=prompt).request.prompts == prompts


def test_prompts_times_n_are_bounded_and_the_refusal_says_so():
    assert decode(TEXT, prompt=["a", "b"], n=128).request.output.choices == 128
    assert "prompts times n must be at most 256" in refusal(TEXT, prompt=["a", "b", "c"], n=128).message


# --- how many tokens ---


def test_no_tokens_are_made_only_to_score_a_prompt():
    assert decode(TEXT, max_tokens=0, echo=True).request.output.max_tokens == 0
    assert refusal(TEXT, max_tokens=0).param == "max_tokens"
    assert refusal(CHAT, max_tokens=0).param == "max_tokens"


@pytest.mark.parametrize("operation", [TEXT, CHAT], ids=["text", "chat"])
def test_both_names_of_max_tokens_are_accepted_if_they_agree(operation):
    assert decode(operation, max_completion_tokens=7).request.output.max_tokens == 7
    assert decode(operation, max_completion_tokens=7, max_tokens=7).request.output.max_tokens == 7
    refused = refusal(operation, max_completion_tokens=7, max_tokens=8)
    assert (refused.param, "differ" in refused.message) == ("max_completion_tokens", True)


@pytest.mark.parametrize(("said", "overflow"), [("truncate", Overflow.SHORTEN), ("error", Overflow.ERROR)])
def test_too_many_tokens_are_lowered_or_refused_as_asked(said, overflow):
    assert decode(TEXT, context_length_exceeded_behavior=said).request.output.overflow is overflow
    assert decode(CHAT, context_length_exceeded_behavior=said).request.output.overflow is overflow


# --- sampling ---


def test_a_repetition_penalty_of_0_is_the_smallest_divisor():
    assert 0 < (decode(TEXT, repetition_penalty=0).request.sampling.repetition_penalty or 0) <= 1e-6


@pytest.mark.parametrize(
    ("said", "mirostat"),
    [
        ({}, None),
        ({"mirostat_target": 3}, Mirostat(3, 0.1)),
        ({"mirostat_lr": 0.2}, Mirostat(1.5, 0.2)),
        ({"mirostat_target": 2, "mirostat_lr": 0.3}, Mirostat(2, 0.3)),
    ],
)
def test_mirostat_is_on_where_either_of_its_fields_is_sent(said, mirostat):
    assert decode(TEXT, **said).request.sampling.mirostat == mirostat


def test_further_sampling_fields_are_the_supersets():
    said = {"min_p": 0.1, "typical_p": 0.5, "seed": 3, "top_k": 7, "ignore_eos": True}
    sampling = decode(TEXT, **said, logit_bias={"5": -100}).request.sampling
    assert {name: getattr(sampling, name) for name in said} == said
    assert sampling.logit_bias == ((5, -100.0),)
    assert decode(TEXT, prompt_cache_isolation_key="mine").request.cache_salt == "mine"
    assert [decode(TEXT, return_token_ids=said).request.output.token_ids for said in (None, True)] == [
        False,
        True,
    ]


# --- log-probabilities ---


@pytest.mark.parametrize("operation", [TEXT, CHAT], ids=["text", "chat"])
@pytest.mark.parametrize(
    ("said", "alternatives", "entries"),
    [
        ({}, None, False),
        ({"logprobs": False}, None, False),
        ({"logprobs": 0}, 0, False),
        ({"logprobs": 5}, 5, False),
        ({"logprobs": 1}, 1, False),
        ({"logprobs": True}, 0, True),
        ({"logprobs": True, "top_logprobs": 3}, 3, True),
        ({"logprobs": 2, "top_logprobs": 2}, 2, False),
    ],
)
def test_log_probabilities_are_asked_for_by_number_or_by_true(operation, said, alternatives, entries):
    call = decode(operation, **said)
    assert isinstance(call, FireworksCall)
    assert (call.request.output.logprobs, call.has_entries) == (alternatives, entries)


def test_top_logprobs_alone_have_their_own_sentence():
    for operation in (TEXT, CHAT):
        refused = refusal(operation, top_logprobs=2)
        assert (refused.param, "only together with logprobs" in refused.message) == ("top_logprobs", True)
        assert refusal(operation, logprobs=True, top_logprobs=6).param == "top_logprobs"
        for number in (0, 4):
            assert "different" in refusal(operation, logprobs=2, top_logprobs=number).message


# --- response_format ---

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("asked", "kind", "field"),
    [
        ({"type": "json_object"}, ConstraintKind.JSON_OBJECT, "response_format"),
        ({"type": "json_object", "schema": SCHEMA}, ConstraintKind.JSON_SCHEMA, "response_format.schema"),
        ({"type": "json_object", "schema": json.dumps(SCHEMA)}, ConstraintKind.JSON_SCHEMA,
         "response_format.schema"),
        ({"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}, ConstraintKind.JSON_SCHEMA,
         "response_format.json_schema.schema"),
        ({"type": "json_schema", "json_schema": json.dumps(SCHEMA)}, ConstraintKind.JSON_SCHEMA,
         "response_format.json_schema.schema"),
        ({"type": "grammar", "grammar": 'root ::= "a"'}, ConstraintKind.GBNF, "response_format.grammar"),
        ({"type": "grammar", "grammar": 'start: "a"'}, ConstraintKind.LARK, "response_format.grammar"),
    ],
    ids=range(7),
)  # fmt: skip
def test_a_response_format_is_a_constraint(asked, kind, field):
    for operation in (TEXT, CHAT):
        constraint = decode(operation, response_format=asked).request.output.constraint
        assert (constraint.kind, constraint.field) == (kind, field)
        if kind is ConstraintKind.JSON_SCHEMA:
            assert json.loads(constraint.source) == SCHEMA


def test_text_is_no_constraint():
    assert decode(TEXT, response_format={"type": "text"}) == decode(TEXT)


@pytest.mark.parametrize(
    ("asked", "error", "param"),
    [
        ({"type": "json_schema"}, MissingParameter, "response_format.json_schema"),
        ({"type": "grammar"}, MissingParameter, "response_format.grammar"),
        ({"type": "json_object", "grammar": "x"}, InvalidValue, "response_format.grammar"),
        ({"type": "text", "schema": SCHEMA}, InvalidValue, "response_format.schema"),
        ({"type": "json_object", "schema": "{"}, InvalidValue, "response_format.schema"),
        ({"type": "json_object", "schema": {"type": "array"}}, InvalidValue, "response_format.schema"),
        ({"type": "json_object", "response_schema": SCHEMA}, UnknownParameter, "response_format"),
        ({}, MissingParameter, "response_format.type"),
    ],
    ids=range(8),
)
def test_a_response_format_that_contradicts_itself_is_named(asked, error, param):
    refused = refusal(TEXT, response_format=asked)
    assert isinstance(refused, error) and refused.param.startswith(param)


# --- images ---

IMAGE = "data:image/png;base64,iVBORw0KGgo="
GIF = "data:image/gif;base64,AAAA"


@pytest.mark.parametrize(
    ("prompt", "images"),
    [("p", []), (["p", "q"], []), (["p", "q"], [[], []]), ([1, 2], []), ("p", [[]])],
    ids=range(5),
)
def test_no_images_are_fine(prompt, images):
    assert decode(TEXT, prompt=prompt, images=images) == decode(TEXT, prompt=prompt)


@pytest.mark.parametrize(
    ("prompt", "images", "sentence"),
    [
        ("What is <image>?", [IMAGE, IMAGE], "it holds 2, and the prompt has 1"),
        ("What is it?", [IMAGE], "it holds 1, and the prompt has 0"),
        ("What is <image>?", [], "it holds 0, and the prompt has 1"),
        (["<image>", "b"], [[IMAGE], [IMAGE]], "images[1] must hold one image for each <image> in"),
        (["<image>", "b"], [IMAGE], "images must hold a list for each prompt, of which there are 2"),
        (["<image>", "b"], [[IMAGE]], "images must hold a list for each prompt, of which there are 2"),
        ("<image>", [[IMAGE], [IMAGE]], "images must be one list for one prompt"),
        ("<image>", [[IMAGE], IMAGE], "images must hold only texts or only lists of texts"),
        ([1, 2], [IMAGE], "images needs a prompt that is a text with <image>"),
    ],
    ids=range(9),
)  # fmt: skip
def test_images_that_do_not_match_their_places_get_own_message(prompt, images, sentence):
    refused = refusal(TEXT, prompt=prompt, images=images)
    assert isinstance(refused, InvalidValue) and sentence in refused.message and refused.param == "images"


@pytest.mark.parametrize(
    ("images", "fields"),
    [([IMAGE, GIF], ["images[0]", "images[1]"]), ([[IMAGE, GIF]], ["images[0][0]", "images[0][1]"])],
    ids=range(2),
)
def test_a_prompt_has_each_image_in_its_place_and_is_a_message_for_a_vendor(images, fields):
    (prompt,) = decode(TEXT, prompt="<image>a<image>b", images=images).request.prompts
    assert isinstance(prompt, RawPrompt) and prompt.text is None
    conversation = build_user_message(prompt)
    (message,) = conversation.messages
    assert message.content == prompt.content and message.text == "ab"
    first, text, second, end = message.content
    assert (text, end) == (TextContent("a"), TextContent("b"))
    assert isinstance(first, MediaContent) and isinstance(second, MediaContent)
    assert [(image.field, image.media_type) for image in (first, second)] == [
        (fields[0], "image/png"),
        (fields[1], "image/gif"),
    ]
    assert not conversation.reasoning.shown


@pytest.mark.parametrize(
    ("image", "error"),
    [("a", InvalidValue), ("data:image/png;base64,A", InvalidValue), ("ftp://a", UnsupportedParameter)],
)
def test_an_image_that_is_none_is_named(image, error):
    refused = refusal(TEXT, prompt="<image>", images=[image])
    assert isinstance(refused, error) and refused.param == "images[0]"


def test_images_of_several_prompts_are_refused_by_name():
    refused = refusal(TEXT, prompt=["<image>", "b"], images=[[IMAGE], []])
    assert isinstance(refused, UnsupportedParameter) and refused.param == "images"
    assert "a request for each prompt" in refused.message


# --- tools ---


@pytest.mark.parametrize(
    ("asked", "choice", "allowed"),
    [
        (None, ToolChoice.AUTO, None),
        ("auto", ToolChoice.AUTO, None),
        ("none", ToolChoice.NONE, None),
        ("required", ToolChoice.REQUIRED, None),
        ("any", ToolChoice.REQUIRED, None),
        ({"type": "function", "function": {"name": "sub"}}, ToolChoice.REQUIRED, {"sub"}),
        ({"type": "function", "name": "sub"}, ToolChoice.REQUIRED, {"sub"}),
    ],
)
def test_a_tool_is_chosen_in_fireworks_words(asked, choice, allowed):
    (prompt,) = decode(CHAT, tools=TOOLS, tool_choice=asked).request.prompts
    assert (prompt.tools.choice, prompt.tools.allowed) == (choice, allowed)


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ("some", "tool_choice"),
        ({"type": "function"}, "tool_choice.function"),
        ({"type": "function", "name": "sub", "function": {"name": "sub"}}, "tool_choice.name"),
        ({"type": "function", "name": "mul"}, "tool_choice.name"),
    ],
)
def test_a_tool_choice_that_is_none_is_named(asked, param):
    assert refusal(CHAT, tools=TOOLS, tool_choice=asked).param == param


def test_calls_can_be_made_one_by_one():
    (prompt,) = decode(CHAT, tools=TOOLS, parallel_tool_calls=False).request.prompts
    assert prompt.tools.parallel is False
    assert refusal(CHAT, parallel_tool_calls=True).param == "parallel_tool_calls"


# --- what else is known ---


@pytest.mark.parametrize(
    ("name", "refused", "taken"),
    [
        ("echo_last", 3, 0), ("raw_output", True, False), ("perf_metrics_in_response", True, False),
        ("stream_options", {"include_usage": False}, {}),
    ],
)  # fmt: skip
def test_unbuilt_fields_are_refused_unless_they_change_nothing(name, refused, taken):
    for operation in (TEXT, CHAT):
        problem = refusal(operation, **{name: refused})
        assert isinstance(problem, UnsupportedParameter) and problem.param == name
        assert decode(operation, **{name: taken}) == decode(operation)


@pytest.mark.parametrize(
    ("name", "value"), [("prompt_truncate_len", 1500), ("safe_tokenization", False), ("echo", True)]
)
def test_a_chats_own_fields_too(name, value):
    assert isinstance(refusal(CHAT, **{name: value}), UnsupportedParameter)


def test_options_of_hosted_services_are_kept():
    for operation in (TEXT, CHAT):
        call = decode(operation, prompt_cache_key="k", service_tier="priority")
        assert call.request.vendor_options == VendorOptions(None, "priority", "k") and call.ignored == ()
        assert decode(operation, prompt_cache_key="").request.vendor_options == NO_VENDOR_OPTIONS


def test_whom_a_request_is_ascribed_to_is_kept():
    for operation in (TEXT, CHAT):
        said = decode(operation, user="ada", metadata={"team": "blue"}).attribution
        assert (said.end_user, said.tags, said.fields) == ("ada", {"team": "blue"}, ("user", "metadata"))
        assert refusal(operation, metadata={"k" * 65: "v"}).param == "metadata"


def test_what_nobody_knows_is_refused_or_told():
    refused = refusal(TEXT, temprature=1)
    assert isinstance(refused, UnknownParameter) and "did you mean temperature?" in refused.message
    assert "it belongs to /fireworks/inference/v1/completions" in refusal(CHAT, prompt="p").message
    reporting = FireworksCompletions(report_unknown=True)
    assert reporting.decode(json.dumps(PROMPT | {"zzz": 1}).encode()).ignored == ("zzz",)


@pytest.mark.parametrize("body", [b"", b"[]", b'{"model": "m", "model": "n"}', b"\xff", b'{"n": NaN}'])
def test_a_body_that_is_no_object_is_malformed(body):
    for operation in (TEXT, CHAT):
        with pytest.raises(MalformedBody):
            operation.decode(body)


# --- reasoning ---


@pytest.mark.parametrize(
    ("said", "reasoning"),
    [
        ({}, Reasoning()),
        ({"reasoning_effort": "high"}, Reasoning("high")),
        ({"reasoning_effort": True}, Reasoning("medium")),
        ({"reasoning_effort": False}, Reasoning("none")),
        ({"reasoning_effort": 1}, Reasoning(budget=1)),
        ({"thinking": {"type": "enabled"}}, Reasoning("medium")),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, Reasoning(budget=1024)),
        ({"thinking": {"type": "disabled"}}, Reasoning("none")),
    ],
)
def test_reasoning_is_asked_for_in_either_way(said, reasoning):
    (prompt,) = decode(CHAT, **said).request.prompts
    assert prompt.reasoning == reasoning
    assert prompt.reasoning.field_names.effort == ("thinking" if "thinking" in said else "reasoning_effort")


@pytest.mark.parametrize(
    ("said", "param"),
    [
        ({"reasoning_effort": "much"}, "reasoning_effort"),
        ({"reasoning_effort": 0}, "reasoning_effort"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1023}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "disabled", "budget_tokens": 2000}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled"}, "reasoning_effort": "low"}, "thinking"),
        ({"thinking": {"type": "enabled", "budget": 2000}}, "thinking.budget"),
    ],
)
def test_reasoning_that_cannot_be_is_named(said, param):
    assert refusal(CHAT, **said).param == param


def test_a_raw_prompt_is_not_read_for_reasoning():
    for said in ({"reasoning_effort": "low"}, {"thinking": {"type": "enabled"}}):
        assert isinstance(refusal(TEXT, **said), UnsupportedParameter)
    assert decode(TEXT, reasoning_effort="none", thinking={"type": "disabled"}) == decode(TEXT)


# --- predictions ---


@pytest.mark.parametrize("operation", [TEXT, CHAT])
def test_a_prediction_has_two_names_and_three_forms(operation):
    def read(**fields):
        return decode(operation, **fields).request.vendor_options.prediction

    assert read() is read(prediction=None) is None
    assert read(prediction="a b") == Prediction("a b")
    assert read(prediction={"type": "content", "content": "a b"}) == Prediction("a b")
    parts = [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]
    assert read(prediction={"type": "content", "content": parts}) == Prediction("a b")
    assert read(speculation="a b") == Prediction("a b", field="speculation")
    assert read(speculation=[5, 0]) == Prediction("", (5, 0), "speculation")
    assert decode(operation, prediction="a", n=2).request.output.choices == 2


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prediction": "a", "speculation": "a"}, "speculation"),
        ({"speculation": ["a"]}, "speculation[0]"),
        ({"speculation": {"type": "content", "content": "a"}}, "speculation"),
        ({"prediction": [5]}, "prediction"),
        ({"prediction": {"content": "a"}}, "prediction.type"),
    ],
)
def test_a_wrong_prediction_is_refused_by_name(fields, param):
    assert refusal(CHAT, **fields).param == param
