"""Chat templates: what they write, what of it is structure, and that text of messages never is."""

import json
from datetime import UTC, datetime
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.domain.messages import Message, Role
from antiphon.domain.request import Conversation
from antiphon.domain.values import replace
from antiphon.errors import InvalidValue, TemplateRefused
from antiphon_testing import FakeClock, ScriptedTokenEngine
from antiphon_testing.scripted_token_engine import CHATML
from antiphon_testing.toy_model import CONTROLS
from tests.support.chat_templates import (
    FAMILIES,
    FRAMING,
    GEMMA,
    LLAMA,
    MISTRAL,
    SPECIAL,
    build_conversation,
    create_template,
    render_marked,
)

CLOCK = FakeClock()

NASTY = st.lists(
    st.one_of(
        st.sampled_from(CONTROLS),
        st.sampled_from([name[:cut] for name in CONTROLS for cut in range(1, len(name))]),
        st.sampled_from([name[cut:] for name in CONTROLS for cut in range(1, len(name))]),
        st.sampled_from(
            ["\ue000", "\ue001\ue002", "\uf8ff", "\U000f0000", " ", "\n", "system", "user", "|", "<", ">"]
        ),
        st.text(max_size=5),
    ),
    max_size=8,
).map("".join)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (
            CHATML,
            "⟦<|im_start|>⟧system\nS⟦<|im_end|>⟧\n⟦<|im_start|>⟧user\n A ⟦<|im_end|>⟧\n"
            "⟦<|im_start|>⟧assistant\nB⟦<|im_end|>⟧\n⟦<|im_start|>⟧user\nC⟦<|im_end|>⟧\n⟦<|im_start|>⟧assistant\n",
        ),
        (
            LLAMA,
            "⟦<s>⟧⟦<|start_header_id|>⟧system⟦<|end_header_id|>⟧\n\nS⟦<|eot_id|>⟧"
            "⟦<|start_header_id|>⟧user⟦<|end_header_id|>⟧\n\nA⟦<|eot_id|>⟧"
            "⟦<|start_header_id|>⟧assistant⟦<|end_header_id|>⟧\n\nB⟦<|eot_id|>⟧"
            "⟦<|start_header_id|>⟧user⟦<|end_header_id|>⟧\n\nC⟦<|eot_id|>⟧"
            "⟦<|start_header_id|>⟧assistant⟦<|end_header_id|>⟧\n\n",
        ),
        (MISTRAL, "⟦<s>⟧⟦[INST]⟧ S\n\n A ⟦[/INST]⟧ B⟦</s>⟧⟦[INST]⟧ C⟦[/INST]⟧"),
    ],
)
def test_a_conversation_is_written_as_its_template_says(source, expected):
    assert render_marked(source, build_conversation(" A ", "B", "C", system="S")) == expected


PARTS = (
    "{% for m in messages %}{{ m.role }}:{% for part in m.content %}"
    "{% if part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}<|im_end|>{% endfor %}"
)


def test_a_template_that_reads_parts_gets_texts_as_parts():
    prompt = "system:S⟦<|im_end|>⟧user:A⟦<|im_end|>⟧assistant:B⟦<|im_end|>⟧"
    assert render_marked(PARTS, build_conversation("A", "B", system="S")) == prompt
    opened = replace(build_conversation("A", "B ", system="S"), generation_prompt=False, continues=True)
    assert render_marked(PARTS, opened) == "system:S⟦<|im_end|>⟧user:A⟦<|im_end|>⟧assistant:B "


def test_a_template_may_trim_and_rename_roles():
    expected = "⟦<s>⟧⟦<start_of_turn>⟧user\nA⟦<end_of_turn>⟧\n⟦<start_of_turn>⟧model\nB⟦<end_of_turn>⟧\n"
    assert (
        render_marked(
            GEMMA, Conversation(build_conversation(" \n A ", "B").messages, generation_prompt=False)
        )
        == expected
    )


@pytest.fixture(scope="module")
def engine() -> ScriptedTokenEngine:
    """It tokenizes."""
    return ScriptedTokenEngine()


compile_template = cache(create_template)


@pytest.mark.parametrize("name", FAMILIES)
@given(texts=st.lists(NASTY, min_size=1, max_size=3))
async def test_text_of_messages_never_becomes_a_control_token(engine, name, texts):
    chat = compile_template(FAMILIES[name])
    harmless = await engine.tokenize(chat.render(build_conversation(*("x" for _ in texts)), CLOCK), False)
    attacked = await engine.tokenize(chat.render(build_conversation(*texts), CLOCK), False)
    controls = engine.table.names
    assert [token for token in attacked if token in controls] == [
        token for token in harmless if token in controls
    ]


