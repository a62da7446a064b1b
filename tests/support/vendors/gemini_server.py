"""A vendor with the formats and the request checks of the Gemini API.

The replies are those of `conversations`. Some names of models make the vendor differ:

- `error-STATUS` answers with an error of that status.
- `break-STATUS` sends one after the first part of a stream.
- `cut` ends its stream before the finish. `finish-REASON` ends with that reason.
- `blocked` refuses each prompt.
- `idless` gives no ids to calls.
"""

import base64
import hashlib
import json
from collections.abc import Iterator
from typing import Any

from antiphon.domain.events import FinishReason
from tests.support.vendors.conversations import ModelReply, find_reply
from tests.support.vendors.vendor_http import VendorCall, VendorReply

KEY = "AIza-of-these-tests-only"

STATUSES = {
    "INVALID_ARGUMENT": 400,
    "FAILED_PRECONDITION": 400,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "RESOURCE_EXHAUSTED": 429,
    "INTERNAL": 500,
    "UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": 504,
}

FINISHES = {
    FinishReason.STOP: "STOP",
    FinishReason.TOOL_CALLS: "STOP",
    FinishReason.LENGTH: "MAX_TOKENS",
    FinishReason.CONTENT_FILTER: "SAFETY",
}

USAGE = {
    "promptTokenCount": 125,
    "cachedContentTokenCount": 100,
    "candidatesTokenCount": 25,
    "thoughtsTokenCount": 15,
    "totalTokenCount": 165,
    "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 125}],
}
EARLY_USAGE = {"promptTokenCount": 125, "candidatesTokenCount": 1, "totalTokenCount": 126}

Json = dict[str, Any]

DATA = {"inlineData": {"mimeType": 0, "data": 0}, "fileData": {"fileUri": 0, "mimeType": 0}}
PART: Json = DATA | {
    "text": 0,
    "thought": 0,
    "thoughtSignature": 0,
    "mediaResolution": {"level": 0},
    "functionCall": {"id": 0, "name": 0, "args": 0},
    "functionResponse": {"id": 0, "name": 0, "response": 0, "parts": DATA},
}
CONTENT = {"role": 0, "parts": PART}
CONFIG = dict.fromkeys(
    """
    maxOutputTokens temperature topP topK seed presencePenalty frequencyPenalty stopSequences candidateCount
    responseLogprobs logprobs responseMimeType responseJsonSchema
    """.split(),
    0,
) | {"thinkingConfig": {"includeThoughts": 0, "thinkingBudget": 0, "thinkingLevel": 0}}
KNOWN: Json = {
    "contents": CONTENT,
    "systemInstruction": CONTENT,
    "generationConfig": CONFIG,
    "tools": {"functionDeclarations": {"name": 0, "description": 0, "parametersJsonSchema": 0}},
    "toolConfig": {"functionCallingConfig": {"mode": 0, "allowedFunctionNames": 0}},
    "serviceTier": 0,
}
"""The fields of a body. 0 is any value."""
KNOWN_TEXTS: Json = {"requests": {"model": 0, "content": CONTENT, "outputDimensionality": 0}}


class GeminiRefusal(Exception):
    """The API refuses the request."""

    def __init__(self, message: str, status: str = "INVALID_ARGUMENT", *details: Json) -> None:
        super().__init__(message)
        self.status = status
        self.details = details


def answer_call(call: VendorCall) -> VendorReply:
    """The vendor's answer to a request."""
    try:
        return answer_or_raise(call)
    except GeminiRefusal as refusal:
        data = json.dumps(build_failure(refusal), indent=2).encode()
        return VendorReply((data,), STATUSES[refusal.status])


