"""A last message that is left open, values that a template reads, and who speaks: what of them is in the
prompt, and what is refused by name."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.domain.messages import CacheControl, Message, Role, TextContent, Tool, Tools
from antiphon.domain.request import Conversation
from antiphon.domain.values import replace
from antiphon.errors import InvalidValue, TemplateRefused, UnsupportedParameter
from antiphon_testing import FakeClock
from tests.support.chat_templates import (
    FAMILIES,
    GEMMA,
    LLAMA,
    MISTRAL,
    build_conversation,
    create_template,
    render_marked,
)

QWEN3 = (
    "{%- for m in messages %}{%- if m.role == 'assistant' %}{%- set c = m.content %}{%- set r = '' %}"
    "{%- if m.reasoning_content is string %}{%- set r = m.reasoning_content %}"
    "{%- elif '</think>' in c %}{%- set r = c.split('</think>')[0].split('<think>')[-1] %}"
    "{%- set c = c.split('</think>')[-1].lstrip('\n') %}{%- endif %}"
    "<|im_start|>assistant\n{% if loop.last %}<think>\n{{ r.strip('\n') }}\n</think>\n\n{% endif %}"
    "{{ c.lstrip('\n') }}{%- else %}<|im_start|>{{ m.role }}\n{{ m.content }}{%- endif %}<|im_end|>\n"
    "{%- endfor %}{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false %}{{ '<think>\n\n</think>\n\n' }}"
    "{%- endif %}{%- endif %}"
)
"""In the manner of a family that thinks; written for these tests."""


def left_open(*texts: str, system: str | None = None) -> Conversation:
    return replace(build_conversation(*texts, system=system), generation_prompt=False, continues=True)


@pytest.mark.parametrize(
    ("name", "end"),
    [
        ("chatml", "⟦<|im_start|>⟧assistant\nThe answer is "),
        ("llama", "⟦<|start_header_id|>⟧assistant⟦<|end_header_id|>⟧\n\nThe answer is "),
        ("mistral", "⟦[/INST]⟧ The answer is "),
        ("gemma", "⟦<start_of_turn>⟧model\nThe answer is "),
    ],
)
def test_the_last_message_is_left_open_in_every_family(name, end):
    """Also where a template trims what is said: the space at the end is the caller's."""
    prompt = render_marked(FAMILIES[name], left_open("What is it?", "The answer is "))
    assert prompt.endswith(end)
    whole = render_marked(
        FAMILIES[name], replace(build_conversation("What is it?", "The answer is"), generation_prompt=False)
    )
    assert whole.startswith(prompt.rstrip()) and len(whole) > len(prompt)


@pytest.mark.parametrize(
    "text", ["", " ", "assistant", "<|im_end|>", "end", "\n", "a", "What is it?", "\ue000"]
)
def test_a_text_found_twice_is_cut_where_the_message_ends(text):
    prompt = render_marked(FAMILIES["chatml"], left_open("What is it?", text))
    assert prompt == f"⟦<|im_start|>⟧user\nWhat is it?⟦<|im_end|>⟧\n⟦<|im_start|>⟧assistant\n{text}"


@given(text=st.text(max_size=20), name=st.sampled_from(sorted(FAMILIES)))
def test_whatever_is_left_open_stands_at_the_end(text, name):
    pieces = create_template(FAMILIES[name]).render(left_open("x", text), FakeClock())
    assert "".join(piece.text for piece in pieces).endswith(text.lstrip())


def test_an_open_message_of_a_reasoning_model_is_continued():
    assert render_marked(QWEN3, left_open("Q", "Yes, ")).endswith("assistant\n<think>\n\n</think>\n\nYes, ")
    assert render_marked(QWEN3, left_open("Q", "<think>\nWell")).endswith("</think>\n\n<think>\nWell")


@pytest.mark.parametrize(
    "source",
    [
        "{% for m in messages %}{{ m.content | upper }}{% endfor %}",
        "{% for m in messages %}{{ m.content.split('</think>')[-1] }}{% endfor %}",
        "{% for m in messages %}{{ m.content[:4] }}{% endfor %}",
        "{% for m in messages %}{{ m.content }}{{ m.content }}{% endfor %}",
        "{{ messages[0].content }}",
    ],
)
def test_a_template_that_rewrites_a_message_cannot_open_it(source):
    with pytest.raises(UnsupportedParameter, match="rewrites") as refused:
        render_marked(source, left_open("Q", "<think>a</think>yes"))
    assert refused.value.param == "continue_final_message"


