"""Optional parameters that a route's engine lacks are left out and named; others are refused."""

from typing import Any

import pytest

from antiphon.domain.context import Context
from antiphon.domain.messages import Message, Role
from antiphon.domain.request import (
    Conversation,
    GenerationRequest,
    Output,
    RawPrompt,
    Reasoning,
    ReasoningFieldNames,
    SamplingOptions,
)
from antiphon.domain.values import replace
from antiphon.engines.base import PreparedRequest
from antiphon.errors import UnsupportedParameter
from antiphon.pipeline.prepare import prepare, remove_parameter
from antiphon_testing import ScriptedEngine

REASONING_FIELD_NAMES = ReasoningFieldNames("effort", "budget")
CHAT = Conversation(
    (Message(Role.USER, "Hi"),), reasoning=Reasoning("high", 7, field_names=REASONING_FIELD_NAMES)
)
REQUEST = GenerationRequest(
    "m", (CHAT,), SamplingOptions(temperature=0.2, top_p=0.6, logit_bias=((1, 2.0),)), Output(stop=("a",))
)
NAMES = ("temperature", "top_p", "logit_bias", "stop", "effort", "budget")


def list_asked(request: GenerationRequest) -> list[str]:
    """The parameters that have a value."""
    (prompt,) = request.prompts
    assert isinstance(prompt, Conversation)
    values: dict[str, Any] = {
        "temperature": request.sampling.temperature,
        "top_p": request.sampling.top_p,
        "logit_bias": request.sampling.logit_bias,
        "stop": request.output.stop,
        "effort": prompt.reasoning.effort,
        "budget": prompt.reasoning.budget,
    }
    return [name for name, value in values.items() if value]


class Picky(ScriptedEngine):
    """Refuses the first parameter that it lacks."""

    def __init__(self, *lacks: str) -> None:
        super().__init__()
        self.lacks = lacks
        self.kept: list[GenerationRequest] = []

    async def prepare(self, request: GenerationRequest, context: Context) -> PreparedRequest:
        for name in list_asked(request):
            if name in self.lacks:
                raise UnsupportedParameter(f"{name} is not supported", param=name)
        self.kept.append(request)
        prepared = await super().prepare(request, context)
        prepared.report.ignored = ("messages[0].name",)
        return prepared


def lenient(*optional: str) -> GenerationRequest:
    return replace(REQUEST, optional=frozenset(optional))


@pytest.mark.parametrize("name", NAMES)
async def test_one_that_is_lacking_is_left_out_and_named(name: str):
    engine, context = Picky(name), Context("r")
    prepared = await prepare(engine, lenient(*NAMES), context)
    (request,) = engine.kept
    assert list_asked(request) == [each for each in NAMES if each != name]
    assert prepared.report.ignored == ("messages[0].name", name)


async def test_all_of_them_can_be_lacking():
    engine, context = Picky(*NAMES), Context("r")
    prepared = await prepare(engine, lenient(*NAMES), context)
    assert list_asked(engine.kept[0]) == [] and {*NAMES} <= {*prepared.report.ignored}


async def test_what_is_not_optional_is_refused():
    engine, context = Picky("top_p"), Context("r")
    with pytest.raises(UnsupportedParameter, match="top_p"):
        await prepare(engine, lenient("temperature"), context)
    assert engine.kept == []


async def test_what_the_engine_has_is_kept_and_not_named():
    engine, context = Picky(), Context("r")
    prepared = await prepare(engine, lenient(*NAMES), context)
    assert list_asked(engine.kept[0]) == [*NAMES] and not {*NAMES} & {*prepared.report.ignored}


async def test_an_engine_that_refuses_for_ever_is_not_asked_for_ever():
    class Stubborn(ScriptedEngine):
        async def prepare(self, request: GenerationRequest, context: Context) -> PreparedRequest:
            raise UnsupportedParameter("top_p is not supported", param="top_p")

    with pytest.raises(UnsupportedParameter):
        await prepare(Stubborn(), lenient("top_p"), Context("r"))


async def test_a_raw_prompt_has_no_reasoning_to_leave_out():
    raw = replace(lenient("effort"), prompts=(RawPrompt("Hi"),))
    assert remove_parameter(raw, "effort") == replace(raw, optional=frozenset())
    wanted = replace(CHAT, reasoning=replace(CHAT.reasoning, is_required=True))
    (prompt,) = remove_parameter(replace(lenient("effort"), prompts=(wanted,)), "effort").prompts
    assert isinstance(prompt, Conversation) and prompt.reasoning == Reasoning(
        budget=7, field_names=REASONING_FIELD_NAMES
    )
