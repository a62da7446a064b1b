"""Calls in the notations of the families: read from texts in their published formats, however they are cut,
and read back from whatever the constraint allows."""

import json
import time
from itertools import pairwise
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.constraints.checking_process import check_constraint
from antiphon.constraints.grammar_types import NumberMark, load_group
from antiphon.domain.messages import Tool, ToolChoice, Tools
from antiphon.errors import InvalidValue
from antiphon.rendering.call_notation import CALL_FAMILIES, detect_notation
from antiphon.rendering.call_readers import CallArguments, CallName, VisiblePart
from antiphon.settings.models import ModelSettings
from tests.support.call_texts import IDS, NOW, SCHEMAS, VOCABULARY, WEATHER, begin, takes, walk

ARGUMENTS = '{"city": "Bern", "days": [1, {"a": "}\\"{"}]}'

# Each written for this test in the format that the model's authors publish: family, text, content, calls,
# whether the last call is whole.
READINGS = [
    ("hermes", "Hello there. ", "Hello there. ", [], False),
    ("hermes", " \n Hello", " \n Hello", [], False),
    (
        "hermes",
        f'<tool_call>\n{{"name": "f", "arguments": {ARGUMENTS}}}\n</tool_call>',
        "",
        [("f", ARGUMENTS)],
        True,
    ),
    ("hermes", '<tool_call>{"name": "f", "arguments": {}}</tool_call>', "", [("f", "{}")], True),
    (
        "hermes",
        'Let me see.\n<tool_call>\n{"arguments": {"a": 1}, "name": "f"}\n</tool_call>\n'
        '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>\nDone.',
        "Let me see.\nDone.",
        [("f", '{"a": 1}'), ("g", "{}")],
        True,
    ),
    (
        "hermes",
        '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>',
        "",
        [("f", '{"a": 1}')],
        True,
    ),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "b', "", [("f", '{"a": "b')], False),
    ("hermes", '<tool_call>{"name": "f", "arg', "", [("f", "")], False),
    ("hermes", '<tool_call>{"name": "f', "", [], False),
    ("hermes", "I look.\n<tool_call>\n", "I look.", [], False),
    ("hermes", '<tool_call>{"name": "f", "arguments": {}}\n</tool', "", [("f", "{}")], True),
    ("hermes", "a <tool_call> b </tool_call> c", "a <tool_call> b </tool_call> c", [], False),
    ("hermes", '<tool_call>{"a": 1}</tool_call> b', '<tool_call>{"a": 1}</tool_call> b', [], False),
    ("hermes", "1 <tool", "1 <tool", [], False),
    ("llama", f'{{"name": "f", "parameters": {ARGUMENTS}}}', "", [("f", ARGUMENTS)], True),
    ("llama", '<|python_tag|>{"name": "f", "parameters": {}}', "", [("f", "{}")], True),
    (
        "llama",
        '{"name": "f", "parameters": {}}; {"name": "g", "parameters": {"a": 1}}',
        "",
        [("f", "{}"), ("g", '{"a": 1}')],
        True,
    ),
    ("llama", '{"a": 1, "name": "f"}', '{"a": 1, "name": "f"}', [], False),
    ("llama", 'I send {"name": "f"}', 'I send {"name": "f"}', [], False),
    ("llama", "<|python", "<|python", [], False),
    ("llama", '{"name": "f', "", [], False),
    ("llama", '{"names', '{"names', [], False),
    ("llama", '{"name": "f", "parameters": {}}; {"na', "", [("f", "{}")], False),
    (
        "mistral",
        f'[TOOL_CALLS] [{{"name": "f", "arguments": {ARGUMENTS}, "id": "a1b2c3d4e"}}, '
        '{"name": "g", "arguments": {}, "id": "a1b2c3d4f"}]',
        "",
        [("f", ARGUMENTS), ("g", "{}")],
        True,
    ),
    ("mistral", 'Sure.[TOOL_CALLS][{"name": "f", "arguments": {}}]', "Sure.", [("f", "{}")], True),
    (
        "mistral-headed",
        f"Sure.[TOOL_CALLS]f[ARGS]{ARGUMENTS}[TOOL_CALLS]g[CALL_ID]a1b2c3d4e[ARGS]{{}}",
        "Sure.",
        [("f", ARGUMENTS), ("g", "{}")],
        True,
    ),
    ("mistral-headed", '[TOOL_CALLS]f[ARGS]{"a', "", [("f", '{"a')], False),
    ("mistral-headed", "[TOOL_CALLS]f[AR", "", [], False),
    ("mistral", 'Sure. [TOOL_CALLS] [{"na', "Sure.", [], False),
    (
        "deepseek",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{}\n``",
        "",
        [("f", "{}")],
        True,
    ),
    ("harmony", "<|channel|>", "", [], False),
    ("harmony", "<|channel|>commentary to=functions.f <|con", "", [], False),
    ("harmony", "<|channel|>commentary<|message|>I look.<|end|>", "I look.", [], False),
    (
        "deepseek",
        "I look.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n"
        f"{ARGUMENTS}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{{}}\n```"
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "I look.",
        [("f", ARGUMENTS), ("g", "{}")],
        True,
    ),
    (
        "deepseek",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
        f"<｜tool▁call▁begin｜>g<｜tool▁sep｜>{ARGUMENTS}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "",
        [("f", "{}"), ("g", ARGUMENTS)],
        True,
    ),
    ("deepseek", "Code:\n```json\n{}\n```\n", "Code:\n```json\n{}\n```\n", [], False),
    (
        "harmony",
        "<|channel|>analysis<|message|>I need f.<|end|><|start|>assistant<|channel|>commentary "
        f"to=functions.f <|constrain|>json<|message|>{ARGUMENTS}",
        "",
        [("f", ARGUMENTS)],
        True,
    ),
    (
        "harmony",
        "<|channel|>analysis<|message|>Easy.<|end|><|start|>assistant<|channel|>final<|message|>Hello.",
        "Hello.",
        [],
        False,
    ),
    ("harmony", "<|channel|>final<|message|>Hello <|there.", "Hello <|there.", [], False),
    (
        "phi",
        f'<|tool_call|>[{{"name": "f", "arguments": {ARGUMENTS}}}, '
        '{"name": "g", "arguments": {}}]<|/tool_call|>',
        "",
        [("f", ARGUMENTS), ("g", "{}")],
        True,
    ),
]