def test_tools_that_are_written_out_stand_before_an_open_message():
    conversation = replace(left_open("Q", "I "), tools=Tools((Tool("f"),)))
    prompt = render_marked(FAMILIES["chatml"], conversation)
    assert "You can call functions" in prompt and prompt.endswith("assistant\nI ")


# --- values ---


def test_a_value_reaches_the_template():
    asked = replace(build_conversation("Q"), template_values={"enable_thinking": False})
    assert render_marked(QWEN3, asked).endswith("assistant\n<think>\n\n</think>\n\n")
    assert render_marked(
        QWEN3, replace(build_conversation("Q"), template_values={"enable_thinking": True})
    ) == render_marked(QWEN3, build_conversation("Q"))


def test_a_value_that_no_template_reads_is_refused_by_its_name():
    with pytest.raises(
        UnsupportedParameter, match=r"enable_thinkin\b.*it reads: enable_thinking$"
    ) as refused:
        render_marked(QWEN3, replace(build_conversation("Q"), template_values={"enable_thinkin": False}))
    assert refused.value.param == "chat_template_kwargs.enable_thinkin"


@pytest.mark.parametrize(
    "name",
    [
        "messages",
        "tools",
        "documents",
        "add_generation_prompt",
        "bos_token",
        "eos_token",
        "range",
        "self",
        "loop",
    ],
)
def test_what_the_server_sets_is_nobody_elses_to_give(name):
    source = "{{ NAME }}{% for m in messages %}{{ m.content }}{{ loop.index }}{% endfor %}"
    source = source.replace("NAME", name)
    with pytest.raises(InvalidValue, match="set by the server") as refused:
        create_template(source).render(
            replace(build_conversation("Q"), template_values={name: "x"}), FakeClock()
        )
    assert refused.value.param == f"chat_template_kwargs.{name}"


def test_texts_in_values_never_become_control_tokens():
    source = "{{ note }}{% for k, v in more.items() %}{{ k }}{{ v }}{% endfor %}<|im_end|>"
    values = {"note": "<|im_end|>", "more": {"<|im_start|>": ["<|im_end|>"], "<|": "im_end|>"}}
    prompt = render_marked(source, replace(build_conversation("Q"), template_values=values))
    assert prompt.count("⟦") == 1 and prompt.startswith("<|im_end|><|im_start|>[")


@pytest.mark.parametrize(("mode", "written_for"), [("user", "plain"), ("user_id", "else"), ("<|x|>", "else")])
def test_words_that_the_template_knows_are_seen_as_they_are(mode, written_for):
    """Although this one frames texts, so that letters of control tokens are hidden in all others."""
    source = (
        "{{ '<|%s|>' % messages[0].content }}"
        "{% if mode == 'user' %}plain{% else %}else{% endif %}{{ doc.end }}"
    )
    values = {"mode": mode, "doc": {"end": "END"}}
    assert render_marked(source, replace(build_conversation("Q"), template_values=values)).endswith(
        f"{written_for}END"
    )


def test_documents_reach_only_templates_that_read_them():
    documents = ({"title": "Tides", "text": "The <|im_end|> moon."},)
    source = (
        "{% for d in documents or [] %}{{ d.title }}: {{ d['text'] }}{% endfor %}{{ messages[0].content }}"
    )
    assert (
        render_marked(source, replace(build_conversation("Q"), documents=documents))
        == "Tides: The <|im_end|> moon.Q"
    )
    assert render_marked(source, build_conversation("Q")) == "Q"
    with pytest.raises(UnsupportedParameter) as refused:
        render_marked(LLAMA, replace(build_conversation("Q"), documents=documents))
    assert refused.value.param == "documents"


# --- who speaks ---

FIRST_ONLY = (
    "{% if messages[0].role == 'system' %}S:{{ messages[0].content }};"
    "{% set messages = messages[1:] %}{% endif %}"
    "{% for m in messages %}{% if m.role == 'user' %}U:{{ m.content }};"
    "{% elif m.role == 'assistant' %}A:{{ m.content }};{% endif %}{% endfor %}"
)
"""Drops every other system message without a word, as some do."""

KNOWS_DEVELOPERS = (
    "{% if messages[0].role in ['developer', 'system'] %}{{ messages[0].role }}:{{ messages[0].content }};"
    "{% set messages = messages[1:] %}{% endif %}"
    "{% for m in messages %}{% if m.role not in ['developer', 'system'] %}{{ m.content }}{% endif %}"
    "{% endfor %}"
)


def instructed(*roles_and_texts: tuple[Role, str]) -> Conversation:
    return Conversation(tuple(Message(role, text) for role, text in roles_and_texts), generation_prompt=False)


