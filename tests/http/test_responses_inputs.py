"""Inputs of the Responses API over the wire: files, and conversations that are longer than the context."""

import base64
from typing import Any

import pytest

from antiphon.domain.identity import LOCAL_ANONYMOUS
from antiphon.domain.messages import MediaContent, MediaKind, Message, Role
from antiphon.domain.request import Conversation
from antiphon.domain.values import replace
from antiphon.errors import InvalidValue
from antiphon.pipeline.documents import LARGE, DocumentTexts
from antiphon_testing import Script, scripted_info
from antiphon_testing.scripted_engine import FakeClock
from tests.support.calling_engine import CallingEngine
from tests.support.http_server import Served, serving_tokens

CONTEXT = 2048
CALL = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
RESULT = {"type": "function_call_output", "call_id": "c1"}
LOOK = {"type": "function", "name": "look", "parameters": {"type": "object"}}


class Reader:
    """Reads a document whose bytes begin as those of a PDF do."""

    count = 0

    async def __call__(self, data: bytes, media_type: str) -> str:
        self.count += 1
        if not data.startswith(b"%PDF-1.7"):
            raise InvalidValue("the document is damaged")
        return "Page one."


def make_engine() -> CallingEngine:
    return CallingEngine(Script("Yes"), info=scripted_info(CONTEXT))


def attach(data: bytes, media_type: str | None = "application/pdf", **fields: Any) -> dict[str, Any]:
    text = base64.b64encode(data).decode()
    file_data = text if media_type is None else f"data:{media_type};base64,{text}"
    return {"type": "input_file", "file_data": file_data} | fields


def say(text: str) -> dict[str, Any]:
    return {"type": "input_text", "text": text}


async def ask(served: Served, *items: Any, **fields: Any) -> Any:
    return await served.ask(
        "/v1/responses", {"model": "m", "input": [*items], "max_output_tokens": 8} | fields
    )


# --- files --------------------------------------------------------------------------------------------------


async def test_a_pdf_is_text_for_a_model_that_takes_no_documents():
    engine, reader = make_engine(), Reader()
    parts = [say("A"), attach(b"%PDF-1.7", filename="book.pdf"), say("B")]
    bare = [say("A"), attach(b"%PDF-1.7", None, filename="book.pdf"), say("B")]
    async with serving_tokens(DocumentTexts(reader), m=engine) as served:
        for item in (
            {"role": "user", "content": parts},
            {"role": "user", "content": bare},
            {"role": "user", "content": [parts[1]]},
        ):
            assert (await ask(served, item)).status == 200
        turn = [{"role": "user", "content": "Look."}, CALL, RESULT | {"output": parts}]
        assert (await ask(served, *turn, tools=[LOOK], truncation="auto")).status == 200
    prompts = engine.list_prompts()
    assert "A\n\n[book.pdf]\n\nPage one.\n\nB" in prompts[0] and prompts[1] == prompts[0]
    assert "[book.pdf]\n\nPage one." in prompts[2] and "A\n\n[book.pdf]\n\nPage one.\n\nB" in prompts[3]
    assert reader.count == 1


async def test_another_project_does_not_learn_that_a_document_was_read():
    """A kept text would make the second project's answer faster."""
    reader = Reader()
    texts, clock = DocumentTexts(reader), FakeClock()
    small, large = b"%PDF-1.7", b"%PDF-1.7" + bytes(LARGE)
    parts = tuple(
        MediaContent(MediaKind.DOCUMENT, "application/pdf", base64.b64encode(data).decode())
        for data in (small, large)
    )
    conversation = Conversation((Message(Role.USER, "", content=parts),))
    for project, count in (("a", 2), ("a", 2), ("b", 4)):
        actor = replace(LOCAL_ANONYMOUS, project=project)
        written = await texts.write_into_conversation(conversation, actor, clock)
        assert written.messages[0].text == "Page one.\n\nPage one."
        assert reader.count == count


async def test_a_text_file_is_its_text():
    engine = make_engine()
    note = attach("Grüße".encode(), "text/markdown", filename="note.md")
    async with serving_tokens(m=engine) as served:
        for content in (
            [say("A"), note, say("B")],
            [attach(b"One", None), attach(b"{}", "application/json")],
        ):
            reply = await ask(served, {"role": "user", "content": content})
            assert reply.status == 200, reply.body
    first, second = engine.list_prompts()
    assert "A\n\n[note.md]\n\nGrüße\n\nB" in first and "One\n\n{}" in second