def read(family, parts, required=False):
    """Content, calls and whether the last one is whole."""
    reader = CALL_FAMILIES[family]("").build_reader(())
    said = [each for part in parts for each in reader.add(part)] + reader.end(required)
    content = "".join(each.text for each in said if isinstance(each, VisiblePart))
    calls: list[tuple[str, str]] = []
    for each in said:
        if isinstance(each, CallName):
            calls.append((each.name, ""))
        elif isinstance(each, CallArguments):
            calls[-1] = (calls[-1][0], calls[-1][1] + each.text)
    return content, calls, reader.has_complete_calls


@pytest.mark.parametrize("at", range(len(READINGS)))
def test_a_text_is_read_whole_and_cut_at_every_character(at):
    family, text, *expected = READINGS[at]
    wanted = tuple(expected)
    assert read(family, [text]) == wanted
    assert read(family, list(text)) == wanted
    for cut in range(len(text)):
        assert read(family, [text[:cut], text[cut:]]) == wanted


@pytest.mark.parametrize("family", sorted(set(CALL_FAMILIES) - {"harmony"}))
def test_a_required_calls_notation_is_never_content(family):
    text = CALL_FAMILIES[family]("").write_call("weather", ARGUMENTS)
    for cut in range(len(text) + 1):
        content, calls, _ = read(family, [text[:cut]], required=True)
        assert content == ""
        assert all(name == "weather" and ARGUMENTS.startswith(said) for name, said in calls)


@given(st.sampled_from(READINGS), st.lists(st.integers(0, 400)))
def test_a_text_is_read_wherever_it_is_cut(reading, cuts):
    family, text, *expected = reading
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    parts = [text[begin:end] for begin, end in pairwise(places)]
    assert read(family, parts) == tuple(expected)


@given(st.sampled_from(sorted(CALL_FAMILIES)), st.lists(st.sampled_from([
    "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", '{"name": "f"', ', "arguments": ', "{", "}", "[",
    "]", '"', "\\", "<|channel|>", "final<|message|>", "<", " ", "\n", "text", "```", "<｜tool▁call▁begin｜>",
    "<|end|>", "commentary to=functions.f", "<｜tool▁sep｜>", "<|tool_call|>", ";",
]), max_size=12))  # fmt: skip
def test_the_cut_never_changes_what_is_read(family, parts):
    text = "".join(parts)
    assert read(family, parts) == read(family, [text]) == read(family, list(text))