SEVERAL = instructed((Role.SYSTEM, "one"), (Role.DEVELOPER, "two"), (Role.USER, "hi"))
LATER = instructed(
    (Role.SYSTEM, "one"), (Role.USER, "hi"), (Role.ASSISTANT, "yes"), (Role.SYSTEM, "two"), (Role.USER, "go")
)


@pytest.mark.parametrize(
    ("source", "several", "later"),
    [
        (
            FAMILIES["chatml"],
            "⟦<|im_start|>⟧system\none⟦<|im_end|>⟧\n⟦<|im_start|>⟧system\ntwo⟦<|im_end|>⟧\n"
            "⟦<|im_start|>⟧user\nhi⟦<|im_end|>⟧\n",
            "yes⟦<|im_end|>⟧\n⟦<|im_start|>⟧system\ntwo⟦<|im_end|>⟧\n⟦<|im_start|>⟧user\ngo⟦<|im_end|>⟧\n",
        ),
        (
            MISTRAL,
            "⟦<s>⟧⟦[INST]⟧ one\n\ntwo\n\nhi⟦[/INST]⟧",
            "⟦<s>⟧⟦[INST]⟧ one\n\nhi⟦[/INST]⟧ yes⟦</s>⟧⟦[INST]⟧ two\n\ngo⟦[/INST]⟧",
        ),
        (FIRST_ONLY, "S:one\n\ntwo;U:hi;", "S:one;U:hi;A:yes;U:two\n\ngo;"),
        (KNOWS_DEVELOPERS, "system:one\n\ntwo;hi", "system:one;hiyestwo\n\ngo"),
    ],
    ids=["chatml", "mistral", "first only", "developers"],
)
def test_every_system_message_is_in_the_prompt(source, several, later):
    assert render_marked(source, SEVERAL) == several
    assert later in render_marked(source, LATER)


def test_a_late_system_message_is_a_part_of_the_users_turn_beside_it():
    """Claude Code sends one after the first question, with a mark at its end."""
    note = Message(Role.SYSTEM, "note", content=(TextContent("note", CacheControl()),))
    asked = (Message(Role.SYSTEM, "one"), Message(Role.USER, "hi"), note)
    first = render_marked(MISTRAL, Conversation(asked))
    assert first == "⟦<s>⟧⟦[INST]⟧ one\n\nhi\n\nnote⟦[/INST]⟧"
    later = (
        *asked[:2],
        Message(Role.SYSTEM, "note"),
        Message(Role.ASSISTANT, "yes"),
        Message(Role.USER, "go"),
    )
    assert render_marked(MISTRAL, Conversation(later)) == f"{first} yes⟦</s>⟧⟦[INST]⟧ go⟦[/INST]⟧"
    between = (*asked, Message(Role.SYSTEM, "two"), Message(Role.USER, "go"))
    assert render_marked(MISTRAL, Conversation(between)) == (
        "⟦<s>⟧⟦[INST]⟧ one\n\nhi\n\nnote\n\ntwo\n\ngo⟦[/INST]⟧"
    )


FIRST_DEVELOPER = (
    "{% for m in messages %}{% if loop.first and m.role == 'developer' %}D:{{ m.content }};"
    "{% elif m.role == 'system' %}S:{{ m.content }};{% elif m.role != 'developer' %}{{ m.content }}"
    "{% endif %}{% endfor %}"
)
"""Knows a developer who speaks first, and drops any other without a word, as one does."""


def test_a_late_developer_becomes_the_system_if_unsupported():
    assert render_marked(FIRST_DEVELOPER, SEVERAL) == "S:one;S:two;hi"
    assert render_marked(FIRST_DEVELOPER, instructed((Role.DEVELOPER, "D"), (Role.USER, "hi"))) == "D:D;hi"
    late = instructed((Role.DEVELOPER, "D"), (Role.USER, "hi"), (Role.DEVELOPER, "E"), (Role.USER, "ho"))
    assert render_marked(FIRST_DEVELOPER, late) == "D:D;hiS:E;ho"


def test_a_developer_alone_keeps_the_name_that_a_template_knows():
    assert (
        render_marked(KNOWS_DEVELOPERS, instructed((Role.DEVELOPER, "D"), (Role.USER, "hi")))
        == "developer:D;hi"
    )


def test_a_system_message_is_never_dropped_in_silence():
    silent = "{% for m in messages %}{% if m.role != 'system' %}{{ m.content }}{% endif %}{% endfor %}"
    with pytest.raises(TemplateRefused, match="shows no system message") as refused:
        render_marked(silent, SEVERAL)
    assert refused.value.param == "messages"
    with pytest.raises(TemplateRefused, match="no system role"):
        render_marked(GEMMA, SEVERAL)
