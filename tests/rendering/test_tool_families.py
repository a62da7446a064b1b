"""The families' notations through templates of their own: what a template writes of earlier calls is what the
constraint allows, and what the reader reads."""

import json
from functools import cache

import pytest
from jsonschema import Draft202012Validator

from antiphon.constraints.checking_process import check_constraint
from antiphon.domain.messages import Message, Role, Tool, ToolCall, ToolChoice, Tools
from antiphon.domain.request import Conversation
from antiphon.errors import InvalidValue, UnsupportedParameter
from antiphon.rendering.call_notation import CALL_FAMILIES, detect_notation
from antiphon.rendering.call_readers import CallArguments, CallName, VisiblePart
from antiphon_testing import FakeClock
from tests.support.call_texts import IDS, VOCABULARY, begin, takes, walk
from tests.support.chat_templates import create_template
from tests.support.tool_templates import TEMPLATES

EDIT = Tool(
    "edit_file",
    "Edits a file.",
    {
        "type": "object",
        "properties": {
            "path": {"type": "string"},
            "text": {"type": "string"},
            "line": {"type": "integer"},
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "flags": {"type": "array", "items": {"type": "string"}},
            "options": {"type": "object", "properties": {"deep": {"type": "object"}}},
            "force": {"type": "boolean"},
        },
        "required": ["path"],
    },
)
NOW = Tool("now")
TOOLS = (EDIT, NOW)
CALLS = [
    (
        "edit_file",
        {
            "path": "src/ä b.html",
            "text": '<p x="1">\n if (a < b) { "\\n" }\n</p>\n\n',
            "line": 12,
            "note": None,
            "flags": ["<c>", "5"],
            "options": {"deep": {"a": [1, {"b": "}]"}], "c": "😀"}},
        },
    ),
    ("now", {}),
    ("edit_file", {"path": "5", "text": "true", "note": "12"}),
]
SEVERAL = [name for name in TEMPLATES if name not in ("llama", "python")]
"""Families whose calls can have text around them."""


def read(notation, parts, required=False):
    """Content, calls, and whether the last one is whole."""
    reader = notation.build_reader(TOOLS)
    said = [each for part in parts for each in reader.add(part)] + reader.end(required)
    assert all(each.text for each in said if isinstance(each, VisiblePart | CallArguments))
    content = "".join(each.text for each in said if isinstance(each, VisiblePart))
    calls: list[tuple[str, str]] = []
    for each in said:
        if isinstance(each, CallName):
            calls.append((each.name, ""))
        elif isinstance(each, CallArguments):
            calls[-1] = (calls[-1][0], calls[-1][1] + each.text)
    return content, calls, reader.has_complete_calls


def render(source, *messages, generation=False):
    conversation = Conversation(messages, tools=Tools(TOOLS), generation_prompt=generation)
    return "".join(piece.text for piece in compile_template(source).render(conversation, FakeClock()))


compile_template = cache(create_template)


def write(family, calls, text=""):
    """What the family's template writes of an assistant's message."""
    written = tuple(
        ToolCall(f"call{index:05}", name, json.dumps(each, ensure_ascii=False))
        for index, (name, each) in enumerate(calls)
    )
    prompt = render(
        TEMPLATES[family], Message(Role.USER, "hi"), Message(Role.ASSISTANT, text, tool_calls=written)
    )
    return prompt.partition("<|im_start|>assistant\n")[2].removesuffix("<|im_end|>\n")


def parse(calls):
    return [(name, json.loads(arguments)) for name, arguments in calls]


@pytest.mark.parametrize("family", TEMPLATES)
def test_the_template_names_the_family(family):
    name = {"glm-4.7": "glm", "deepseek-fenced": "deepseek", "python-in-marks": "python"}.get(family, family)
    source = TEMPLATES[family]
    found, named = detect_notation(source), CALL_FAMILIES[name](source)
    assert (found.open, found.before_name, found.tags) == (named.open, named.before_name, named.tags)


