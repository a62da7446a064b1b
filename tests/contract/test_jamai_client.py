"""jamaibase, unchanged, against JamAI Base's dialect of a server with keys and cantor. It checks the type of
every answer by itself. Every parameter of the page that it can send."""

from contextlib import closing
from typing import Any

import httpx2
import pytest

from antiphon.dialects.jamai.page import PAGE as JAMAI
from antiphon.domain.values import replace
from tests.contract.jamai.caller import HELLO, SDK, Base, join_chunks, read_error
from tests.e2e.furnished import Place, bearer
from tests.e2e.wire import Wire
from tests.support.docs import ROOT, list_code_blocks
from tests.support.knowledge_tables import SEA

CITY = {"city": {"type": "string", "description": "Where"}, "unit": {}}
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a city.",
        "parameters": {"type": "object", "properties": CITY, "required": ["city"]},
    },
}
BERLIN: Any = [{"role": "user", "content": "What is the weather in Berlin?"}]
TOLD: Any = {"messages": BERLIN, "tools": [WEATHER], "max_tokens": 60}
SHORT: Any = {"max_tokens": 12}

pytestmark = pytest.mark.timeout(480)
"""The first of them starts a server, and the client's interpreter."""


@pytest.fixture
def base(place: Place) -> Base:
    return Base(place.server.url, place.key)


# --- chats ---


def test_the_pages_python_gets_an_answer(place: Place) -> None:
    (code,) = list_code_blocks(ROOT / "docs" / "jamai.md", "python")
    code = code.replace("http://127.0.0.1:8000", place.server.url).replace(
        'token="none"', f'token="{place.key}"'
    )
    options = {"api_base": place.server.url, "token": place.key}
    (result,) = SDK.run({"options": options, "calls": [{"call": "print_code", "with": {"code": code}}]})
    assert "cantor" in result["answer"]["printed"]


def test_an_answer_is_the_same_whole_streamed_and_later(base: Base) -> None:
    whole, parts = base.chat(SHORT, SHORT | {"stream": True})
    later, later_parts = base.chat(SHORT, SHORT | {"stream": True}, later=True)
    text = whole["answer"]["choices"][0]["message"]["content"]
    assert text == later["answer"]["choices"][0]["message"]["content"] != ""
    for chunks in (parts["chunks"], later_parts["chunks"]):
        assert join_chunks(chunks) == text and chunks[-1]["choices"] == []
        assert chunks[-1]["usage"]["total_tokens"] == whole["answer"]["usage"]["total_tokens"] > 12
        assert chunks[-2]["choices"][0]["finish_reason"] == "length"


def test_no_model_is_a_suitable_one(base: Base) -> None:
    chosen, bare, full = base.answers(
        *(SHORT | {"model": name} for name in ("", "cantor", "antiphon/cantor"))
    )
    assert [each["model"] for each in (chosen, bare, full)] == [
        "antiphon/cantor",
        "cantor",
        "antiphon/cantor",
    ]
    assert len({each["choices"][0]["message"]["content"] for each in (chosen, bare, full)}) == 1


@pytest.mark.parametrize("later", [False, True])
def test_calls_of_tools_are_read_whole_and_streamed(base: Base, later: bool) -> None:
    forced = TOLD | {"tool_choice": {"type": "function", "function": {"name": "get_weather"}}}
    whole, parts = base.chat(forced, forced | {"stream": True}, later=later)
    (call,) = whole["answer"]["choices"][0]["message"]["tool_calls"]
    deltas = [each["delta"].get("tool_calls") or [] for chunk in parts["chunks"] for each in chunk["choices"]]
    pieces = [piece for delta in deltas for piece in delta]
    assert call["function"]["name"] == pieces[0]["function"]["name"] == "get_weather"
    assert [piece["id"] != "" for piece in pieces] == [True] + [False] * (len(pieces) - 1)
    assert "".join(piece["function"]["arguments"] for piece in pieces) == call["function"]["arguments"]


def test_tokens_of_users_and_service_keys_are_taken(base: Base, place: Place) -> None:
    for made in (
        replace(base, key=place.tokens[0]),
        replace(base, key=place.tokens[0], user=place.users[0]),
        replace(base, user=place.users[0]),
        replace(base, project=""),
    ):
        assert made.texts(SHORT)[0]
    # the client's own default project means the key's own
    assert replace(base, key=place.recorded).texts(SHORT)[0]


def test_leaving_a_stream_leaves_nothing_running(base: Base, place: Place) -> None:
    for later in (False, True):
        (result,) = base.chat({"stream": True, "max_tokens": 400}, later=later, leave_after=2)
        assert len(result["chunks"]) == 2
    place.settle()


