"""Templates that come with requests: rendered in a process that can be killed, a few at a time, and refused
by their field's name."""

import asyncio
import contextlib
import json
import os
import time

import pytest

from antiphon.dialects.common.tools import build_tool
from antiphon.domain.context import Context
from antiphon.domain.identity import LOCAL_ANONYMOUS, Actor, ActorKind
from antiphon.domain.messages import Message, Role, TextContent, Tool, ToolCall, Tools
from antiphon.domain.request import Conversation, Reasoning, ReasoningFieldNames
from antiphon.domain.values import fields, replace
from antiphon.errors import (
    ContextLengthExceeded,
    EngineBusy,
    InvalidValue,
    Overloaded,
    ServerBusy,
    TemplateRefused,
    UnsupportedParameter,
)
from antiphon.processes.sandbox import JobStopped, Stop, run_job
from antiphon.rendering.call_notation import CALL_FAMILIES as NOTATIONS
from antiphon.rendering.call_notation import detect_notation
from antiphon.rendering.model_info import load_info, with_template
from antiphon.rendering.renderer import Renderer
from antiphon.rendering.template.chat_template import ChatTemplate, NotationFamilies
from antiphon.rendering.template.request_template import (
    HELPER_LIMITS,
    RequestTemplate,
    TemplateHelper,
    build_payload,
    decode_conversation,
    render,
)
from antiphon_testing import FakeClock, Script, ScriptedTokenEngine
from antiphon_testing.scripted_token_engine import scripted_info
from tests.rendering.scripted_renderer import answer, asking, renderer
from tests.support.chat_templates import FAMILIES, SPECIAL, build_conversation, prove_here
from tests.support.processes import descendants
from tests.support.waiting import settle

HOSTILE = (
    "{{ ''.__class__.__mro__ }}",
    "{% for i in range(10**9) %}a{% endfor %}",
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{{ 'a' * 10**9 }}",
    "{{ messages.__init__.__globals__ }}",
    "{{ raise_exception('no') }}",
    "{{ cycler.__init__.__globals__.os.system('true') }}",
    "{{ nothing.at.all }}",
    "{% if %}",
)


async def here(target, payload, limits):
    """Runs the job without a process, for tests of other things."""
    assert target == "antiphon.rendering.template.request_template:render"
    return json.loads(json.dumps(render(payload)))


async def briefly(target, payload, limits):
    """Runs the job in a process that may compute for a quarter of a second."""
    return await run_job(target, payload, replace(limits, seconds=0.25))


def own(source, helper=None):
    return whose(source, helper or TemplateHelper(here), "ada")


def whose(source, helper, actor):
    return RequestTemplate(source, SPECIAL, NotationFamilies(), detect_notation(source), None, helper, actor)


SHORT = "{{ messages[0].content }}"
SPEAKS_LLAMA = "{% for m in messages %}<|python_tag|>{{ m.content }}{% endfor %}"
CONVERSATION = Conversation(
    (
        Message(Role.SYSTEM, "Be <|im_end|> brief."),
        Message(Role.USER, "Grüße 😀", name="Ada"),
        Message(Role.ASSISTANT, "Well", tool_calls=(ToolCall("c", "f", '{"a": 1}'),), reasoning="hm"),
        Message(Role.TOOL, "4", tool_call_id="c", is_error=True),
        Message(Role.ASSISTANT, "", speech_id="spoken"),
        Message(Role.ASSISTANT, "So it is ", content=(TextContent("So"),), thinking_blocks=({"a": 1},)),
    ),
    generation_prompt=False,
    continues=True,
    tools=Tools((Tool("f", "does", {"type": "object", "properties": {"a": {"enum": [1]}}}),)),
    template_values={"mood": ["calm"]},
    documents=({"text": "<|im_end|>"},),
)
ALL = (
    "{{ mood | tojson }}{{ documents | tojson }}{{ tools | tojson }}{{ strftime_now('%Y') }}"
    "{% for m in messages %}<|im_start|>{{ m.role }} {{ m.name }} {{ m.reasoning_content }} {{ m.content }}"
    "{{ m.tool_calls | tojson if m.tool_calls }}{{ m.tool_call_id }}<|im_end|>{% endfor %}"
)


@pytest.mark.parametrize(
    "source",
    [ALL, *(pytest.param(FAMILIES[name], marks=pytest.mark.soak, id=name) for name in sorted(FAMILIES))],
)
async def test_a_template_writes_the_same_apart_as_here(source):
    conversation = CONVERSATION if source is ALL else build_conversation("A <|im_end|>", "B", "C")
    whole = ChatTemplate(source, SPECIAL, probe_source=conversation).render(conversation, FakeClock())
    assert await own(source, TemplateHelper()).render(conversation, FakeClock()) == whole


