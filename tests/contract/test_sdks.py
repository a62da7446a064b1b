"""openai, LiteLLM, instructor, LangChain, LlamaIndex, pydantic-ai, the AI SDK, the Agents SDK and npm's
openai and @anthropic-ai/sdk, unchanged, each by its own means, against the product as it ships."""

import re
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.contract.clients import ROOT, SCENARIOS, Run, print_javascript, run_scenarios
from tests.support.server import Server

DOCS = ROOT / "docs"
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
WAYS = {
    "openai": {"parse"},
    "litellm": {"response_format"},
    "instructor": {"tools", "json_schema"},
    "langchain": {"json_schema", "function_calling"},
    "llama_index": {"tools", "json_schema"},
    "pydantic_ai": {"native", "tool"},
    "ai_sdk_compatible": {"output_object"},
    "ai_sdk_openai": {"output_object"},
    "ai_sdk_openai@responses": {"output_object"},
    "ai_sdk_anthropic@messages": {"output_object"},
    "langchain@responses": {"json_schema", "function_calling"},
    "pydantic_ai@responses": {"native", "tool"},
    "openai_agents@responses": {"output_type"},
    "npm_openai@responses": {"parse"},
    "langchain@messages": {"json_schema", "function_calling"},
    "pydantic_ai@messages": {"native", "tool"},
    "npm_anthropic@messages": {"parse"},
}
"""How each client asks for an answer of a form."""
OVERFLOWS = {
    "openai": "BadRequestError",
    "litellm": "ContextWindowExceededError",
    "instructor": "BadRequestError",
    "langchain": "ContextOverflowError",
    "llama_index": "BadRequestError",
    "pydantic_ai": "ModelContextWindowExceededError",
    "ai_sdk_compatible": "AI_APICallError",
    "ai_sdk_openai": "AI_APICallError",
    "ai_sdk_openai@responses": "AI_APICallError",
    "ai_sdk_anthropic@messages": "AI_APICallError",
    "langchain@responses": "ContextOverflowError",
    "pydantic_ai@responses": "ModelContextWindowExceededError",
    "openai_agents@responses": "BadRequestError",
    "npm_openai@responses": "BadRequestError",
    "langchain@messages": "ContextOverflowError",
    "pydantic_ai@messages": "ModelContextWindowExceededError",
    "npm_anthropic@messages": "BadRequestError",
}
"""What each client raises: its own error for it, where it has one."""
CLIENTS = sorted(WAYS)
WITH_TOOLS = sorted(set(WAYS) - {"instructor"})
"""instructor's second turn is another: it asks again."""
BESIDE_TOOLS = sorted(
    set(WAYS) - {"openai_agents@responses", "npm_openai@responses", "npm_anthropic@messages"}
)
"""Those that can give the second turn other fields than the first, or have no loop of their own."""
EMBEDDERS = ["ai_sdk_compatible", "ai_sdk_openai", "langchain", "litellm", "pydantic_ai"]
CODE = {
    "litellm": ("clients.md", "## LiteLLM"),
    "instructor": ("clients.md", "## instructor"),
    "pydantic_ai": ("clients.md", "## pydantic-ai"),
    "langchain": ("clients.md", "## LangChain"),
    "llama_index": ("clients.md", "## LlamaIndex"),
    "openai_agents@responses": ("agents-sdk.md", "# Agents SDK"),
}
"""The page and the heading of the code of each Python client."""
RUNS: list[Run] = [
    *(
        (client, name)
        for client in [*WITH_TOOLS, "npm_openai"]
        for name in ("talk", "call_tools", "stream_tools")
    ),
    *((client, "structure") for client in CLIENTS),
    *((client, "structure_beside_tools") for client in BESIDE_TOOLS),
    *((client, "stream_structure") for client in CLIENTS),
    *((client, "overflow") for client in CLIENTS),
    *((client, "embed") for client in EMBEDDERS),
    ("instructor", "ask_again"),
    ("npm_openai@responses", "keep"),
    *((client, "print_code") for client in CODE),
]

pytestmark = pytest.mark.timeout(700)
"""The first of them starts a server; the first of each environment runs all its scenarios."""