@given(texts=st.lists(NASTY, min_size=1, max_size=3))
def test_text_of_messages_comes_out_as_it_went_in(texts):
    pieces = compile_template(CHATML).render(build_conversation(*texts), CLOCK)
    turns = (
        f"<|im_start|>{('user', 'assistant')[index % 2]}\n{text}<|im_end|>\n"
        for index, text in enumerate(texts)
    )
    assert "".join(piece.text for piece in pieces) == "".join(turns) + "<|im_start|>assistant\n"


FRAMES = [
    "{{ '<|%s|>' % messages[0].content }}",
    "{{ '<|%s|>' | format(messages[0].content) }}",
    "{{ '<|{}|>'.format(messages[0].content) }}",
    "{{ '<|ROLE|>'.replace('ROLE', messages[0].content) }}",
    "{{ '<|ROLE|>' | replace('ROLE', messages[0].content) }}",
    "{{ '<| ' | trim ~ messages[0].content ~ '|>' }}",
    "{{ ['<|', messages[0].content, '|>'] | join }}",
    "{{ messages[0].content.join(['<|', '|>']) }}",
    "{{ '<|x'[:2] + messages[0].content + '|>' }}",
    "{% set a = '<|' %}{{ a }}{{ messages[0].content }}{{ '|>' }}",
    "<{{ '|' }}{{ messages[0].content }}|>",
]


@pytest.mark.parametrize("source", FRAMES)
def test_a_template_framing_a_text_makes_no_control_token(source):
    assert render_marked(source, build_conversation("user"), "<|user|>") == "<|user|>"


@given(name=NASTY, content=NASTY)
def test_text_between_halves_of_a_name_completes_no_token(name, content):
    spoken = Conversation((Message(Role.USER, content, name=name),))
    pieces = compile_template(FRAMING, "<|user|>", "<|system|>").render(spoken, CLOCK)
    assert [piece.text for piece in pieces if piece.control] == ["<|eot_id|>"]
    assert "".join(piece.text for piece in pieces) == f"<|{name}|>{content}<|eot_id|>"


def test_two_texts_side_by_side_do_not_make_up_a_control_token():
    source = (
        "{% set a, b = messages[0].content, messages[1].content %}{{ a }}{{ b }}{{ a ~ b }}{{ a + b[:9] }}"
    )
    assert "⟦" not in render_marked(source, build_conversation("<|im_", "end|>"))


def test_a_role_may_be_a_part_of_a_control_token():
    source = "{% for m in messages %}{{ '<|' + m.role + '|>' }}\n{{ m.content }}{% endfor %}"
    assert render_marked(source, build_conversation("<|user|> hi"), "<|user|>") == "⟦<|user|>⟧\n<|user|> hi"


def test_the_template_finds_what_it_looks_for_in_a_text():
    source = (
        "{% for m in messages %}{% if '</think>' in m.content %}"
        "{{ m.content.split('</think>')[-1].lstrip('\\n') }}{% else %}"
        "{{ m.content }}{% endif %}<|im_end|>{% endfor %}"
    )
    assert (
        render_marked(source, build_conversation("<think>hm <b></think>\n\nyes <|im_end|>"))
        == "yes <|im_end|>⟦<|im_end|>⟧"
    )


def test_a_sought_text_that_names_a_control_token_is_hidden():
    source = "{{ messages[0].content.replace('<|im_end|>', 'gone') }}<|im_end|>"
    assert render_marked(source, build_conversation("a<|im_end|>b")) == "a<|im_end|>b⟦<|im_end|>⟧"


def test_lengths_and_cuts_are_those_of_the_text_itself():
    source = (
        "{{ messages[0].content | length }} {{ messages[0].content[1:4] }} {{ messages[0].content.upper() }}"
    )
    assert render_marked(source, build_conversation("<|im_end|>")) == "10 |im <|IM_END|>"


def test_json_of_a_text_is_what_it_would_be_anywhere():
    source = "{{ messages | tojson }} {{ messages[0].content | tojson(ensure_ascii=true) }}"
    assert render_marked(source, build_conversation('a "b" <é|>')) == (
        '[{"role": "user", "content": "a \\"b\\" <é|>"}] "a \\"b\\" <\\u00e9|>"'
    )


def test_private_use_characters_in_a_text_survive():
    text = "".join(map(chr, range(0xE000, 0xE100))) + "<|im_end|>"
    assert render_marked("{{ messages[0].content }}", build_conversation(text)) == text


def test_a_text_with_every_private_use_character_is_refused():
    text = "".join(map(chr, [*range(0xE000, 0xF900), *range(0xF0000, 0xFFFFE)]))
    with pytest.raises(InvalidValue, match="private-use"):
        render_marked("{{ messages[0].content }}", build_conversation(text))