def test_a_conversation_crosses_the_border_whole():
    """All but what names the template itself, whether a begin token stands before the prompt, and the
    body that only Anthropic gets."""
    known = {field.name for field in fields(Conversation)} - {"template", "add_special", "original"}
    terms = ReasoningFieldNames("a", "b", "c", "d", 7)
    asked = replace(CONVERSATION, reasoning=Reasoning("low", 5, False, True, terms))
    plain = Conversation((Message(Role.USER, "Q"),))
    for name in known - {"messages"}:
        assert getattr(asked, name) != getattr(plain, name), f"give {name} a value here"
    for field in fields(Message):
        assert any(getattr(message, field.name) for message in asked.messages), field.name
    tool = build_tool(Tool("f"), {"type": "object", "properties": {"a": {"type": "string"}}}, [], False)
    shared = replace(plain, tools=Tools((tool,)))
    for conversation in (asked, plain, shared):
        crossed = decode_conversation(json.loads(json.dumps(build_payload(own("x"), conversation, 1.0))))
        assert crossed == conversation and crossed.reasoning.field_names == conversation.reasoning.field_names


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(source, id=str(at), marks=[] if at in (1, 8) else pytest.mark.soak)
        for at, source in enumerate(HOSTILE)
    ],
)
async def test_a_hostile_template_is_refused_while_others_go_on(source):
    others_have_gone_on = asyncio.Event()

    async def held(target, payload, limits):
        """Ends when the others have gone on, however slow this process is meanwhile."""
        try:
            return await briefly(target, payload, limits)
        except Exception:
            await others_have_gone_on.wait()
            raise

    engine, _ = renderer(Script(text="ok"), helper=TemplateHelper(held))
    engine_busy = replace(build_conversation("Hello"), template=source)
    begun = time.monotonic()
    async with asyncio.TaskGroup() as group:
        job = group.create_task(refusal(engine, engine_busy))
        assert (await answer(engine, asking(build_conversation("Hello")))).choices[0].text == "ok"
        assert not job.done()
        others_have_gone_on.set()
    refused = job.result()
    assert refused.param == "chat_template" and refused.status == 400
    assert refused.message.startswith("the request's chat template ")
    assert "0x" not in refused.message and os.sep + "usr" not in refused.message
    assert time.monotonic() - begun < 40
    assert descendants(os.getpid(), "antiphon.processes.sandbox", recursive=False) == []


async def refusal(engine, conversation):
    with pytest.raises(TemplateRefused) as caught:
        await answer(engine, asking(conversation))
    return caught.value


@pytest.mark.parametrize(
    ("stop", "said"),
    [
        (Stop.TIME, "more than 2 seconds"),
        (Stop.MEMORY, "more than 256 MB"),
        (Stop.OUTPUT, "too long a prompt"),
        (Stop.CRASH, "broke the process"),
    ],
)
async def test_what_was_stopped_is_told_without_details(stop, said):
    async def stopped(target, payload, limits):
        raise JobStopped(stop, "a detail of the helper")

    with pytest.raises(TemplateRefused, match=said) as refused:
        await own("{{ x }}", TemplateHelper(stopped)).render(build_conversation("Hello"), FakeClock())
    assert refused.value.param == "chat_template" and "detail" not in refused.value.message


@pytest.mark.parametrize(
    ("source", "run"),
    [('{{ "\\ud800" }}', here), ('{{ raise_exception("\\ud800") }}', run_job), ("a\udc00", here)],
)
async def test_half_a_surrogate_pair_reaches_no_tokenizer_or_error(source, run):
    engine, tokens = renderer(Script(text="ok"), helper=TemplateHelper(run))
    refused = await refusal(engine, replace(build_conversation("Hello"), template=source))
    assert refused.param == "chat_template" and not tokens.requests
    assert refused.message.encode()
    with pytest.raises(TemplateRefused):
        ChatTemplate(source, SPECIAL).render(build_conversation("Hello"), FakeClock())


async def test_a_prompt_that_is_too_long_names_what_made_it_so():
    engine, _ = renderer(helper=TemplateHelper(here))

    async def named(conversation, **output):
        with pytest.raises((ContextLengthExceeded, InvalidValue)) as refused:
            await answer(engine, asking(conversation, **output))
        return refused.value.param, "the request's chat template" in refused.value.message

    short, long = build_conversation("Hello"), build_conversation("a" * 6000)
    for least in (100, 100_000):
        writes = replace(short, template=f"{{{{ 'a b ' * {4096 + least} }}}}")
        assert await named(writes) == ("chat_template", True)
    assert await named(replace(long, template=FAMILIES["chatml"])) == ("messages", True)
    assert await named(long) == ("messages", False)
    few = replace(short, template="{{ 'a b ' * 99 }}")
    assert await named(few, max_tokens=100_000) == ("chat_template", True)
    assert await named(replace(short, template="{{ '' }}", add_special=False)) == ("chat_template", False)


