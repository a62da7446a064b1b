"""What a preset takes beyond OpenAI's format reaches the server: nothing is accepted and dropped."""

import json

import pytest

from antiphon.domain.messages import CacheControl, Message, Role, Tool, Tools
from antiphon.domain.request import (
    Constraint,
    ConstraintKind,
    Conversation,
    GenerationRequest,
    Mirostat,
    Output,
    Prediction,
    Prompt,
    RawPrompt,
    Reasoning,
    RerankRequest,
    SamplingOptions,
    VendorOptions,
)
from antiphon.engines.vendors.base import NO_ATTRIBUTES, VendorModel
from antiphon.engines.vendors.openai.dialect import OpenAIUpstream
from antiphon.engines.vendors.parameters import PART_PARAMETERS, RERANK_NAMES
from antiphon.engines.vendors.profiles import read_presets
from antiphon.engines.vendors.rerank import RERANK, TOKENS_PER_DOCUMENT

MESSAGES = (Message(Role.USER, "Hi"), Message(Role.ASSISTANT, "Well"))
PLAIN = Conversation(MESSAGES)
UNSAMPLED = SamplingOptions()


def request_of(
    prompt: Prompt = PLAIN, sampling: SamplingOptions = UNSAMPLED, **output: object
) -> GenerationRequest:
    return GenerationRequest("m", (prompt,), sampling, Output(**output))  # type: ignore[arg-type]


def constrain(kind: ConstraintKind, source: str) -> GenerationRequest:
    return request_of(constraint=Constraint(kind, source))


def sample(**sampling: object) -> GenerationRequest:
    return request_of(sampling=SamplingOptions(**sampling))  # type: ignore[arg-type]


TOOLS = Tools((Tool("look", cache_control=CacheControl()),))

REQUESTS = {
    "cache_control": request_of(Conversation(MESSAGES, tools=TOOLS)),
    "add_generation_prompt": request_of(Conversation(MESSAGES, generation_prompt=False)),
    "add_special_tokens": request_of(RawPrompt("Hi", add_special=False)),
    "allowed_token_ids": sample(allowed_token_ids=(1, 2)),
    "bad_words": request_of(bad_words=("no",)),
    "best_of": request_of(best_of=3),
    "cache_salt": GenerationRequest("m", (PLAIN,), cache_salt="s"),
    "chat_template": request_of(Conversation(MESSAGES, template="a")),
    "chat_template_kwargs": request_of(Conversation(MESSAGES, template_values={"a": 1})),
    "continue_final_message": request_of(Conversation(MESSAGES, generation_prompt=False, continues=True)),
    "documents": request_of(Conversation(MESSAGES, documents=({"text": "a"},))),
    "echo": request_of(echo=True),
    "guided_choice": constrain(ConstraintKind.CHOICE, '["a"]'),
    "guided_grammar": constrain(ConstraintKind.LARK, 'start: "a"'),
    "guided_regex": constrain(ConstraintKind.REGEX, "a"),
    "ignore_eos": sample(ignore_eos=True),
    "include_stop_str_in_output": request_of(include_stop=True, stop=("a",)),
    "logprobs (all)": request_of(RawPrompt("Hi"), logprobs=-1),
    "min_p": sample(min_p=0.1),
    "min_tokens": sample(min_tokens=2),
    "mirostat_target": sample(mirostat=Mirostat()),
    "prediction": GenerationRequest(
        "m", (PLAIN,), vendor_options=VendorOptions(prediction=Prediction("Once"))
    ),
    "priority": GenerationRequest("m", (PLAIN,), priority=2),
    "repetition_penalty": sample(repetition_penalty=1.2),
    "response_format": request_of(RawPrompt("Hi"), constraint=Constraint(ConstraintKind.JSON_OBJECT)),
    "skip_special_tokens": request_of(show_special=True),
    "stop_token_ids": request_of(stop_token_ids=(1,)),
    "thinking_token_budget": request_of(Conversation(MESSAGES, reasoning=Reasoning(budget=9))),
    "top_k": sample(top_k=4),
    "truncate_prompt_tokens": request_of(truncate_prompt=9),
    "typical_p": sample(typical_p=0.9),
}
SENT_AS = {
    "guided_choice": "structured_outputs",
    "guided_grammar": "structured_outputs",
    "guided_regex": "structured_outputs",
    "logprobs (all)": "logprobs",
}

RANKED = {RERANK: None, TOKENS_PER_DOCUMENT: 5}
"""The tokens of each document that a ranking asks for, by the parameter that it shows."""

TAKEN = [(name, taken) for name, preset in read_presets().items() for taken in preset.takes]


@pytest.mark.parametrize(("name", "parameter"), TAKEN)
def test_what_a_preset_takes_is_sent(name: str, parameter: str):
    preset = read_presets()[name]
    model = VendorModel("m", "p", extra_parameters=frozenset(preset.takes), renames=preset.renames)
    if parameter in RERANK_NAMES:
        sent = OpenAIUpstream().encode_rerank(RerankRequest("m", "who", ("a",), RANKED[parameter]), model)
        assert sent.path == "/rerank" and json.loads(sent.body).get(TOKENS_PER_DOCUMENT) == RANKED[parameter]
        return
    body = json.loads(OpenAIUpstream().encode(REQUESTS[parameter], model, NO_ATTRIBUTES).body)
    if parameter in PART_PARAMETERS:
        assert parameter in body["tools"][0]
        return
    field = SENT_AS.get(parameter, parameter)
    assert preset.renames.get(field, field) in body


def test_a_renamed_parameter_is_sent_by_its_new_name_only():
    mistral = read_presets()["mistral"]
    call = OpenAIUpstream().encode(
        sample(seed=7), VendorModel("m", "p", renames=mistral.renames), NO_ATTRIBUTES
    )
    body = json.loads(call.body)
    assert body["random_seed"] == 7 and "seed" not in body