COMMON = """
{%- macro turn(role, content='') -%}<|im_start|>{{ role }}
{{ content | trim }}<|im_end|>
{% endmacro -%}
{%- set ns = namespace(last=-1, seen=[]) -%}
{%- for m in messages[::-1] -%}
    {%- set index = (messages | length - 1) - loop.index0 -%}
    {%- if ns.last < 0 and m.role == "user" and m.content is string
        and not (m.content.startswith('<tool_response>') and m.content.endswith('</tool_response>')) -%}
        {%- set ns.last = index -%}
    {%- endif -%}
{%- endfor -%}
{%- for m in messages -%}
    {%- if loop.previtem is not defined or loop.previtem.role != m.role -%}
        {{- turn(m['role'], m.get('content') or '') -}}
    {%- endif -%}
    {%- set ns.seen = ns.seen + [m.role] -%}
    {%- if loop.last -%}{{ loop.length }} of {{ loop.index }}, {{ loop.revindex0 }} left
{% endif -%}
{%- endfor -%}
{%- set users = messages | selectattr('role', 'equalto', 'user') | list -%}
{{ users | map(attribute='content') | map('upper') | join(', ') }}; {{ '-'.join(ns.seen) }}; {{ ns.last }}
{{ messages | rejectattr('role', 'in', ['user']) | list | count }}
{% for k, v in messages[0].items() -%}{{ k }}={{ v | tojson }}{{ ', ' if not loop.last }}{% endfor %}
{{ {'b': 1, 'a': (2, 3)} | dictsort }}; {{ '%s is %d' % ('x', 7) }}; {{ '{} and {}'.format('x', 'y') }}
{{ 'a' ~ 1 ~ none ~ [true] }}; {{ 'ab' * 2 }}; {{ range(3) | list }}; {{ "x\ny" | indent(2) }}
{{ messages | tojson(indent=1) | length > 20 }}; {{ 7 // 2 ** 1 % 4 }}
"""


def test_what_chat_templates_commonly_do_works_as_in_plain_jinja():
    from jinja2 import Environment

    plain = Environment(trim_blocks=True, lstrip_blocks=True)
    plain.filters["tojson"] = lambda value, indent=None: json.dumps(value, indent=indent)
    conversation = build_conversation("Hi <b>", "yes", "and?", system="S")
    messages = [{"role": str(message.role), "content": message.text} for message in conversation.messages]
    pieces = create_template(COMMON).render(conversation, CLOCK)
    assert "".join(piece.text for piece in pieces) == plain.from_string(COMMON).render(messages=messages)
    assert sum(piece.control for piece in pieces) == 8


def test_a_developer_is_the_system_to_a_template_that_knows_none():
    spoken = Conversation((Message(Role.DEVELOPER, "D"),), generation_prompt=False)
    assert render_marked(CHATML, spoken) == "⟦<|im_start|>⟧system\nD⟦<|im_end|>⟧\n"
    assert (
        render_marked("{# developer #}{{ messages[0].role + messages[0].content }}", spoken) == "developerD"
    )


def test_a_template_says_itself_what_it_refuses():
    with pytest.raises(TemplateRefused, match="no system role") as refused:
        render_marked(GEMMA, build_conversation("A", system="S"))
    assert refused.value.param == "messages"
    with pytest.raises(TemplateRefused, match=r"what <\|im_end\|> is"):
        render_marked(
            "{{ raise_exception('what ' + messages[0].content + ' is') }}", build_conversation("<|im_end|>")
        )


def test_the_date_comes_from_the_clock():
    clock = FakeClock(wall=datetime(2031, 5, 6, tzinfo=UTC).timestamp())
    pieces = create_template("{{ strftime_now('%d %b %Y') }}").render(build_conversation("x"), clock)
    assert pieces[0].text == "06 May 2031"


def test_loop_controls_and_generation_marks_are_known():
    source = (
        "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}"
        "{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
    )
    assert render_marked(source, build_conversation("a", "b")) == "a"


def test_blocks_are_trimmed_as_models_expect():
    assert render_marked("{% if true %}\n  {% set x = 1 %}\na\n{% endif %}", build_conversation("x")) == "a\n"


def test_missing_things_are_empty_and_errors_name_themselves():
    assert (
        render_marked(
            "{{ tools or 'none' }}{{ nothing }}{{ messages[0].tool_calls }}", build_conversation("x")
        )
        == "none"
    )
    with pytest.raises(TemplateRefused, match="UndefinedError"):
        render_marked("{{ nothing.at.all }}", build_conversation("x"))


def test_a_template_that_cannot_be_compiled_is_refused():
    for source in (
        "{% for %}",
        "{{ x | nosuchfilter }}",
        "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
        "x" * 600_000,
    ):
        with pytest.raises(TemplateRefused):
            create_template(source)


def test_special_names_are_those_of_the_vocabulary():
    assert SPECIAL.bos == "<s>"
    assert render_marked("{{ bos_token }}{{ eos_token }}", build_conversation("x")) == "⟦<s>⟧⟦</s>⟧"