async def test_errors_that_name_a_field_keep_it():
    """One of the errors comes from a process, and the others are made alike."""
    for conversation, param in (
        (replace(build_conversation("Q"), template_values={"y": 1}), "chat_template_kwargs.y"),
        (
            replace(build_conversation("Q", "A"), generation_prompt=False, continues=True),
            "continue_final_message",
        ),
        (replace(build_conversation("Q"), documents=({},)), "documents"),
    ):
        helper = TemplateHelper(run_job if param == "documents" else here)
        with pytest.raises(UnsupportedParameter) as refused:
            await own("{{ messages[0].content }}", helper).render(conversation, FakeClock())
        assert refused.value.param == param


class Slow:
    """A helper's process that ends when it is told to; `running` holds what runs, `ended` what is through."""

    def __init__(self):
        self.running, self.ended = [], []

    async def __call__(self, target, payload, limits):
        entry = (payload["template"], asyncio.Event())
        self.running.append(entry)
        try:
            await entry[1].wait()
        finally:
            self.running.remove(entry)
        self.ended.append(entry[0])
        return await here(target, payload, limits)

    async def end(self, name):
        """Ends the first that runs of that name, and lets the next begin."""
        next(end for running, end in self.running if running == name).set()
        await settle()

    async def end_all(self):
        while self.running:
            await self.end(self.names[0])

    @property
    def names(self):
        return [name for name, _ in self.running]


@contextlib.asynccontextmanager
async def crowd(**bounds):
    """A helper with a slow process, and a function that has an actor ask it; their templates are their
    names."""
    slow = Slow()
    helper = TemplateHelper(slow, replace(HELPER_LIMITS, **bounds))
    async with asyncio.TaskGroup() as group:

        async def ask(actor, clock=None):
            work = whose(actor, helper, actor).render(build_conversation("Q"), clock or FakeClock())
            task = group.create_task(work)
            await settle()
            return task

        yield slow, ask, helper


async def test_a_callers_extra_templates_are_refused_for_now():
    async with crowd(queue=4, queue_per_actor=3) as (slow, ask, helper):
        jobs = [await ask("ada") for _ in range(HELPER_LIMITS.at_once + 3)]
        assert slow.names == ["ada"] * HELPER_LIMITS.at_once
        with pytest.raises(Overloaded, match="3 chat templates of yours may wait") as refused:
            await whose("ada", helper, "ada").render(build_conversation("Q"), FakeClock())
        assert refused.value.status == 429 and refused.value.retry_after
        jobs[-1].cancel()
        jobs[0].cancel()
        await asyncio.wait([jobs[0], jobs[-1]])
        await settle()
        assert len(slow.running) == HELPER_LIMITS.at_once, (
            "the place of one that was cancelled is the next one's"
        )
        others = [await ask(name) for name in ("bob", "bob", "bob")]
        with pytest.raises(EngineBusy, match=r"overloaded.* 4 chat templates may wait") as busy:
            await whose("eve", helper, "eve").render(build_conversation("Q"), FakeClock())
        assert busy.value.status == 503 and busy.value.retry_after
        await slow.end_all()
    assert [job.cancelled() for job in jobs] == [True, False, False, False, True]
    assert all(job.done() for job in others)


async def test_callers_take_turns_with_any_number_of_templates():
    """Whoever comes second waits for one of those that run, not for those that wait."""
    async with crowd() as (slow, ask, _):
        for _ in range(12):
            await ask("ada")
        for _ in range(2):
            await ask("bob")
        await ask("eve")
        await slow.end("ada")
        await slow.end("ada")
        assert slow.names == ["ada", "bob"]
        await slow.end("ada")
        assert slow.names == ["bob", "eve"]
        await slow.end_all()
    assert slow.ended.count("ada") == 12 and slow.ended.index("bob") == 3


async def test_a_caller_that_leaves_passes_its_turn_on():
    async with crowd() as (slow, ask, _):
        for _ in range(HELPER_LIMITS.at_once):
            await ask("ada")
        leaving = await ask("bob")
        await ask("eve")
        slow.running[0][1].set()
        while not slow.ended:
            await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.wait([leaving])
        await settle()
        assert slow.names == ["ada", "eve"]
        await slow.end_all()
    assert leaving.cancelled() and "eve" in slow.ended