# --- parameters of the page ---

TAKEN: Any = {
    "model": "cantor",
    "messages": [{"role": "system", "content": "Be short."}, *HELLO],
    "tools": [WEATHER],
    "temperature": 2,
    "top_p": 0.001,
    "stream": False,
    "max_tokens": 1_000_000,
    "stop": ["§", "¶"],
    "presence_penalty": 2,
    "frequency_penalty": -2,
    "logit_bias": {"300": 1},
    "id": "chat-7",
    "max_completion_tokens": 2,
    "n": 2,
    "user": "ada",
}
"""A value of each parameter that this server takes alone."""

TOGETHER: Any = {"tool_choice": {"tools": [WEATHER], "tool_choice": "required"}}
FOUND: Any = {"rag_params": {"table_id": "sea", "search_query": "the red boat", "k": 1}}

RANGES: Any = [
    ("temperature", 2.1), ("top_p", 1.1), ("n", 0), ("n", 129), ("frequency_penalty", 2.1),
    ("presence_penalty", -2.1), ("stop", ["a", "b", "c", "d", "e"]), ("logit_bias", {"300": 101}),
    ("logit_bias", {"one": 1}), ("tool_choice", "required"),
]  # fmt: skip
"""What the client sends and the server refuses."""


def test_every_parameter_of_the_page_is_taken_or_refused(base: Base) -> None:
    assert {row.name for row in JAMAI.rows} == TAKEN.keys() | TOGETHER.keys() | FOUND.keys()
    assert len(JAMAI.rows) + len(JAMAI.headers) == 20
    bodies = [*({name: value} for name, value in TAKEN.items()), *TOGETHER.values()]
    few = [{"max_tokens": 3} | body for body in bodies]
    for result, body in zip(base.chat(*few), bodies, strict=True):
        assert "answer" in result, (body, result)


def test_an_answer_from_a_table_has_references(base: Base) -> None:
    for later in (False, True):
        whole, streamed = base.chat(SHORT | FOUND, SHORT | FOUND | {"stream": True}, later=later)
        references = whole["answer"]["references"]
        (chunk,) = references["chunks"]
        assert (chunk["text"], chunk["page"], references["search_query"]) == (SEA[0], 1, "the red boat")
        first, *chunks = streamed["chunks"]
        assert first["object"] == "chat.references" and first["chunks"] == references["chunks"]
        assert join_chunks(chunks) == whole["answer"]["choices"][0]["message"]["content"]


def test_a_table_that_is_not_there_is_named(base: Base) -> None:
    (result,) = base.chat({"rag_params": {"table_id": "papers"}})
    kind, sentence = read_error(result)
    assert kind == "ResourceNotFoundError" and "rag_params.table_id" in sentence


def test_what_the_server_does_not_allow_is_refused_by_its_name(base: Base) -> None:
    results = base.chat(*({name: value} for name, value in RANGES))
    for (name, _), result in zip(RANGES, results, strict=True):
        kind, sentence = read_error(result)
        assert kind == "BadInputError" and f"body.{name}" in sentence, result


def test_a_stop_text_a_bias_and_choices_act(base: Base) -> None:
    whole, stopped, biased = base.texts(
        SHORT, SHORT | {"stop": ["demo", "m "]}, SHORT | {"logit_bias": {"300": 100}}
    )
    assert whole.startswith(stopped) and len(stopped) < len(whole) and biased != whole
    (many,) = base.answers({"n": 24, "temperature": 2, "top_p": 1, "max_tokens": 24})
    assert [choice["index"] for choice in many["choices"]] == list(range(24))
    assert len({choice["message"]["content"] for choice in many["choices"]}) > 1


def test_a_limit_that_does_not_fit_is_lowered(base: Base) -> None:
    few, many = base.answers({"max_tokens": 4}, {"max_tokens": 2_000_000_000})
    assert few["usage"]["completion_tokens"] == 4
    assert many["choices"][0]["finish_reason"] == "stop"
    (long,) = base.chat({"messages": [{"role": "user", "content": "word " * 5000}]})
    assert read_error(long)[0] == "BadInputError" and "maximum context length" in read_error(long)[1]


def test_what_is_ignored_is_named(place: Place) -> None:
    with place.server.client(headers={"authorization": f"Bearer {place.key}"}) as client:
        fields = {"reasoning_effort": "high", "reasoning_summary": "detailed", "max_tokens": 9}
        reply = client.post(
            "/jamai/api/v1/chat/completions",
            json={"messages": HELLO, "max_completion_tokens": 2} | fields,
            headers={"x-request-id": "0192f5a0-7000-7000-8000-000000000000"},
        )
    assert reply.status_code == 200, reply.text
    assert reply.headers["x-request-id"] == "0192f5a0-7000-7000-8000-000000000000"
    assert set(reply.headers["x-antiphon-ignored"].split(", ")) == fields.keys()