@pytest.mark.parametrize(
    ("part", "param", "text"),
    [
        ({"type": "input_file", "file_id": "file-1"}, "file_id", "stores and fetches no files"),
        ({"type": "input_file", "file_url": "https://a.example/b.pdf"}, "file_url", "send file_data"),
        ({"type": "input_file", "filename": "a.pdf"}, "file_data", "is missing"),
        (attach(b"PK", "application/zip"), "file_data", "must be a PDF or a text; got application/zip"),
        (attach(b"\xff\xfe"), "file_data", "the document is damaged"),
        (attach(b"\xff\xfe", "text/plain"), "file_data", "in UTF-8"),
        ({"type": "input_file", "file_data": "no base64"}, "file_data", "must contain base64"),
        (
            {"type": "input_file", "file_data": "data:application/pdf,AAAA"},
            "file_data",
            "data:TYPE;base64,DATA",
        ),
    ],
)
async def test_a_file_that_cannot_be_read_is_refused_by_name(part: Any, param: str, text: str):
    async with serving_tokens(DocumentTexts(Reader()), m=make_engine()) as served:
        reply = await ask(served, {"role": "user", "content": [part]})
    assert (reply.status, reply.error["param"]) == (400, f"input[0].content[0].{param}")
    assert text in reply.error["message"]


# --- conversations that are too long ------------------------------------------------------------------------

LONG: list[Any] = [
    {"role": "user", "content": "first " + "w" * (CONTEXT // 3)},
    CALL,
    RESULT | {"output": "w" * (CONTEXT // 3)},
    {"role": "user", "content": "last " + "w" * (CONTEXT // 3)},
]


async def test_automatic_truncation_drops_the_oldest_turns():
    engine = make_engine()
    async with serving_tokens(m=engine) as served:
        for truncation in (None, "disabled"):
            reply = await ask(served, *LONG, truncation=truncation, tools=[LOOK])
            assert (reply.status, reply.error["code"]) == (400, "context_length_exceeded")
        for stream in (False, True):
            reply = await ask(
                served, *LONG, truncation="auto", tools=[LOOK], instructions="Be brief.", stream=stream
            )
            assert reply.status == 200, reply.body
            assert reply.headers["x-antiphon-memory"] == "kept=2, dropped=3, summarised=0"
            assert "truncation" not in reply.headers.get("x-antiphon-ignored", "")
    for prompt in engine.list_prompts():
        assert "Be brief." in prompt and "last www" in prompt and "first" not in prompt


async def test_a_stored_conversation_keeps_what_was_dropped():
    engine = make_engine()
    async with serving_tokens(m=engine) as served:
        first = (await ask(served, *LONG, truncation="auto", tools=[LOOK])).json()
        assert first["truncation"] == "auto"
        stored = await served.ask(f"/v1/responses/{first['id']}/input_items?order=asc", method="GET")
        assert [item.get("role") or item["type"] for item in stored.json()["data"]] == [
            "user", "function_call", "function_call_output", "user",
        ]  # fmt: skip
        more = {"role": "user", "content": "more"}
        fields = {"previous_response_id": first["id"], "tools": [LOOK]}
        refused = await ask(served, more, **fields)
        assert (refused.status, refused.error["code"]) == (400, "context_length_exceeded")
        assert (await ask(served, more, truncation="auto", **fields)).status == 200


async def test_a_last_turn_that_does_not_fit_is_refused():
    async with serving_tokens(m=make_engine()) as served:
        reply = await ask(
            served, *LONG, {"role": "user", "content": "w" * CONTEXT}, truncation="auto", tools=[LOOK]
        )
    assert (reply.status, reply.error["code"]) == (400, "context_length_exceeded")


async def test_an_effort_that_the_model_lacks_is_left_out_while_turns_are_counted():
    async with serving_tokens(m=make_engine()) as served:
        reply = await ask(served, *LONG, truncation="auto", tools=[LOOK], reasoning={"effort": "low"})
    assert reply.status == 200, reply.body
    assert "reasoning.effort" in reply.headers["x-antiphon-ignored"]