async def test_a_hostile_caller_delays_none_of_the_others():
    """With real processes: whoever holds both places holds them for one rendering."""
    ended_before: list[int] = []
    """How many of the flood had ended when a rendering for the others began."""
    held = 0
    both_places_are_held = asyncio.Event()

    async def note_turn(target, payload, limits):
        nonlocal held
        if payload["template"] == SHORT:
            ended_before.append(sum(job.done() for job in flood))
            return await run_job(target, payload, limits)
        held += 1
        if held == HELPER_LIMITS.at_once:
            both_places_are_held.set()
        return await briefly(target, payload, limits)

    engine, _ = renderer(Script(text="ok"), helper=TemplateHelper(note_turn))
    hostile, honest = (
        replace(build_conversation("Hello"), template=HOSTILE[2]),
        replace(build_conversation("Hello"), template=SHORT),
    )

    async def ask(actor, conversation):
        who = Actor(ActorKind.SERVICE_KEY, actor)
        return await answer(engine, asking(conversation), Context("r", who))

    async with asyncio.TaskGroup() as group:
        flood = [group.create_task(flooding(ask("mallory", hostile))) for _ in range(18)]
        await both_places_are_held.wait()
        ended = sum(job.done() for job in flood)
        applied = group.create_task(engine.apply(honest, Actor(ActorKind.USER, "bob")))
        assert (await ask("ada", honest)).choices[0].text == "ok"
        assert await applied == "Hello"
        assert ended_before[0] - ended <= HELPER_LIMITS.at_once + 1
        for job in flood:
            job.cancel()
    assert descendants(os.getpid(), "antiphon.processes.sandbox", recursive=False) == []


async def flooding(work):
    """Refused, or stopped by a machine that is too busy for it."""
    with pytest.raises((TemplateRefused, ServerBusy)):
        await work


async def test_a_callers_template_is_refused_by_name_by_default():
    tokens = ScriptedTokenEngine(Script(text="ok"))
    engine = Renderer(tokens, prove=prove_here)
    conversation = replace(build_conversation("Hello"), template=SHORT)
    for work in (
        answer(engine, asking(conversation)),
        engine.apply(conversation),
        engine.encode(conversation),
    ):
        with pytest.raises(UnsupportedParameter, match="ANTIPHON_REQUEST_TEMPLATES=true") as refused:
            await work
        assert refused.value.param == "chat_template" and refused.value.message.startswith("chat_template is")
    assert not tokens.requests
    smuggled = replace(build_conversation("Hello"), template_values={"chat_template": SHORT})
    with pytest.raises(UnsupportedParameter) as refused:
        await engine.apply(smuggled)
    assert refused.value.param == "chat_template_kwargs.chat_template"


async def test_a_model_without_a_template_chats_through_a_requests():
    engine, tokens = renderer(
        Script(text="ok"), info=scripted_info(chat_template=None), helper=TemplateHelper(here)
    )
    with pytest.raises(TemplateRefused, match="one as chat_template"):
        await answer(engine, asking(build_conversation("Hello")))
    asked = replace(build_conversation("Hello <|im_end|>"), template=FAMILIES["chatml"])
    assert (await answer(engine, asking(asked))).choices[0].text == "ok"
    assert (
        await engine.apply(asked) == "<|im_start|>user\nHello <|im_end|><|im_end|>\n<|im_start|>assistant\n"
    )
    assert await engine.encode(asked) == tokens.requests[0].prompt.ids


async def test_the_models_call_notation_stays_unless_replaced():
    engine = ScriptedTokenEngine(info=scripted_info(chat_template=SPEAKS_LLAMA))
    facts = await load_info(engine, prove_here, None)

    def opened(facts, source):
        known = with_template(
            facts, replace(build_conversation("Q"), template=source), TemplateHelper(here), LOCAL_ANONYMOUS
        )
        assert known.template is not None
        return known.template.call_notation.open

    assert opened(facts, "{{ messages[0].content }}") == NOTATIONS["llama"]("").open
    assert opened(facts, "<tool_call>{{ messages[0].content }}") == ("<tool_call>",)
    settled = await load_info(engine, prove_here, None, NotationFamilies("deepseek"))
    assert opened(settled, "<tool_call>{{ messages }}") == NOTATIONS["deepseek"]("").open
    raw = await load_info(ScriptedTokenEngine(info=scripted_info(chat_template=None)), prove_here, None)
    assert opened(raw, "{{ messages }}") == ("<tool_call>",)
    assert with_template(raw, build_conversation("Q"), TemplateHelper(here), LOCAL_ANONYMOUS) is raw