# --- errors ---


def test_each_status_is_the_class_that_the_client_has_for_it(base: Base, place: Place) -> None:
    unknown, nobody = base.chat({"model": "antiphon/none"}, {"model": "cantor", "stream": True, "n": 0})
    (stranger,) = replace(base, key="wrong").chat(SHORT)
    (elsewhere,) = replace(base, project="proj_none").chat(SHORT)
    (confined,) = replace(base, key=place.confined).chat(SHORT)
    classes = [read_error(each)[0] for each in (unknown, confined, nobody, stranger, elsewhere)]
    assert classes == [
        "ResourceNotFoundError",
        "ResourceNotFoundError",
        "BadInputError",
        "AuthorizationError",
        "AuthorizationError",
    ]
    for each in (unknown, nobody, stranger, elsewhere, confined):
        assert read_error(each)[1].startswith("Request ") and " failed. " in read_error(each)[1]


def test_limits_are_told_in_numbers_and_budgets_are_credits(base: Base, place: Place) -> None:
    limited = replace(base, key=place.limited).chat(*[SHORT] * 3)
    spent = replace(base, key=place.spent).chat(*[SHORT] * 3)
    assert read_error(limited[-1])[0] == "RateLimitExceedError"
    numbers = limited[-1]["error"]["numbers"]
    assert (numbers["limit"], numbers["remaining"], numbers["used"]) == (2, 0, 2)
    assert numbers["reset_at"] > 1_700_000_000 and numbers["retry_after"] >= 1
    assert read_error(spent[-1])[0] == "ForbiddenError"


def test_what_is_missing_is_said_to_the_client(base: Base) -> None:
    found = base.call(
        ("table.list_tables", {"table_type": "action"}),
        ("table.list_tables", {"table_type": "chat"}),
        ("organizations.list_organizations", {}),
        ("conversations.list_conversations", {}),
        ("users.list_users", {}),
    )
    for result in found:
        assert read_error(result)[0] == "JamaiException"
        assert "not part of this server's JamAI Base" in read_error(result)[1]


# --- models, vectors, rankings ---


@pytest.mark.parametrize("later", [False, True])
def test_models_and_their_ids_are_listed_by_capability(base: Base, later: bool) -> None:
    every, one, vectors, ids, preferred, names = base.call(
        ("model_info", {}),
        ("model_info", {"model": "antiphon/cantor"}),
        ("model_info", {"capabilities": ["embed"]}),
        ("model_ids", {}),
        ("model_ids", {"prefer": "antiphon/reranker"}),
        ("model_names", {"capabilities": ["chat", "tool"]}),
        later=later,
    )
    cantor, encoder, reranker = (f"antiphon/{name}" for name in ("cantor", "encoder", "reranker"))
    listed = {each["id"]: each for each in every["answer"]["data"]}
    assert listed.keys() == {cantor, encoder, reranker}
    assert [listed[name]["type"] for name in (cantor, encoder, reranker)] == ["llm", "embed", "rerank"]
    assert listed[cantor]["capabilities"] == ["chat", "tool"] and listed[cantor]["context_length"] > 0
    assert [each["id"] for each in one["answer"]["data"]] == [cantor]
    assert [each["id"] for each in vectors["answer"]["data"]] == [encoder]
    assert ids["answer"] == [cantor, encoder, reranker]
    assert preferred["answer"] == [reranker, cantor, encoder] and names["answer"] == [cantor]


@pytest.mark.parametrize("later", [False, True])
def test_vectors_and_rankings_are_of_the_clients_types(base: Base, later: bool) -> None:
    text: Any = {"$type": "EmbeddingRequest", "model": "antiphon/encoder", "input": "the cat"}
    ranked: Any = {"$type": "RerankingRequest", "model": "", "query": "the book", "documents": ["a", "fire"]}
    one, packed, several, ranking, empty = base.call(
        ("generate_embeddings", {"request": text}),
        ("generate_embeddings", {"request": text | {"encoding_format": "base64", "type": "query"}}),
        ("generate_embeddings", {"request": text | {"model": "", "input": ["the cat", "a far island"]}}),
        ("rerank", {"request": ranked}),
        ("rerank", {"request": ranked | {"documents": []}}),
        later=later,
    )
    vector = one["answer"]["data"][0]["embedding"]
    assert len(vector) == 64 and isinstance(packed["answer"]["data"][0]["embedding"], str)
    assert several["answer"]["data"][0]["embedding"] == pytest.approx(vector, abs=1e-5)
    assert several["answer"]["usage"]["prompt_tokens"] > one["answer"]["usage"]["prompt_tokens"] > 0
    results = ranking["answer"]["results"]
    assert sorted(each["index"] for each in results) == [0, 1] and results[0]["object"] == "reranking"
    assert results[0]["relevance_score"] >= results[1]["relevance_score"]
    assert ranking["answer"]["usage"]["documents"] == 2
    assert ranking["answer"]["meta"]["model"] == "antiphon/reranker"
    assert read_error(empty)[0] == "BadInputError" and "documents" in read_error(empty)[1]