@pytest.mark.parametrize("family", TEMPLATES)
def test_what_the_template_writes_is_read_back_however_it_is_cut(family):
    calls = CALLS[:1] if family == "llama" else CALLS
    notation, text = detect_notation(TEMPLATES[family]), write(family, calls)
    whole = read(notation, [text])
    assert (whole[0].strip(), parse(whole[1]), whole[2]) == ("", calls, True)
    assert read(notation, list(text)) == whole
    for cut in range(0, len(text), 3):
        assert read(notation, [text[:cut], text[cut:]]) == whole


@pytest.mark.parametrize("family", SEVERAL)
def test_text_around_calls_stays_text(family):
    notation = detect_notation(TEMPLATES[family])
    written = write(family, CALLS[1:])
    text = f"I look <b>now</b>.\n\n{written}\nDone: 1 < 2, <tool, [TOOL, {{}}."
    whole = read(notation, [text])
    assert "".join(whole[0].split()) == "Ilook<b>now</b>.Done:1<2,<tool,[TOOL,{}."
    assert parse(whole[1]) == CALLS[1:] and whole[2]
    for cut in range(0, len(text), 3):
        assert read(notation, [text[:cut], text[cut:]]) == whole


@pytest.mark.parametrize("family", TEMPLATES)
def test_a_call_that_the_length_cuts_gives_the_arguments_so_far(family):
    notation, text = detect_notation(TEMPLATES[family]), write(family, CALLS[:1])
    ((_, complete),) = read(notation, [text])[1]
    for cut in range(1, len(text), 9):
        content, calls, is_complete = read(notation, [text[:cut]], required=True)
        assert content == ""
        assert not is_complete or calls[0][1] == complete
        assert all(name == "edit_file" and complete.startswith(arguments) for name, arguments in calls)
        assert (content, calls, is_complete) == read(notation, list(text[:cut]), required=True)


@pytest.mark.parametrize("family", TEMPLATES)
def test_what_the_template_writes_is_what_the_constraint_allows(family):
    """The constraint would force another spelling if it differed by one space."""
    calls = CALLS[:1] if family == "llama" else CALLS[:2]
    notation = detect_notation(TEMPLATES[family])
    for choice in (ToolChoice.REQUIRED, ToolChoice.AUTO):
        constraint = notation.build_constraint(Tools(TOOLS, choice), IDS)
        matcher = begin(check_constraint(constraint, VOCABULARY))
        text = write(family, calls).lstrip("\n")
        if family == "gemma":  # The template sorts keys whose letters are covered.
            text = "".join(notation.write_call(name, json.dumps(each)) for name, each in calls)
        assert takes(matcher, spell(text)) and matcher.is_complete, text


def spell(text):
    """The text in tokens, with control tokens for their names."""
    tokens: list[int] = []
    while text:
        name = next((name for name in IDS if text.startswith(name)), None)
        tokens += [IDS[name]] if name else text[0].encode()
        text = text[len(name) if name else 1 :]
    return tokens


def test_a_token_inside_of_marks_may_be_a_control_token():
    """The token of DeepSeek's markup is a part of each mark, and one vocabulary makes it a control token."""
    notation, controls = detect_notation(TEMPLATES["deepseek-markup"]), {"｜DSML｜": IDS["<|end|>"]}
    assert "｜DSML｜" in notation.marks
    text = write("deepseek-markup", CALLS[:2])
    tokens = spell(text.replace("｜DSML｜", "<|end|>"))
    for choice, before in ((ToolChoice.REQUIRED, []), (ToolChoice.AUTO, [*b"I see <b> and"])):
        constraint = notation.build_constraint(Tools(TOOLS, choice), controls)
        matcher = begin(check_constraint(constraint, VOCABULARY))
        assert takes(matcher, [*before, *tokens]) and matcher.is_complete
    none = check_constraint(notation.build_constraint(Tools(TOOLS, ToolChoice.NONE), controls), VOCABULARY)
    assert not takes(begin(none), tokens)


