"""Google's own client at a test server: whether it takes our requests, and what it reads in the answers.

Standard input: {"url", "key", "calls": [[model, is_streamed, body], ...], "failures": [model, ...],
"texts": body}. Standard output: {"answers": [...], "failures": [...], "models": [...], "vectors": [...]}. A
body that is no request of the client's types ends the script with an error.
"""

import base64
import json
import sys
from typing import Any

from google import genai
from google.genai import errors, types
from pydantic import TypeAdapter

TYPES: dict[str, TypeAdapter[Any]] = {
    "contents": TypeAdapter(list[types.Content]),
    "systemInstruction": TypeAdapter(types.Content),
    "generationConfig": TypeAdapter(types.GenerationConfig),
    "tools": TypeAdapter(list[types.Tool]),
    "toolConfig": TypeAdapter(types.ToolConfig),
    "serviceTier": TypeAdapter(types.ServiceTier),
}
"""The client's type of each field of a body. They take no unknown field."""

HELLO = "[a chat] Hi."


def main() -> None:
    """Makes all calls."""
    told = json.loads(sys.stdin.read())
    once = types.HttpRetryOptions(attempts=1)
    options = types.HttpOptions(base_url=told["url"], api_version="v1beta", retry_options=once)
    client = genai.Client(api_key=told["key"], http_options=options)
    found = {
        "answers": [ask(client, *call) for call in told["calls"]],
        "failures": [fail(client, model) for model in told["failures"]],
        "models": [model.name for model in client.models.list()],
        "vectors": embed(client, told["texts"]),
    }
    sys.stdout.write(json.dumps(found))


def ask(client: genai.Client, model: str, is_streamed: bool, body: dict[str, Any]) -> dict[str, Any]:
    """The meaning of the answer to a request, as the client reads it."""
    require_typed(body)
    config = dict(body.get("generationConfig", {}))
    for name in ("systemInstruction", "tools", "toolConfig", "serviceTier"):
        config |= {name: body[name]} if name in body else {}
    asked = {
        "model": model,
        "contents": TYPES["contents"].validate_python(body["contents"]),
        "config": types.GenerateContentConfig.model_validate(config),
    }
    if is_streamed:
        return describe(list(client.models.generate_content_stream(**asked)))
    return describe([client.models.generate_content(**asked)])


def require_typed(body: dict[str, Any]) -> None:
    """Raises ValueError for a body with a field that the client's types lack, or keep otherwise."""
    for name, value in body.items():
        adapter = TYPES[name]
        known = adapter.dump_python(
            adapter.validate_python(value), mode="json", by_alias=True, exclude_none=True
        )
        if normalize(known) != normalize(value):
            raise ValueError(f"the types keep {json.dumps(known)} of {json.dumps(value)}")


def normalize(value: Any) -> Any:
    """A value with base64 in one alphabet: the client writes another one than the API."""
    if isinstance(value, dict):
        return {name: normalize(each) for name, each in value.items()}
    if isinstance(value, list):
        return [normalize(each) for each in value]
    return value.replace("+", "-").replace("/", "_") if isinstance(value, str) else value


def describe(chunks: list[types.GenerateContentResponse]) -> dict[str, Any]:
    """What an answer means."""
    candidates = [chunk.candidates[0] for chunk in chunks if chunk.candidates]
    parts = [part for each in candidates if each.content for part in each.content.parts or ()]
    usage = chunks[-1].usage_metadata
    assert usage is not None
    return {
        "text": "".join(part.text or "" for part in parts if not part.thought),
        "reasoning": "".join(part.text or "" for part in parts if part.thought),
        "signatures": [
            base64.b64encode(part.thought_signature).decode() for part in parts if part.thought_signature
        ],
        "calls": [
            [call.id, call.name, call.args or {}]
            for part in parts
            if (call := part.function_call) is not None
        ],
        "finish": candidates[-1].finish_reason,
        "scores": [
            [token.token, token.token_id, token.log_probability]
            for each in candidates
            if each.logprobs_result is not None
            for token in each.logprobs_result.chosen_candidates or ()
        ],
        "tokens": [
            usage.prompt_token_count,
            usage.cached_content_token_count,
            usage.candidates_token_count,
            usage.thoughts_token_count,
        ],
    }


def fail(client: genai.Client, model: str) -> list[Any]:
    """What a model that fails shows to the client, whole and streamed: its error, or why it ended."""
    found: list[Any] = []
    asked: dict[str, Any] = {"model": model, "contents": HELLO}
    for is_streamed in (False, True):
        try:
            chunks = (
                list(client.models.generate_content_stream(**asked))
                if is_streamed
                else [client.models.generate_content(**asked)]
            )
        except errors.APIError as error:
            found.append([error.code, error.status, error.message])
        else:
            feedback, candidates = chunks[-1].prompt_feedback, chunks[-1].candidates
            found.append(feedback.block_reason if feedback else candidates and candidates[0].finish_reason)
    return found


def embed(client: genai.Client, body: dict[str, Any]) -> list[Any]:
    """The vectors of our body's texts."""
    requests = body["requests"]
    answer = client.models.embed_content(
        model=requests[0]["model"],
        contents=[types.Content.model_validate(each["content"]) for each in requests],
        config=types.EmbedContentConfig(output_dimensionality=requests[0]["outputDimensionality"]),
    )
    return [each.values for each in answer.embeddings or ()]


if __name__ == "__main__":
    main()
