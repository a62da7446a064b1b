"""Values that ask for nothing: a vendor with the option is told them, and one without it is not."""

import json

import pytest

from antiphon.domain.messages import Message, Role
from antiphon.domain.request import Conversation, GenerationRequest, Output, SamplingOptions, VendorOptions
from antiphon.engines.vendors.base import NO_ATTRIBUTES, VendorModel
from antiphon.engines.vendors.gemini.encode import encode_request as encode_gemini
from antiphon.engines.vendors.openai.encode import encode_request
from antiphon.engines.vendors.profiles import VendorProfile

USUAL = SamplingOptions(temperature=1.0, top_p=1.0, top_k=0, repetition_penalty=1.0, presence_penalty=0.0)
TALK = Conversation((Message(Role.USER, "hi"),))
REQUEST = GenerationRequest(
    "m", (TALK,), USUAL, Output(include_stop=True), vendor_options=VendorOptions("medium", "auto", "k")
)


def names(model: VendorModel) -> set[str]:
    return {*json.loads(encode_request(REQUEST, model, NO_ATTRIBUTES).body)}


def test_what_the_vendor_has_is_sent():
    base = {"model", "messages", "stream", "stream_options", "temperature", "top_p", "presence_penalty"}
    vendor_options = {"verbosity", "service_tier", "prompt_cache_key"}
    assert names(VendorModel("m", "p")) == base | vendor_options
    extra = frozenset({"repetition_penalty", "top_k"})
    assert names(VendorModel("m", "p", extra_parameters=extra)) == base | vendor_options | extra


@pytest.mark.parametrize("of_profile", [False, True])
def test_what_it_lacks_is_left_out_and_its_hint_is_named(of_profile: bool):
    lacks = frozenset({"temperature", "top_p", "verbosity", "service_tier", "prompt_cache_key"})
    model = VendorModel("m", "p", refused_parameters=lacks)
    if of_profile:
        model = VendorModel("m", "p", profile=VendorProfile(refused=lacks))
    assert not names(model) & lacks
    assert encode_request(REQUEST, model, NO_ATTRIBUTES).ignored == ("prompt_cache_key",)


def test_gemini_is_told_the_probabilities_and_no_top_k_of_all():
    request = GenerationRequest("m", (TALK,), SamplingOptions(temperature=1.0, top_p=1.0, top_k=0))
    config = json.loads(encode_gemini(request, VendorModel("m", "p")).body)["generationConfig"]
    assert config == {"temperature": 1.0, "topP": 1.0}
