"""What callers add to a vendor's request: allowed names are sent, and others are refused by name."""

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec
import pytest

from antiphon.domain.collect import collect
from antiphon.domain.context import Context
from antiphon.domain.messages import Message, Role
from antiphon.domain.request import Conversation, GenerationRequest, Output, Reasoning, VendorOptions
from antiphon.engines.registry import Model, ModelRegistry, ModelRoute
from antiphon.engines.vendors.anthropic.dialect import AnthropicUpstream
from antiphon.engines.vendors.base import NO_ATTRIBUTES, UpstreamCall, UpstreamDialect, VendorModel
from antiphon.engines.vendors.engine import VendorEngine
from antiphon.engines.vendors.gemini.dialect import GeminiUpstream
from antiphon.engines.vendors.openai.dialect import OpenAIUpstream
from antiphon.engines.vendors.profiles import VendorProfile, build_profile
from antiphon.engines.vendors.provider import Provider, ProviderOptions
from antiphon.errors import UnsupportedParameter
from antiphon.pipeline.run import Pipeline
from antiphon.telemetry.metrics import Metrics
from tests.support.vendors.scripted_upstream import ScriptedUpstream, serve_upstream

UPSTREAMS = [OpenAIUpstream(), AnthropicUpstream(), GeminiUpstream()]
TALK = Conversation((Message(Role.USER, "Hi"),))
OPEN = VendorModel("m", "p", extra_fields=frozenset({"reasoning"}), extra_headers=frozenset({"x-trace"}))


def ask(
    params: Mapping[str, object] = {}, headers: Mapping[str, str] = {}, talk: Conversation = TALK
) -> GenerationRequest:
    vendor_options = VendorOptions(extra_params=params, extra_headers=headers)
    return GenerationRequest("m", (talk,), output=Output(max_tokens=9), vendor_options=vendor_options)


def encode(upstream: UpstreamDialect, request: GenerationRequest, model: VendorModel = OPEN) -> UpstreamCall:
    return upstream.encode(request, model, NO_ATTRIBUTES)


def refuse(upstream: UpstreamDialect, request: GenerationRequest, model: VendorModel = OPEN) -> str:
    with pytest.raises(UnsupportedParameter) as refused:
        encode(upstream, request, model)
    assert refused.value.param is not None
    assert refused.value.param in refused.value.message
    return refused.value.param


@pytest.mark.parametrize("upstream", UPSTREAMS, ids=lambda each: type(each).__name__)
class TestEveryWireFormat:
    def test_allowed_names_are_sent(self, upstream: UpstreamDialect) -> None:
        call = encode(upstream, ask({"reasoning": {"max": 7}}, {"x-trace": "1"}))
        plain = msgspec.json.decode(encode(upstream, ask()).body)
        assert msgspec.json.decode(call.body) == plain | {"reasoning": {"max": 7}}
        assert call.headers == (("x-trace", "1"),)
        assert call.ignored == ()

    def test_other_names_are_refused(self, upstream: UpstreamDialect) -> None:
        assert refuse(upstream, ask({"reasoning": 1, "store": 1})) == "inference_extra_params.store"
        assert refuse(upstream, ask({}, {"x-other": "a"})) == "inference_extra_headers.x-other"
        shut = VendorModel("m", "p")
        assert refuse(upstream, ask({"reasoning": 1}), shut) == "inference_extra_params.reasoning"
        assert refuse(upstream, ask({}, {"x-trace": "a"}), shut) == "inference_extra_headers.x-trace"

    def test_what_the_request_sets_is_not_overwritten(self, upstream: UpstreamDialect) -> None:
        name = next(iter(msgspec.json.decode(encode(upstream, ask()).body)))
        model = VendorModel("m", "p", extra_fields=frozenset({name}))
        assert refuse(upstream, ask({name: "x"}), model) == f"inference_extra_params.{name}"

    def test_objects_are_merged_without_overwriting(self, upstream: UpstreamDialect) -> None:
        preset = VendorModel("m", "p", body={"route": {"all": True}}, extra_fields=frozenset({"route"}))
        body = msgspec.json.decode(encode(upstream, ask({"route": {"order": ["a"]}}), preset).body)
        assert body["route"] == {"all": True, "order": ["a"]}
        assert preset.body == {"route": {"all": True}}
        assert refuse(upstream, ask({"route": {"all": False}}), preset) == "inference_extra_params.route.all"
        assert refuse(upstream, ask({"route": 1}), preset) == "inference_extra_params.route"


