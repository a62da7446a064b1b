"""Adapters that callers deploy, and what only Empower's dialect says."""

from typing import Any

from tests.parameters.cases_conversation import HELLO, TWO
from tests.parameters.registry import OUT, Answer, Asker, case
from tests.parameters.spots import DEPLOY, EMPOWER
from tests.support.hub_server import TOKEN

HUB = {"model_name": "ada/mood", "model_source": "HF_HUB"}
GATED = {"model_name": "ada/gated", "model_source": "HF_HUB"}
NAMED = {"name": "deployed", "base_model_name": "cantor"}


def removed(asker: Asker) -> None:
    """Takes away what a request deployed."""
    for lora in asker.client.get("/empower/api/v1/lora").json():
        if lora["active_deployment"]["creator"] is not None:
            asker.client.delete(f"/empower/api/v1/lora/{lora['name']}")


@case(DEPLOY, "model_name", NAMED, "mood.gguf", "nowhere.gguf", after=removed)
@case(DEPLOY, "model_source", NAMED, "LOCAL", "HF_HUB", after=removed)
@case(DEPLOY, "name", {}, "deployed", "cantor", after=removed)
@case(DEPLOY, "base_model_name", {}, "cantor", "nobody", after=removed)
@case(DEPLOY, "hf_revision", NAMED | HUB, OUT, "nowhere", after=removed)
def the_one_is_deployed_and_the_other_refused(done: Answer, refused: Answer) -> None:
    assert done.status == 200 and done.json["name"] == "deployed"
    assert refused.status in (400, 404) and refused.refusal


@case(DEPLOY, "hf_token", NAMED | GATED, OUT, TOKEN, after=removed)
def a_token_opens_what_is_gated(refused: Answer, done: Answer) -> None:
    assert refused.status == 400 and "hf_token" in refused.refusal
    assert done.status == 200


@case(EMPOWER, "messages", {}, "Who are you?", ["Who are you?", "Hello."])
def a_text_is_a_prompt_and_several_are_several(one: Answer, two: Answer) -> None:
    assert [len(each.choices) for each in (one, two)] == [1, 2]
    assert one.text == two.text


@case(EMPOWER, "tool_choice", TWO | {"messages": HELLO}, "auto", "any")
def any_has_to_call(auto: Answer, called: Answer) -> None:
    assert called.calls and not auto.calls


@case(EMPOWER, "include_thinking", {}, False, True)
def a_model_without_reasoning_has_none_to_show(quiet: Answer, refused: Answer) -> None:
    assert quiet.status == 200 and refused.status == 400 and "include_thinking" in refused.refusal


@case(EMPOWER, "ignore_eos", {"max_tokens": 60}, False, True)
def generation_goes_on_past_the_end(ended: Answer, full: Answer) -> None:
    made: list[Any] = [each.usage["completion_tokens"] for each in (ended, full)]
    assert made[0] < made[1] == 60