def test_a_call_behind_a_header_without_a_name_is_read_however_it_is_cut():
    for filling in ("x", "x" * 500):
        text = f"[TOOL_CALLS]{filling}[TOOL_CALLS]f[ARGS]{{}}"
        wanted = (f"[TOOL_CALLS]{filling}", [("f", "{}")], True)
        assert read("mistral-headed", list(text)) == read("mistral-headed", [text]) == wanted
    long_name = f"[TOOL_CALLS]f{' ' * 500}[ARGS]{{}}"
    assert (
        read("mistral-headed", [long_name])
        == read("mistral-headed", list(long_name))
        == (long_name, [], False)
    )


@pytest.mark.parametrize(
    ("family", "opening", "closing"),
    [
        ("harmony", "<|channel|>commentary to=functions.f", "!{"),
        ("deepseek", "<｜tool▁call▁begin｜>f", "!{"),
        ("glm", "<tool_call>f<arg_key>", "<arg_value>"),
        ("qwen-coder", "<tool_call><function=f><parameter=", ">"),
    ],
)
def test_a_header_full_of_spaces_takes_no_time(family, opening, closing):
    """It took seconds, while the server did nothing else."""
    begin = time.process_time()
    for _ in range(20):
        read(family, [opening + " " * (399 - len(opening)) + closing])
    assert time.process_time() - begin < 1


@pytest.mark.parametrize("family", sorted(CALL_FAMILIES))
def test_spaces_without_end_take_no_longer_for_each_part(family):
    """Models that repeat themselves write thousands of them, and every part took longer than the last."""
    reader = CALL_FAMILIES[family]("").build_reader(())
    begin = time.process_time()
    for opening in ("", "".join(CALL_FAMILIES[family]("").open)):
        reader.add(opening)
        for _ in range(6_000):
            reader.add("    ")
    reader.end()
    assert time.process_time() - begin < 1


@pytest.mark.parametrize("family", sorted(CALL_FAMILIES))
def test_many_spaces_before_a_call_are_read_however_they_are_cut(family):
    notation = CALL_FAMILIES[family]("")
    opening = "".join(notation.open)
    rest = notation.write_call("f", "{}").removeprefix(opening)
    for size in (30, 380, 400, 420):
        text = f"{opening}{' ' * size}{rest} end"
        assert read(family, [text]) == read(family, list(text))


def test_a_name_comes_complete_and_arguments_as_written():
    reader = CALL_FAMILIES["hermes"]("").build_reader(())
    text = '<tool_call>{"name": "weather", "arguments": {"city": "Bern"}}</tool_call>'
    said = [each for char in text for each in reader.add(char)]
    assert said[0] == CallName("weather")
    assert len(said) == 1 + len('{"city": "Bern"}') and all(
        isinstance(each, CallArguments) for each in said[1:]
    )


# --- what the constraint allows -----------------------------------------------------------------------------


SOURCES = {"deepseek": ("", "```json"), "hermes": ("", "<tool_call>{"), "mistral": ("", "[TOOL_CALLS] [")}
NOTATIONS = [(name, source) for name in CALL_FAMILIES for source in SOURCES.get(name, ("",))]


@pytest.mark.parametrize(("family", "source"), NOTATIONS)
@pytest.mark.parametrize("parallel", [True, False])
def test_a_required_call_is_read_back_and_satisfies_its_schema(family, source, parallel):
    layout = CALL_FAMILIES[family](source)
    tools = Tools((WEATHER, NOW), ToolChoice.REQUIRED, parallel)
    grammar = check_constraint(layout.build_constraint(tools, IDS), VOCABULARY)
    counts: set[int] = set()
    for seed in range(40):
        if seed >= (6 if parallel else 3) and 1 in counts:
            break
        text = walk(begin(grammar), seed)
        if text is None:
            continue
        reader = layout.build_reader(tools.tools)
        said = [*reader.add(text), *reader.end()]
        assert reader.has_complete_calls, text
        content, calls, whole = read(family, [text])
        assert whole and calls and not content.strip(), text
        assert sum(isinstance(each, CallName) for each in said) == len(calls)
        counts.add(len(calls))
        for name, arguments in calls:
            SCHEMAS[name].validate(json.loads(arguments))
    assert 1 in counts
    assert counts == {1} or (parallel and family != "harmony")