# --- projects and tokens ---


def test_projects_health_and_tokens(base: Base, place: Place) -> None:
    ann = replace(base, key=place.tokens[1])
    health, listed, shown, none = ann.call(
        ("health", {}),
        ("projects.list_projects", {"organization_id": "antiphon"}),
        ("projects.get_project", {"project_id": "default"}),
        ("projects.get_project", {"project_id": "proj_none"}),
    )
    assert health["answer"] == {"is_oss": True}
    assert [each["id"] for each in listed["answer"]["items"]] == ["default"] == [shown["answer"]["id"]]
    assert read_error(none)[0] == "ResourceNotFoundError"
    new: Any = {"$type": "ProjectKeyCreate", "name": "laptop", "project_id": "default"}
    (made,) = ann.call(("users.create_pat", {"body": new}), later=True)
    token = made["answer"]["id"]
    assert made["answer"]["user_id"] == place.users[1]
    assert replace(base, key=token).texts(SHORT)[0]
    later = "2099-01-01T00:00:00Z"
    changed, pats, ended, again = ann.call(
        ("users.update_pat", {"pat_id": token, "body": {"$type": "ProjectKeyUpdate", "expiry": later}}),
        ("users.list_pats", {}),
        ("users.delete_pat", {"pat_id": token}),
        ("users.delete_pat", {"pat_id": token, "missing_ok": False}),
    )
    assert changed["answer"]["expiry"] == later and changed["answer"]["name"] == "laptop"
    assert "laptop" in [each["name"] for each in pats["answer"]["items"]]
    assert ended["answer"]["ok"] and read_error(again)[0] == "ResourceNotFoundError"
    (refused,) = replace(base, key=token).chat(SHORT)
    assert read_error(refused)[0] == "AuthorizationError"
    (service,) = base.call(("users.list_pats", {}))
    assert read_error(service)[0] == "ForbiddenError"


def test_a_token_for_several_projects_needs_no_header(base: Base, place: Place) -> None:
    with closing(Wire(place.server.url)) as wire:
        user = place.admin(wire, "POST", "users", name="Eve")["id"]
        older, newer = (place.admin(wire, "POST", "projects", name=name)["id"] for name in ("older", "newer"))
        for project in (newer, older):
            place.admin(wire, "PUT", f"projects/{project}/members/{user}", role="member")
        _, token = place.made(wire, kind="access_token", user=user, project=None)
    eve = replace(base, key=token)
    new: Any = {"$type": "ProjectKeyCreate", "name": "newer", "project_id": newer}
    (made,) = eve.call(("users.create_pat", {"body": new}))
    bound = replace(base, key=made["answer"]["id"])
    for caller in (eve, bound):
        for project in ("default", ""):
            assert replace(caller, project=project).texts(SHORT)[0]
    assert replace(eve, project=newer).texts(SHORT)[0]
    (refused,) = replace(bound, project=older).chat(SHORT)
    assert read_error(refused)[0] == "AuthorizationError"

    def ask(caller: Base, **headers: str) -> Any:
        body = {"model": "cantor", "messages": HELLO, "max_tokens": 1, "stream": "stream" in headers}
        path = caller.url + "/jamai/api/v1/chat/completions"
        return httpx2.post(path, json=body, headers=bearer(caller.key) | headers, timeout=60)

    chosen = "x-antiphon-project"
    for headers in ({}, {"X-PROJECT-ID": ""}, {"X-PROJECT-ID": "default"}, {"stream": "yes"}):
        answer = ask(eve, **headers)
        assert (answer.status_code, answer.headers[chosen]) == (200, older), headers
    assert ask(eve, **{"X-PROJECT-ID": newer}).headers.get(chosen) is None
    assert ask(bound, **{"X-PROJECT-ID": "default"}).headers[chosen] == newer
    elsewhere = httpx2.get(base.url + "/v1/models", headers=bearer(token))
    assert (elsewhere.status_code, elsewhere.json()["error"]["param"]) == (400, "x-project-id")
