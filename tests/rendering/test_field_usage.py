"""What of messages a template does not read is told: names and earlier reasoning, however it looks."""

import pytest

from antiphon.domain.context import Context
from antiphon.domain.messages import Message, Role, ToolCall
from antiphon.domain.request import Conversation
from antiphon.domain.values import replace
from antiphon.rendering.template.chat_template import ChatTemplate, NotationFamilies
from antiphon.rendering.template.environment import watch_fields
from antiphon_testing import FakeClock, scripted_info
from antiphon_testing.scripted_token_engine import CHATML
from tests.rendering.scripted_renderer import asking, renderer
from tests.support.chat_templates import SPECIAL, create_template

NAMED = Message(Role.USER, "Hello", "Ada")
THOUGHT = Message(Role.ASSISTANT, "Hi", reasoning="hm", reasoning_field="reasoning")
TALK = Conversation((NAMED, THOUGHT, Message(Role.USER, "And?")))
BOTH = ("messages[].name", "messages[].reasoning")


def each(body: str) -> str:
    return "{% for m in messages %}{{ m.role }} {{ m.content }} " + body + "{% endfor %}"


def unread(source: str, conversation: Conversation = TALK) -> tuple[str, ...]:
    chat = create_template(source)
    with watch_fields() as watch:
        chat.render(conversation, FakeClock())
    return watch.list_unread(conversation.messages)


@pytest.mark.parametrize(
    "source", [CHATML, each("{% if 'name' in m %}!{% endif %}"), each("{{ m.get('x') }}")]
)
def test_what_no_template_reads_is_told(source: str) -> None:
    assert unread(source) == BOTH
    assert unread(source, Conversation((THOUGHT, NAMED))) == BOTH
    assert unread(source, Conversation((Message(Role.USER, "Hello"),))) == ()


@pytest.mark.parametrize(
    "body",
    [
        "{{ m.name }}{{ m.reasoning }}",
        "{{ m['name'] }}{{ m['reasoning_content'] }}",
        "{{ m.get('name') }}{{ m.get('reasoning_content', '') }}",
        "{% if m.name is defined %}!{% endif %}{% if m.reasoning_content is string %}?{% endif %}",
        "{{ m | tojson }}",
        "{{ m }}",
        "{{ m ~ '' }}",
        "{{ dict(m).name }}",
        "{{ dict(m, content='x') | tojson(indent=2) }}",
        "{% for key, value in m.items() %}{{ value }}{% endfor %}",
        "{% for key, value in m | items %}{{ value }}{% endfor %}",
        "{% for key, value in m | dictsort %}{{ value }}{% endfor %}",
        "{{ m.values() | list }}",
        "{% for key in m %}{{ m[key] }}{% endfor %}",
        "{{ m.copy() }}",
        "{% set all = [m] %}{{ all | map(attribute='name') | list }}{{ all | tojson }}",
    ],
)
def test_what_is_read_is_not_told_however_it_is_read(body: str) -> None:
    assert unread(each(body)) == ()


def test_each_unread_part_is_reported_on_its_own() -> None:
    assert unread(each("{{ m.name }}")) == BOTH[1:]
    assert unread(each("{{ m.thinking }}")) == BOTH[:1]
    assistants = each("{% if m.role == 'assistant' %}{{ m.name }}{% endif %}")
    two = Conversation((NAMED, replace(NAMED, role=Role.ASSISTANT)))
    assert unread(assistants, two) == BOTH[:1]
    assert unread(assistants, Conversation(two.messages[1:])) == ()


def test_a_name_that_is_lost_before_the_template_is_told() -> None:
    """A template that knows no results gets them as a user's text."""
    call = ToolCall("c", "f", "{}")
    result = Message(Role.TOOL, "rain", "f", tool_call_id="c")
    asked = Conversation((Message(Role.USER, "Q"), Message(Role.ASSISTANT, "", tool_calls=(call,)), result))
    assert unread(each("{{ m.name }}"), asked) == BOTH[:1]


def test_reasoning_that_stands_in_the_content_is_read() -> None:
    source = (
        "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
        "{% for part in m.content %}{% if part.type == 'thinking' %}[THINK]{{ part.thinking }}[/THINK]"
        "{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}{% endfor %}"
    )
    chat = ChatTemplate(source, SPECIAL, NotationFamilies(reasoning="mistral"))
    with watch_fields() as watch:
        pieces = chat.render(TALK, FakeClock())
    assert "hm" in "".join(piece.text for piece in pieces)
    assert watch.list_unread(TALK.messages) == BOTH[:1]


@pytest.mark.parametrize("texts", ["Hello", "Hello " * 20_000], ids=["here", "in a thread"])
async def test_whoever_answers_is_told(texts: str) -> None:
    for body, expected in (("", BOTH), ("{{ m.name }}{{ m.reasoning }}", ())):
        info = scripted_info(context_length=1 << 18, chat_template=each(body))
        engine, _ = renderer(info=info)
        context = Context("r", clock=FakeClock())
        talk = replace(TALK, messages=(replace(NAMED, text=texts), *TALK.messages[1:]))
        prepared = await engine.prepare(asking(talk), context)
        assert prepared.report.ignored == expected


async def test_a_template_of_the_requests_own_is_watched_where_it_runs() -> None:
    for body, expected in (("", BOTH), ("{{ m.name }}{{ m.reasoning }}", ())):
        engine, _ = renderer()
        context = Context("r", clock=FakeClock())
        prepared = await engine.prepare(asking(replace(TALK, template=each(body))), context)
        assert prepared.report.ignored == expected