def answer_or_raise(call: VendorCall) -> VendorReply:
    """The vendor's answer. Raises GeminiRefusal."""
    if call.headers.get("x-goog-api-key") != KEY:
        detail = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID"}
        raise GeminiRefusal("API key not valid. Please pass a valid API key.", "INVALID_ARGUMENT", detail)
    path, _, query = call.path.partition("?")
    if path == "/v1beta/models":
        return reply(list_models())
    require(path.startswith("/v1beta/models/"), "no such path", "NOT_FOUND")
    model, _, method = path.removeprefix("/v1beta/models/").partition(":")
    if model.startswith("error-"):
        raise build_refusal(model)
    body = json.loads(call.body)
    if method == "batchEmbedContents":
        return reply(embed(body))
    require(method in ("generateContent", "streamGenerateContent"), "no such method", "NOT_FOUND")
    require((method, query) != ("streamGenerateContent", ""), "the tests ask for server-sent events")
    body = read_known(body, KNOWN)
    require_contents(body["contents"])
    if model == "blocked":
        chunks = [{"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}, "usageMetadata": EARLY_USAGE}]
    else:
        chunks = list(iterate_chunks(model, body, is_streamed=method != "generateContent"))
    shared = {"modelVersion": model, "responseId": f"Rx-{count_answers(body)}"}
    if method == "generateContent":
        return reply(chunks[0] | shared)
    events = tuple(write_event(chunk if "error" in chunk else chunk | shared) for chunk in chunks)
    return VendorReply(events, content_type="text/event-stream")


def reply(body: Json) -> VendorReply:
    """A whole answer, which Google writes in lines."""
    return VendorReply((json.dumps(body, indent=2).encode(),), content_type="application/json; charset=UTF-8")


def write_event(chunk: Json) -> bytes:
    """A server-sent event, which Google ends with CRLF."""
    return f"data: {json.dumps(chunk)}\r\n\r\n".encode()


def require(condition: object, message: str, status: str = "INVALID_ARGUMENT") -> None:
    if not condition:
        raise GeminiRefusal(message, status)


def build_refusal(model: str) -> GeminiRefusal:
    """Builds the error that the model's name selects."""
    status = model.partition("-")[2]
    if status != "RESOURCE_EXHAUSTED":
        return GeminiRefusal(f"said {status}", status)
    delay = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "17.5s"}
    return GeminiRefusal(f"said {status}", status, delay)


def build_failure(refusal: GeminiRefusal) -> Json:
    """The body of an error."""
    error: Json = {"code": STATUSES[refusal.status], "message": str(refusal), "status": refusal.status}
    return {"error": error | ({"details": list(refusal.details)} if refusal.details else {})}


def list_models() -> Json:
    """The list of models."""
    methods = {"supportedGenerationMethods": ["generateContent"], "inputTokenLimit": 1048576}
    return {"models": [{"name": f"models/gemini-{name}", "version": "1"} | methods for name in "mn"]}


def embed(body: Json) -> Json:
    """Builds the vectors of texts: the number of characters, followed by -1 in all other dimensions."""
    vectors = []
    for request in read_known(body, KNOWN_TEXTS)["requests"]:
        require(request["model"].startswith("models/"), "the model must be that of the path")
        width = request.get("outputDimensionality", 3)
        vectors.append({"values": [len(request["content"]["parts"][0]["text"]), *[-1] * (width - 1)]})
    return {"embeddings": vectors}


# --- checks of requests -------------------------------------------------------------------------------------


def read_known(value: Any, known: Any, where: str = "") -> Any:
    """Returns the value with its fields in camelCase, because Google's APIs accept snake_case too. Raises
    GeminiRefusal for an unknown field."""
    if isinstance(value, list):
        return [read_known(item, known, where) for item in value]
    if not isinstance(known, dict):
        return value
    camel_fields = {}
    for name, field_value in value.items():
        first, *rest = name.split("_")
        camel_name = first + "".join(map(str.capitalize, rest))
        require(camel_name in known, f"Invalid JSON payload received. Unknown name \"{name}\" at '{where}'")
        camel_fields[camel_name] = read_known(field_value, known[camel_name], f"{where}.{camel_name}")
    return camel_fields


def require_contents(contents: list[Json]) -> None:
    """Raises GeminiRefusal for contents that the API refuses."""
    require(contents, "contents is not specified")
    questions = [index for index, each in enumerate(contents) if is_question(each)]
    require(questions and contents[-1]["role"] == "user", "the last content must be the user's")
    expected_calls: list[Json] = []
    for index, content in enumerate(contents):
        require(content["role"] in ("user", "model"), "Please use a valid role: user, model.")
        require(content["parts"], "contents.parts must not be empty.")
        responses = [part["functionResponse"] for part in content["parts"] if "functionResponse" in part]
        pairs = [(each["id"], each["name"]) for each in responses]
        require(
            pairs == [(each["id"], each["name"]) for each in expected_calls],
            "the number of function response parts must equal that of function call parts",
        )
        expected_calls = [part["functionCall"] for part in content["parts"] if "functionCall" in part]
        require_signatures(content, is_current=index > questions[-1])


def is_question(content: Json) -> bool:
    """Whether a content is the user's own, which begins a turn."""
    return content["role"] == "user" and not any("functionResponse" in part for part in content["parts"])


def require_signatures(content: Json, is_current: bool) -> None:
    """Raises GeminiRefusal for a signature that has moved, and for an unsigned first call in the current
    turn."""
    text = ""
    calls = [part for part in content["parts"] if "functionCall" in part]
    for part in content["parts"]:
        text += part.get("text", "")
        if "thoughtSignature" in part:
            signature = base64.b64decode(
                part["thoughtSignature"], altchars=base64_alternatives(part["thoughtSignature"])
            )
            require(signature == base64.b64decode(sign(text, part)), "Corrupted thought signature.")
    signed = not calls or "thoughtSignature" in calls[0]
    require(signed or not is_current, "Function call is missing a thought_signature in functionCall parts.")


def base64_alternatives(data: str) -> bytes:
    """Returns the last two characters of the base64 alphabet that `data` uses: standard or URL-safe."""
    return b"-_" if {*data} & {*"-_"} else b"+/"


def sign(text: str, part: Json) -> str:
    """The signature of a part. `text`: all text of the answer up to the part's end."""
    call = part.get("functionCall", {})
    content = json.dumps([text, call.get("name"), call.get("args")], sort_keys=True)
    return base64.b64encode(hashlib.sha256(f"gemini {content}".encode()).digest()).decode()


# --- answers ------------------------------------------------------------------------------------------------


def count_answers(body: Json) -> int:
    """The answers in a request."""
    return sum(content["role"] == "model" for content in body["contents"])


def find_answer(body: Json) -> ModelReply:
    """The model's next reply, by the text that the user sent first."""
    texts = (part["text"] for content in body["contents"] for part in content["parts"] if "text" in part)
    return find_reply(next(texts), count_answers(body))


def build_parts(model: str, body: Json) -> tuple[list[Json], str]:
    """Builds the answer's parts and finish reason. The first call, or else the text, is signed."""
    answer, contents = find_answer(body), body["contents"]
    request_parts = [part for content in contents for part in content["parts"]]
    results = [part["functionResponse"] for part in request_parts if "functionResponse" in part]
    media = request_parts + [part for result in results for part in result.get("parts", [])]
    text = answer.fill(sum("inlineData" in each or "fileData" in each for each in media), len(results))
    parts: list[Json] = []
    thinking = body.get("generationConfig", {}).get("thinkingConfig", {})
    if answer.reasoning and thinking.get("includeThoughts"):
        parts.append({"text": answer.reasoning, "thought": True})
    if text:
        parts.append({"text": text})
    for index, (name, arguments) in enumerate(answer.calls):
        call = {"name": name, "args": dict(arguments)}
        made: Json = {
            "functionCall": call if model == "idless" else {"id": f"c{len(contents)}{index}"} | call
        }
        if not index:
            made["thoughtSignature"] = sign(text, made)
        parts.append(made)
    if not answer.calls:
        parts[-1]["thoughtSignature"] = sign(text, {})
    return parts, FINISHES[answer.end]


def iterate_chunks(model: str, body: Json, is_streamed: bool) -> Iterator[Json]:
    """The chunks of a stream, or the one of a whole answer."""
    parts, reason = build_parts(model, body)
    if model.startswith("finish-"):
        reason = model.removeprefix("finish-")
    pieces = [piece for part in parts for piece in split(part)] if is_streamed else []
    config = body.get("generationConfig", {})
    for piece in pieces:
        yield build_chunk(config, [piece]) | {"usageMetadata": EARLY_USAGE}
        if model.startswith("break-"):
            yield build_failure(build_refusal(model))
            return
    if model == "cut":
        return
    # A stream's last chunk often has an empty text.
    last = build_chunk(config, [{"text": ""}] if is_streamed else parts)
    for candidate in last["candidates"]:
        candidate["finishReason"] = reason
    yield last | {"usageMetadata": USAGE}


def build_chunk(config: Json, parts: list[Json]) -> Json:
    """A chunk with all candidates, which are equal. Of each five characters as a token it has the
    log-probabilities if they are asked for."""
    candidate: Json = {"content": {"parts": parts, "role": "model"}}
    tokens = [piece for part in parts for piece in cut(part.get("text", ""))]
    if config.get("responseLogprobs") and tokens:
        scores = [{"token": token, "tokenId": 7, "logProbability": -0.5} for token in tokens]
        top = [{"candidates": [score, {"token": "x", "logProbability": -2.5}]} for score in scores]
        candidate["logprobsResult"] = {"chosenCandidates": scores, "topCandidates": top}
    return {"candidates": [candidate | {"index": index} for index in range(config.get("candidateCount", 1))]}


def split(part: Json) -> Iterator[Json]:
    """A part as a stream has it: a text in pieces, and then its signature with an empty text."""
    if "text" not in part:
        yield part
        return
    kind = {name: value for name, value in part.items() if name == "thought"}
    for piece in cut(part["text"]):
        yield kind | {"text": piece}
    if "thoughtSignature" in part:
        yield kind | {"text": "", "thoughtSignature": part["thoughtSignature"]}


def cut(text: str) -> list[str]:
    """A text in pieces of five characters."""
    return [text[index : index + 5] for index in range(0, len(text), 5)]
