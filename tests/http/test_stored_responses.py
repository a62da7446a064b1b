"""Stored responses over the wire: chains, references, what is shown and removed, and what is not stored."""

from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest

from antiphon.dialects.responses.state import act_at_end
from antiphon.domain.events import (
    Finished,
    FinishReason,
    Started,
    TextDelta,
    ToolCallDelta,
    ToolCallStarted,
    Usage,
)
from antiphon.domain.stored_responses import SealedReasoning
from antiphon.domain.tenancy import KeyKind
from antiphon.errors import EngineDied
from antiphon_testing import ScriptedAnswer, ScriptedEngine
from tests.support.http_server import LooseEngine, request_bytes, serving
from tests.support.keyed_server import OPERATOR, keyed
from tests.support.response_events import check_events

PATH = "/v1/responses"
HELLO = {"model": "m", "input": "Hi"}
TOOL = {"type": "function", "name": "get_weather"}
TURN = (
    Started(1),
    ToolCallStarted(0, 0, "c1", "get_weather"),
    ToolCallDelta(0, 0, "{}"),
    Finished(0, FinishReason.TOOL_CALLS),
    Usage(1, 1),
)


class Talking(LooseEngine):
    """An engine that calls a tool first, and then says what it saw."""

    def __init__(self) -> None:
        super().__init__(self._answer)
        self.seen: list[Any] = []

    async def _answer(self):
        yield Started(1)

    async def prepare(self, request, context):
        self.seen.append(request.prompts[0].messages)
        is_first = len(self.seen) == 1

        async def events():
            if is_first:
                for event in TURN:
                    yield event
                return
            yield Started(1)
            yield TextDelta(0, "rain it is")
            yield Finished(0, FinishReason.STOP)
            yield Usage(1, 1)

        self._create_events = events
        return await super().prepare(request, context)


async def test_a_chain_goes_on_behind_a_call():
    """vllm-project/vllm#43244: the stored turn had lost its call."""
    engine = Talking()
    async with serving(engine) as served:
        first = (await served.ask(PATH, HELLO | {"tools": [TOOL], "instructions": "Be kind."})).json()
        assert first["store"] is True and first["previous_response_id"] is None
        output = {"type": "function_call_output", "call_id": "c1", "output": "rain"}
        again = HELLO | {"previous_response_id": first["id"], "input": [output], "tools": [TOOL]}
        second = (await served.ask(PATH, again)).json()
        assert second["previous_response_id"] == first["id"]
        third = await served.ask(PATH, HELLO | {"previous_response_id": second["id"], "input": []})
        assert third.status == 200
    texts = [[(str(message.role), message.text) for message in messages] for messages in engine.seen]
    assert texts[1] == [("user", "Hi"), ("assistant", ""), ("tool", "rain")]
    assert texts[2] == [*texts[1], ("assistant", "rain it is")]
    assert engine.seen[1][1].tool_calls[0].id == "c1"


async def test_an_item_is_repeated_by_its_id():
    """vercel/ai#10290 and #7543: the AI SDK refers to earlier text, and got a 404."""
    engine = Talking()
    async with serving(engine) as served:
        await served.ask(PATH, HELLO)
        *events, _ = (await served.ask(PATH, HELLO | {"stream": True})).events()
        item = check_events(events)["output"][0]
        turn = [
            {"role": "user", "content": "Hi"},
            {"type": "item_reference", "id": item["id"]},
            {"role": "user", "content": "And?"},
        ]
        for reference in (turn[1], {"id": item["id"]}, {"type": None, "id": item["id"]}):
            assert (await served.ask(PATH, HELLO | {"input": [turn[0], reference, turn[2]]})).status == 200
            assert [message.text for message in engine.seen[-1]] == ["Hi", "rain it is", "And?"]
        unknown = await served.ask(PATH, HELLO | {"input": [{"type": "item_reference", "id": "msg_x"}]})
        assert (unknown.status, unknown.error["param"]) == (404, "input")
        assert unknown.error["message"] == "Item with id 'msg_x' not found."