TYPED = Tool(
    "typed",
    None,
    {
        "type": "object",
        "properties": {
            "word": {"enum": ["p", "q", "</b>"]},
            "count": {"type": "integer", "minimum": 3, "maximum": 12},
            "text": {"type": "string", "minLength": 2, "maxLength": 4},
            "name": {"type": "string", "pattern": "^a+$|b"},
            "maybe": {"type": ["string", "null"]},
            "either": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "integer"}}]},
            "number": {"anyOf": [{"type": "string"}, {"type": "number", "minimum": 5}]},
            "shared": {"$ref": "#/$defs/shared"},
            "day": {"type": "string", "format": "date"},
            "any": {},
            "list": {"type": "array", "items": {"$ref": "#/$defs/point"}, "minItems": 1, "maxItems": 2},
        },
        "required": ["word", "text"],
        "$defs": {
            "shared": {"type": "string", "const": "x"},
            "point": {
                "type": "object",
                "properties": {"x": {"type": "number"}, "label": {"type": ["string", "null"]}},
                "required": ["x"],
            },
        },
    },
)
TAGGED = [name for name, source in TEMPLATES.items() if detect_notation(source).tags is not None]


@pytest.mark.parametrize("family", TAGGED)
def test_whatever_a_forced_call_between_tags_is_it_satisfies_its_schema(family):
    notation, found = detect_notation(TEMPLATES[family]), 0
    tools = Tools((TYPED,), ToolChoice.REQUIRED, parallel=False)
    grammar = check_constraint(notation.build_constraint(tools, IDS), VOCABULARY)
    for seed in range(8):
        text = walk(begin(grammar), seed, 500)
        if text is None:
            continue
        reader = notation.build_reader(tools.tools)
        said = [*reader.add(text), *reader.end()]
        assert reader.has_complete_calls and isinstance(said[0], CallName), text
        arguments = json.loads("".join(each.text for each in said if isinstance(each, CallArguments)))
        Draft202012Validator(TYPED.schema).validate(arguments)
        found += 1
    assert found


def force(family, tool):
    """The grammar of a forced call of the tool."""
    constraint = detect_notation(TEMPLATES[family]).build_constraint(Tools((tool,), ToolChoice.REQUIRED), IDS)
    return check_constraint(constraint, VOCABULARY)


def takes_arguments(family, tool, grammar=None, **arguments):
    """Whether a forced call of the tool can have these arguments."""
    matcher = begin(grammar or force(family, tool))
    text = detect_notation(TEMPLATES[family]).write_call(tool.name, json.dumps(arguments))
    return takes(matcher, spell(text))


def test_the_schema_decides_what_stands_between_tags():
    grammar = force("qwen-coder", TYPED)
    for allowed in (
        {"word": "</b>", "text": "a\n<"},
        {"word": "p", "count": 12, "text": "ab", "name": "xbx"},
        {"word": "p", "text": "ab", "name": "aaa", "maybe": None, "either": [1, 2], "number": "five"},
        {
            "word": "p",
            "text": "ab",
            "maybe": "null and void",
            "either": "a [b]",
            "shared": "x",
            "day": "2024-02-29",
        },
    ):
        assert takes_arguments("qwen-coder", TYPED, grammar, **allowed), allowed
    for refused in (
        {"word": "r", "text": "ab"},
        {"word": "p", "text": "a"},
        {"word": "p", "text": "a\n</parameter>b"},
        {"text": "ab"},
        {"text": "ab", "word": "p"},
        {"word": "p", "count": 13, "text": "ab"},
        {"word": "p", "text": "ab", "name": "ca"},
        {"word": "p", "text": "ab", "number": 4},
        {"word": "p", "text": "ab", "day": "2023-02-29"},
        {"word": "p", "text": "ab", "other": 1},
    ):
        assert not takes_arguments("qwen-coder", TYPED, grammar, **refused), refused


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"anyOf": [{"required": ["a"]}, {"required": ["b"]}], "properties": {"a": {}, "b": {}}}, "anyOf"),
        ({"properties": {"a>b": {"type": "string"}}}, "a>b"),
        ({"properties": {"a": {"type": "string", "format": "ipv6"}}}, "ipv6"),
    ],
)
def test_what_cannot_be_enforced_between_tags_is_refused_by_name(schema, named):
    tool = Tool("odd", None, {"type": "object", **schema}, field="tools[3].function.parameters")
    with pytest.raises(UnsupportedParameter, match=named) as caught:
        takes_arguments("qwen-coder", tool)
    assert caught.value.param == "tools[3].function.parameters"
    assert takes_arguments("hermes", Tool("odd"))