def written(layout):
    """One call of `now`, in tokens."""
    group = load_group(layout.build_constraint(Tools((NOW,), ToolChoice.REQUIRED, False), IDS).source)
    (call,) = group.calls
    arguments = "{}" if layout.tags is None else ""
    marks = (*group.open, *call.begin, arguments, *call.end, *group.close)
    spelled = ("0" if isinstance(mark, NumberMark) else mark for mark in marks)
    return [token for mark in spelled for token in ([mark] if isinstance(mark, int) else [*mark.encode()])]


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "minLength": 5, "maxLength": 3},
        pytest.param({"$ref": "#/$defs/a"}, marks=pytest.mark.soak),  # ten CPU seconds
    ],
)
def test_an_unsupported_schema_is_refused_under_its_name(schema):
    itself = {"type": "object", "properties": {"x": {"$ref": "#/$defs/a"}}, "required": ["x"]}
    parameters = {"type": "object", "properties": {"x": schema}, "required": ["x"], "$defs": {"a": itself}}
    where = "tools[1].function.parameters"
    tools = Tools((NOW, Tool("odd", None, parameters, strict=True, field=where)), ToolChoice.REQUIRED)
    with pytest.raises(InvalidValue) as caught:
        check_constraint(CALL_FAMILIES["hermes"]("").build_constraint(tools, IDS), VOCABULARY)
    assert caught.value.param == where and caught.value.message.startswith(where)


@pytest.mark.parametrize(("family", "source"), NOTATIONS)
def test_where_none_may_be_called_no_call_can_be_written(family, source):
    layout = CALL_FAMILIES[family](source)
    none = check_constraint(layout.build_constraint(Tools((WEATHER,), ToolChoice.NONE), IDS), VOCABULARY)
    assert not takes(begin(none), written(layout))


@pytest.mark.parametrize(("family", "source"), NOTATIONS)
def test_a_call_begun_in_free_text_becomes_a_tools_call(family, source):
    layout = CALL_FAMILIES[family](source)
    auto = check_constraint(layout.build_constraint(Tools((NOW,), ToolChoice.AUTO), IDS), VOCABULARY)
    tokens = written(layout)
    name = next(at for at in range(len(tokens)) if tokens[at : at + 3] == [*b"now"])
    matcher = begin(auto)
    assert takes(matcher, tokens) and matcher.is_complete
    other = b"x(" if layout.call_pattern and layout.open else b"x"  # without the bracket it is a text
    assert not takes(begin(auto), [*tokens[:name], *other])
    opening = [IDS["<|channel|>"], *b"final", IDS["<|message|>"]] if layout.channels else []
    matcher = begin(auto)
    assert takes(matcher, [*opening, *b"I know { <that> [x]."]) and matcher.is_complete


def test_a_template_says_its_family():
    signs = {
        "hermes": '\'\\n<tool_call>\\n{"name": "\'',
        "deepseek": "{{'<｜tool▁calls▁begin｜>'}}",
        "mistral": "[TOOL_CALLS] [",
        "mistral-headed": "[TOOL_CALLS]{{name}}[ARGS]",
        "harmony": "<|channel|>analysis<|message|>",
        "phi": "<|tool|>{{ message['tools'] }}<|/tool|>",
        "llama": '<|start_header_id|>{"name": "x", "parameters": ',
        "qwen-coder": "<tool_call>\n<function=f>\n<parameter=x>",
        "glm": "<tool_call>{name}\n<arg_key>",
        "minimax": "<minimax:tool_call>",
        "seed": "<seed:tool_call>",
        "deepseek-markup": "<｜DSML｜function_calls>",
        "gemma": "<|tool_call>call:{{ name }}",
        "python": "Use [func_name1(param=value)]",
        "kimi": "<|tool_calls_section_begin|>",
        "granite": "<|start_of_role|><|tool_call|>",
    }
    for name, source in signs.items():
        assert detect_notation(source).before_name == CALL_FAMILIES[name](source).before_name
        assert detect_notation(source).open == CALL_FAMILIES[name](source).open
    assert detect_notation("no tools at all").open == ("<tool_call>",)
    assert detect_notation("<tool_call>", "phi").open == CALL_FAMILIES["phi"]("").open


def test_the_settings_name_the_families():
    (setting,) = (each for each in msgspec.structs.fields(ModelSettings) if each.name == "tool_calls")
    literal = get_args(setting.type)[0]
    assert {*get_args(literal)} == {"auto", *CALL_FAMILIES}