async def test_a_response_is_shown_and_removed():
    async with serving() as served:
        made = (await served.ask(PATH, HELLO | {"metadata": {"a": "b"}})).json()
        path = f"{PATH}/{made['id']}"
        assert (await served.ask(path)).json() == made
        assert (await served.ask(f"{path}?include[]=reasoning.encrypted_content")).status == 200
        assert (await served.ask(f"{path}?stream=true")).error["param"] == "stream"
        cancelled = await served.ask(f"{path}/cancel", method="POST")
        assert (cancelled.status, cancelled.error["message"]) == (
            400,
            "Cannot cancel a synchronous response.",
        )
        removed = await served.ask(path, method="DELETE")
        assert removed.json() == {"id": made["id"], "object": "response", "deleted": True}
        for reply in (
            await served.ask(path),
            await served.ask(path, method="DELETE"),
            await served.ask(f"{path}/cancel", method="POST"),
            await served.ask(f"{path}/input_items"),
        ):
            assert reply.status == 404
        gone = await served.ask(PATH, HELLO | {"previous_response_id": made["id"]})
        assert (gone.status, gone.error["code"]) == (400, "previous_response_not_found")
        assert gone.error["param"] == "previous_response_id"


async def test_the_items_of_a_request_are_listed_in_pages():
    async with serving() as served:
        items = [
            {"role": "user", "content": "One."},
            {"type": "message", "role": "assistant", "content": "Two.", "id": "msg_two"},
            {"role": "user", "content": [{"type": "input_text", "text": "Three."}]},
        ]
        made = (await served.ask(PATH, HELLO | {"input": items})).json()
        path = f"{PATH}/{made['id']}/input_items"
        listed = (await served.ask(f"{path}?order=asc")).json()
        assert [item["content"][0]["text"] for item in listed["data"]] == ["One.", "Two.", "Three."]
        assert [item["content"][0]["type"] for item in listed["data"]] == [
            "input_text",
            "output_text",
            "input_text",
        ]
        ids = [item["id"] for item in listed["data"]]
        assert ids[1] == "msg_two" and len(set(ids)) == 3
        assert (listed["first_id"], listed["last_id"], listed["has_more"]) == (ids[0], ids[2], False)
        page = (await served.ask(f"{path}?limit=2")).json()
        assert [item["id"] for item in page["data"]] == [ids[2], ids[1]] and page["has_more"]
        rest = (await served.ask(f"{path}?limit=2&after={ids[1]}")).json()
        assert [item["id"] for item in rest["data"]] == [ids[0]] and not rest["has_more"]
        for query in ("limit=0", "limit=101", "limit=x", f"limit={'1' * 5000}", "order=up", "after=nothing"):
            assert (await served.ask(f"{path}?{query}")).status == 400


async def test_store_false_leaves_nothing():
    async with serving() as served:
        for stream in (False, True):
            reply = await served.ask(PATH, HELLO | {"store": False, "stream": stream})
            made = check_events(reply.events()[:-1]) if stream else reply.json()
            assert made["store"] is False
            assert (await served.ask(f"{PATH}/{made['id']}")).status == 404


async def test_a_streamed_response_is_stored_before_its_last_event():
    async with serving() as served, served.line() as line:
        await line.send(request_bytes(PATH, HELLO | {"stream": True}))
        sent = await line.until(b"event: response.completed")
        id_ = sent.split(b'"id":"', 1)[1].split(b'"', 1)[0].decode()
        assert (await served.ask(f"{PATH}/{id_}")).json()["status"] == "completed"


async def test_a_turn_that_breaks_is_not_stored_and_the_old_id_still_works():
    """Azure/azure-sdk-for-net#46092: a call without a result stayed in the chain for ever."""
    answers = [
        ScriptedAnswer(),
        ScriptedAnswer(error=EngineDied("the engine ended"), error_after=1),
        ScriptedAnswer(),
    ]
    turns = iter(answers)
    async with serving(ScriptedEngine(lambda request: next(turns))) as served:
        first = (await served.ask(PATH, HELLO)).json()
        again = HELLO | {"previous_response_id": first["id"]}
        broken = check_events((await served.ask(PATH, again | {"stream": True})).events())
        assert broken["status"] == "failed"
        assert (await served.ask(f"{PATH}/{broken['id']}")).status == 404
        assert (await served.ask(PATH, again)).status == 200