def test_arguments_of_an_open_object_have_names_of_the_models_choice():
    tool = Tool("note", None, {"type": "object", "additionalProperties": {"type": "integer"}})
    assert takes_arguments("glm", tool, a=1, b_2=2)
    assert not takes_arguments("glm", tool, a="x")
    with pytest.raises(InvalidValue):
        takes_arguments(
            "glm", Tool("none", None, {"type": "object", "properties": {"a": False}, "required": ["a"]})
        )


@pytest.mark.parametrize(
    ("text", "types", "value"),
    [
        ("12", {"type": "integer"}, 12),
        ("12", {"type": "string"}, "12"),
        ("12", {"type": ["string", "null"]}, "12"),
        ("null", {"type": ["string", "null"]}, None),
        ("None", {"type": ["integer", "null"]}, None),
        ("True", {"type": "boolean"}, True),
        ("12.0", {"type": "integer"}, 12.0),
        ("1e400", {"type": "number"}, float("inf")),
        ('{"a": 1, "a": 2}', {"type": "object"}, {"a": 2}),
        ('"x"', {"type": "string"}, '"x"'),
        ('"x"', {}, '"x"'),
        ("twelve", {"type": "integer"}, "twelve"),
        ("NaN", {"type": "number"}, "NaN"),
        ("[1", {"type": "array"}, "[1"),
        ("[" * 30_000, {"type": "array"}, "[" * 30_000),
        ("5", {"$ref": "#/$defs/a"}, 5),
        ("5", {"allOf": [{"type": ["string", "integer"]}, {"type": "string"}]}, "5"),
        ("5", {"enum": ["5", "6"]}, "5"),
        ("5", {"oneOf": [{"const": 5}, {"const": None}]}, 5),
    ],
)
def test_the_schema_tells_the_text_5_from_the_number(text, types, value):
    tool = Tool("f", None, {"type": "object", "properties": {"x": types}, "$defs": {"a": {"type": "number"}}})
    reader = detect_notation(TEMPLATES["glm"]).build_reader((tool,))
    said = reader.add(f"<tool_call>f\n<arg_key>x</arg_key>\n<arg_value>{text}</arg_value>\n</tool_call>")
    assert json.loads("".join(each.text for each in said if isinstance(each, CallArguments))) == {"x": value}