def test_a_renamed_parameter_is_not_overwritten():
    reasons = Conversation(TALK.messages, reasoning=Reasoning(effort="low"))
    model = VendorModel(
        "m", "p", renames={"reasoning_effort": "reasoning"}, extra_fields=frozenset({"reasoning"})
    )
    assert refuse(OpenAIUpstream(), ask({"reasoning": "high"}, talk=reasons), model)


# --- on the wire --------------------------------------------------------------------------------------------


@pytest.fixture
def upstream() -> Iterator[ScriptedUpstream]:
    with serve_upstream() as upstream:
        yield upstream


@asynccontextmanager
async def serve_routes(upstream: ScriptedUpstream, *models: VendorModel) -> AsyncIterator[Pipeline]:
    """A pipeline with a route to each model of the vendor, in their order."""
    shown = build_profile(VendorProfile(), "first", "openai", frozenset())
    async with AsyncExitStack() as stack:
        routes = []
        for order, model in enumerate(models, 1):
            options = ProviderOptions(
                model.provider, upstream.url, ("Authorization", "Bearer "), allows_private=True
            )
            provider = Provider(options, OpenAIUpstream(), lambda: "a-key")
            stack.push_async_callback(provider.aclose)
            name = f"{model.provider}/{model.name}"
            routes.append(ModelRoute(VendorEngine(provider, model, shown), name=name, order=order))
        yield Pipeline(ModelRegistry((Model("m", tuple(routes), 1),)), Metrics(), 5.0)


async def run(pipeline: Pipeline, request: GenerationRequest) -> list[tuple[str, str | None]]:
    """Sends a request, and returns its tries."""
    context = Context("r")
    async with pipeline.run(request, context) as events:
        await collect(events)
    return [(each.route, each.error) for each in context.progress.tries]


def open_model(name: str, provider: str) -> VendorModel:
    return VendorModel(name, provider, extra_fields=OPEN.extra_fields, extra_headers=OPEN.extra_headers)


async def test_each_attempt_has_what_the_caller_added(upstream: ScriptedUpstream):
    async with serve_routes(upstream, open_model("fake-503", "a"), open_model("fake", "b")) as pipeline:
        tries = await run(pipeline, ask({"reasoning": 1}, {"x-trace": "t"}))
    assert tries == [("a/fake-503", "provider_unavailable"), ("b/fake", None)]
    assert [each.body["reasoning"] for each in upstream.requests] == [1, 1]
    assert [each.headers["x-trace"] for each in upstream.requests] == ["t", "t"]
    assert {each.headers["authorization"] for each in upstream.requests} == {"Bearer a-key"}


@pytest.mark.parametrize("request_", [ask({"reasoning": 1}), ask({}, {"x-trace": "t"})])
async def test_a_route_that_allows_a_name_is_found(upstream: ScriptedUpstream, request_: GenerationRequest):
    async with serve_routes(upstream, VendorModel("fake", "shut"), open_model("fake", "b")) as pipeline:
        tries = await run(pipeline, request_)
    assert tries == [("shut/fake", "unsupported_parameter"), ("b/fake", None)]
    assert len(upstream.requests) == 1


@pytest.mark.parametrize("name", ["authorization", "x-api-key", "host", "cookie", "x-other"])
async def test_a_forbidden_header_never_reaches_the_vendor(upstream: ScriptedUpstream, name: str):
    async with serve_routes(upstream, open_model("fake", "a"), open_model("fake", "b")) as pipeline:
        with pytest.raises(UnsupportedParameter, match=f"inference_extra_headers.{name}") as refused:
            await run(pipeline, ask({}, {"x-trace": "t", name: "hidden"}))
    assert upstream.requests == []
    assert "hidden" not in refused.value.message