async def test_a_turn_whose_caller_leaves_is_not_stored():
    acted: list[str] = []

    async def act() -> None:
        acted.append("stored")

    @asynccontextmanager
    async def generate():
        async def groups():
            yield (Started(1),)
            yield (Usage(1, 1),)

        async with aclosing(groups()) as made:
            yield made

    async with act_at_end(generate(), act) as events:
        async for group in events:
            assert isinstance(group[0], Started)
            break
    assert acted == []
    async with act_at_end(generate(), act) as events:
        assert len([group async for group in events]) == 2
    assert acted == ["stored"]


@pytest.mark.parametrize("id_", ["resp_unknown", "x" * 200, "%00", "ü"])
async def test_an_unknown_response_is_not_found(id_):
    async with serving() as served:
        assert (await served.ask(f"{PATH}/{id_.replace('ü', '%C3%BC')}")).status == 404


async def test_compaction_is_a_path_that_is_not_there():
    async with serving() as served:
        for body in (HELLO, {"input": "Hi"}):
            reply = await served.ask(f"{PATH}/compact", body)
            assert (reply.status, reply.error["code"]) == (404, "route_not_found")


async def test_a_response_of_another_project_does_not_exist(tmp_path):
    async with keyed(tmp_path) as served:
        project = await served.tenants.add_project(OPERATOR, "other", "")
        first, same, other = [
            await served.token(KeyKind.SERVICE, project=id_) for id_ in ("default", "default", project.id)
        ]
        made = (await served.asked(first, PATH, HELLO)).json()
        item = {"type": "item_reference", "id": made["output"][0]["id"]}
        again = HELLO | {"previous_response_id": made["id"]}
        repeated = HELLO | {"input": [item, {"role": "user", "content": "And?"}]}
        path = f"{PATH}/{made['id']}"
        for key, is_theirs in ((same, True), (other, False)):
            seen = [
                await served.asked(key, PATH, again),
                await served.asked(key, PATH, repeated),
                await served.asked(key, path),
                await served.asked(key, f"{path}/input_items"),
                await served.asked(key, f"{path}/cancel", method="POST"),
                await served.asked(key, path, method="DELETE"),
            ]
            statuses = [reply.status for reply in seen]
            assert statuses == (
                [200, 200, 200, 200, 400, 200] if is_theirs else [400, 404, 404, 404, 404, 404]
            )
            if is_theirs:
                made = (await served.asked(first, PATH, HELLO)).json()
                again["previous_response_id"] = made["id"]
                item["id"], path = made["output"][0]["id"], f"{PATH}/{made['id']}"
        unknown = await served.asked(other, f"{PATH}/resp_unknown")
        assert seen[2].error["message"] == unknown.error["message"].replace("resp_unknown", made["id"])


async def test_small_seals_of_long_reasoning_fill_no_memory():
    """A seal is compressed: 12 KB of a body can carry 17 MiB."""
    async with serving() as served:
        sealed = served.edge.sealer.seal(SealedReasoning("a" * (1 << 20)), "default")
        reasoning = {"type": "reasoning", "summary": [], "encrypted_content": sealed}
        thought = {"type": "thinking", "thinking": "", "signature": sealed}
        question: dict[str, Any] = {"role": "user", "content": "Hi"}
        for path, field, item in ((PATH, "input", reasoning), ("/v1/messages", "messages", thought)):
            for count, status in ((1, 200), (17, 400)):
                body: dict[str, Any]
                if field == "input":
                    body = {"model": "m", "input": [*[item] * count, question]}
                else:
                    turn = {"role": "assistant", "content": [*[item] * count, {"type": "text", "text": "4"}]}
                    body = {"model": "m", "max_tokens": 9, "messages": [question, turn, question]}
                reply = await served.ask(path, body)
                assert reply.status == status
            assert f"{field}: the sealed reasoning has more than 16,777,216 bytes" in reply.error["message"]