@pytest.mark.parametrize(
    ("family", "text", "calls"),
    [
        ("qwen-coder", "a <tool_call> b </tool_call> c", []),
        ("qwen-coder", "Write <function=f> for a call.", []),
        ("qwen-coder", "<tool_call>\n<function=", None),
        ("qwen-coder", "<tool_call><function=now></function></tool_call>", [("now", {})]),
        ("qwen-coder", "<tool_call>\n<function=now>\n</function>\n</tool_call>", [("now", {})]),
        (
            "qwen-coder",
            "<tool_call>\n<function=edit_file>\n<parameter=path>a</parameter><parameter=path>\nb\n</parameter>"
            "</function></tool_call>",
            [("edit_file", {"path": "a"})],
        ),
        ("glm", "<tool_call>now</tool_call>", [("now", {})]),
        ("glm", "<tool_call>now\n</tool_call>", [("now", {})]),
        ("glm", "<tool_call>two words</tool_call>", []),
        ("glm", "<tool_call>f(x)", []),
        (
            "glm-4.7",
            "<tool_call>now\n<arg_key> a </arg_key>\n<arg_value>1</arg_value>\n</tool_call>",
            [("now", {"a": 1})],
        ),
        ("minimax", '<minimax:tool_call><invoke name="now"></invoke></minimax:tool_call>', [("now", {})]),
        (
            "deepseek-markup",
            '<｜DSML｜function_calls><｜DSML｜invoke name="f"><｜DSML｜parameter name="a" string="true">5'
            '</｜DSML｜parameter><｜DSML｜parameter name="b" string="false">5</｜DSML｜parameter>'
            "</｜DSML｜invoke>"
            "</｜DSML｜function_calls>",
            [("f", {"a": "5", "b": 5})],
        ),
        ("gemma", "<|tool_call>call:now{}<tool_call|>", [("now", {})]),
        ("gemma", "<|tool_call>call me<tool_call|>", []),
        (
            "gemma",
            '<|tool_call>call:f{a:<|"|>{b:<|"|>,n:-1.5e3,l:[true,null,[],{}],o:{<|"|>3<|"|>:<|"|>x<|"|>,k:1},a:2}<tool_call|>',
            [("f", {"a": "{b:", "n": -1500.0, "l": [True, None, [], {}], "o": {"3": "x", "k": 1}})],
        ),
        ("gemma", "<|tool_call>call:f{a: bare word ,b:1}<tool_call|>", [("f", {"a": "bare word", "b": 1})]),
        ("python", "[1, 2] and [see(this)]", []),
        ("python", "[link](http://x)", []),
        ("python", "[now()]", [("now", {})]),
        (
            "python",
            "[f(a='it\\'s \"q\" \\u00e9\\n', b=None, c={'k': [1, -2.5, True,], 'k': 9}, d=(1, 2)), now( )]",
            [
                ("f", {"a": 'it\'s "q" \u00e9\n', "b": None, "c": {"k": [1, -2.5, True]}, "d": [1, 2]}),
                ("now", {}),
            ],
        ),
        ("python", '[f(a="\\d+ \\x41", b=0x10, c=1.)]', [("f", {"a": "\\d+ A", "b": "0x10", "c": 1.0})]),
        ("python-in-marks", "<|tool_call_start|>[1]<|tool_call_end|>", []),
    ],
)
def test_what_only_looks_like_a_call_stays_text(family, text, calls):
    notation = detect_notation(TEMPLATES[family])
    whole = read(notation, [text])
    assert whole[0] == ("" if calls or calls is None else text)
    assert parse(whole[1]) == (calls or [])
    for cut in range(len(text)):
        assert read(notation, [text[:cut], text[cut:]]) == whole


def test_results_and_calls_of_earlier_turns_keep_the_templates_form():
    calls = (ToolCall("call_1", "edit_file", '{"path": "a", "line": 2}'), ToolCall("call_2", "now", ""))
    for family, form in (
        (
            "qwen-coder",
            "<function=edit_file>\n<parameter=path>\na\n</parameter>\n<parameter=line>\n2\n</parameter>\n",
        ),
        (
            "glm",
            "<tool_call>edit_file\n<arg_key>path</arg_key>\n<arg_value>a</arg_value>\n<arg_key>line</arg_key>",
        ),
        (
            "deepseek",
            '<｜tool▁call▁begin｜>edit_file<｜tool▁sep｜>{"path": "a", "line": 2}<｜tool▁call▁end｜>',
        ),
    ):
        prompt = render(
            TEMPLATES[family],
            Message(Role.USER, "hi"),
            Message(Role.ASSISTANT, "", tool_calls=calls),
            Message(Role.TOOL, "done", tool_call_id="call_1"),
            Message(Role.TOOL, "12:00", tool_call_id="call_2"),
        )
        assert form in prompt and "<|im_start|>tool\ndone" in prompt, family


def test_a_cut_call_of_an_earlier_turn_is_written_out_in_the_familys_form():
    cut = ToolCall("call_1", "edit_file", '{"path": "a", "te')
    prompt = render(
        TEMPLATES["qwen-coder"], Message(Role.USER, "hi"), Message(Role.ASSISTANT, "", tool_calls=(cut,))
    )
    assert '<tool_call>\n<function=edit_file>\n{"path": "a", "te</function>\n</tool_call>' in prompt