def read_code(page: str, heading: str, base_url: str) -> str:
    """The code of a client under a heading of a page, for this server."""
    text = "\n" + (DOCS / page).read_text("utf-8")
    section = text.partition(f"\n{heading}\n")[2].partition("\n## ")[0]
    (code,) = re.findall(r"^```(?:python|js)\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    return str(code).replace("http://127.0.0.1:8000/v1", base_url)


class Results:
    """What every scenario gave. All of an environment run when the first one of it is looked at."""

    def __init__(self, base_url: str) -> None:
        self.base_url = base_url
        self._code = {client: read_code(*place, base_url) for client, place in CODE.items()}
        self._found: dict[Run, Any] = {}

    def of(self, client: str, scenario: str) -> Any:
        """Fails with the client's own traceback where the scenario failed."""
        if (client, scenario) not in self._found:
            beside = [run for run in RUNS if SCENARIOS[run[0]] == SCENARIOS[client]]
            self._found |= run_scenarios(self.base_url, "cantor", beside, self._code)
        found = self._found[client, scenario]
        assert "result" in found, found["error"]
        return found["result"]


@pytest.fixture(scope="module")
def results(equipped: Server) -> Results:
    return Results(f"{equipped.url}/v1")


@pytest.mark.parametrize("client", [*WITH_TOOLS, "npm_openai"])
def test_a_talk_goes_on_with_the_clients_own_history(results: Results, client: str) -> None:
    first, second, *streamed = results.of(client, "talk")
    assert first and second and streamed == [first, second]


@pytest.mark.parametrize("client", [*WITH_TOOLS, "npm_openai"])
def test_a_call_and_its_result_go_back_and_are_answered(results: Results, client: str) -> None:
    found = results.of(client, "call_tools")
    assert found["cities"] == ["Berlin"] and found["text"]
    assert results.of(client, "stream_tools") == found


@pytest.mark.parametrize("client", CLIENTS)
def test_an_answer_has_the_form_that_the_client_asks_for(results: Results, client: str) -> None:
    found = results.of(client, "structure")
    assert set(found) == WAYS[client]
    for person in found.values():
        Draft202012Validator(PERSON).validate(person)


@pytest.mark.parametrize("client", BESIDE_TOOLS)
def test_a_form_beside_tools_is_calls_first_and_then_it(results: Results, client: str) -> None:
    found = results.of(client, "structure_beside_tools")
    assert found["cities"] == ([] if client == "instructor" else ["Berlin"])
    Draft202012Validator(PERSON).validate(found["person"])


@pytest.mark.parametrize("client", CLIENTS)
def test_an_answer_of_a_form_is_streamed(results: Results, client: str) -> None:
    found = results.of(client, "stream_structure")
    for streamed in [found] if "person" in found else found.values():
        assert streamed["pieces"] > 0
        Draft202012Validator(PERSON).validate(streamed["person"])


def test_instructor_sends_a_refused_answer_back(results: Results) -> None:
    found = results.of("instructor", "ask_again")
    assert {mode: each["tries"] for mode, each in found.items()} == {"tools": 2, "json_schema": 2}


@pytest.mark.parametrize("client", CLIENTS)
def test_an_overflow_is_the_clients_own_error(results: Results, client: str) -> None:
    error = results.of(client, "overflow")
    assert OVERFLOWS[client] in error["classes"] and error["status"] == 400
    if client.endswith("@messages"):  # Anthropic's errors have no code
        assert re.search(r"prompt is too long: \d+ tokens > 2047 maximum", error["text"])
    elif client != "litellm":  # its error keeps the text alone
        assert error["code"] == "context_length_exceeded"


def test_npms_openai_reads_and_deletes_a_stored_response(results: Results) -> None:
    found = results.of("npm_openai@responses", "keep")
    first, second = found["texts"]
    assert first == second != ""
    assert (found["asked"], found["missing"]) == ("Who are you?", "NotFoundError")


@pytest.mark.parametrize("client", EMBEDDERS)
def test_texts_become_vectors(results: Results, client: str) -> None:
    assert results.of(client, "embed") == [64, 64]


@pytest.mark.parametrize("client", CODE)
def test_the_pages_code_for_a_client_gets_an_answer(results: Results, client: str) -> None:
    assert len(results.of(client, "print_code").split()) >= 3


@pytest.mark.parametrize("place", [("clients.md", "## AI SDK"), ("ai-sdk.md", "# AI SDK")])
def test_the_pages_code_for_the_ai_sdk_gets_an_answer(results: Results, place: tuple[str, str]) -> None:
    assert len(print_javascript(read_code(*place, results.base_url)).split()) >= 3
