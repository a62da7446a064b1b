"""Each event of a stream that is dropped, doubled or moved is noticed: by the checks of this project, and by
at least one unchanged client of that API. `make soak` asks all clients about all faults."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import openai
import pytest

from tests.contract.clients import NODE, Client
from tests.contract.scripted_streams import (
    DONE,
    Mutation,
    Stream,
    list_mutations,
    read_event,
    record_streams,
    replay,
)
from tests.support.message_events import check_message_events
from tests.support.response_events import check_events

pytestmark = pytest.mark.timeout(480)

Fault = tuple[str, str]
"""A fault, and the kind of the event."""

UNNOTICED: Mapping[str, Mapping[Fault, str]] = {
    "responses": {
        ("double", "response.created"): "the second is taken for the first",
        ("drop", "response.in_progress"): "it tells nothing that response.created did not tell",
        ("double", "response.in_progress"): "it tells nothing that response.created did not tell",
        ("swap", "response.in_progress > response.output_item.added message"): "as above",
        ("swap", "response.in_progress > response.output_item.added reasoning"): "as above",
        ("drop", DONE): "OpenAI sends none, so clients end with the event before",
        ("double", DONE): "clients end with the event before",
    },
    "messages": {
        ("double", "message_delta"): "its counts are totals, which the second one sets again",
        ("swap", "content_block_stop > message_delta"): "clients end a block when the message ends",
        (
            "swap",
            "content_block_delta thinking_delta > content_block_delta signature_delta",
        ): "clients set the signature whenever it comes",
    },
}
"""What no client notices, with the reason. The checks of this project do."""

ALL_CLIENTS = {
    "responses": ["npm_openai", "ai_sdk_openai"],
    "messages": ["anthropic", "npm_anthropic", "ai_sdk_anthropic"],
}
"""Those with environments of their own. openai-python is one of Responses too."""

SCRIPTS = {
    name: Client(NODE, "node/read_streams.mjs")
    for name in ("npm_openai", "ai_sdk_openai", "npm_anthropic", "ai_sdk_anthropic")
} | {"anthropic": Client("vendors/bin/python", "vendors/read_streams.py")}

TOLD = (".done", ".completed", ".incomplete", ".failed")
"""Events by which applications act: the end of an item, of its content, and of the answer."""


@pytest.fixture(scope="module")
def streams() -> dict[str, dict[str, Stream]]:
    return record_streams()


def check(api: str, stream: Stream) -> Any:
    """The deltas and the answer that the events make. Raises AssertionError if one is in a wrong place."""
    events = [read_event(event) for event in stream]
    has_end = None in events
    if has_end:
        assert events.pop() is None and None not in events
    deltas = [event["delta"] for event in events if "delta" in event]
    if api == "messages":
        return deltas, check_message_events(events)
    response = check_events(events)
    assert has_end is (response["status"] != "failed")
    return deltas, response


@pytest.mark.parametrize("api", UNNOTICED)
def test_every_fault_of_a_stream_breaks_its_order_or_its_answer(
    streams: dict[str, dict[str, Stream]], api: str
) -> None:
    answers = {name: check(api, stream) for name, stream in streams[api].items()}
    mutations = list_mutations(streams[api])
    assert len(mutations) > 190
    for mutation in mutations:
        try:
            answer = check(api, mutation.stream)
        except (AssertionError, KeyError, StopIteration, ValueError):
            continue
        assert answer != answers[mutation.answer], mutation


def read(client: openai.OpenAI, url: str) -> dict[str, Any]:
    """What an application that uses openai-python's helper shows and gets."""
    shown: dict[str, str] = defaultdict(str)
    told: list[Any] = []
    responses = client.with_options(base_url=f"{url}/v1").responses
    try:
        with responses.stream(model="m", input="Hi") as stream:
            for event in stream:
                item = getattr(event, "item_id", "")
                if event.type.endswith(".delta"):
                    shown[item] += str(event.to_dict()["delta"])
                elif event.type.endswith(TOLD):
                    told.append((event.type, shown.get(item)))
            final = stream.get_final_response().model_dump(mode="json")
        return {"shown": dict(shown), "told": told, "answer": final}
    except Exception as error:  # noqa: BLE001 - any error is what the client makes of the stream
        return {"shown": dict(shown), "told": told, "error": repr(error)}


def read_all(urls: Sequence[str]) -> list[dict[str, Any]]:
    with openai.OpenAI(base_url=urls[0], api_key="none", max_retries=0, timeout=60) as client:
        return [read(client, url) for url in urls]


def list_unnoticed(
    streams: Mapping[str, Stream], mutations: Sequence[Mutation], found: Sequence[Sequence[Any]]
) -> set[Fault]:
    """The faults that no client noticed. `found`: what each client made of the streams and the mutations."""
    names = list(streams)
    return {
        (mutation.fault, mutation.place)
        for number, mutation in enumerate(mutations, len(names))
        if all(read[number] == read[names.index(mutation.answer)] for read in found)
    }


def test_openai_python_notices_what_is_missing(streams: dict[str, dict[str, Stream]]) -> None:
    chosen = {"calls": streams["responses"]["calls"]}
    mutations = [each for each in list_mutations(chosen) if each.fault == "drop"]
    with replay([*chosen.values(), *(each.stream for each in mutations)]) as url:
        found = read_all([f"{url}/{number}" for number in range(1 + len(mutations))])
    assert {place for _, place in list_unnoticed(chosen, mutations, [found])} == {
        "response.in_progress",
        "response.content_part.added reasoning_text",  # npm's openai notices it
        DONE,
    }


@pytest.mark.soak
@pytest.mark.parametrize("api", UNNOTICED)
def test_a_client_notices_every_fault(streams: dict[str, dict[str, Stream]], api: str) -> None:
    chosen, mutations = streams[api], list_mutations(streams[api])
    numbers = range(len(chosen) + len(mutations))
    with replay([*chosen.values(), *(each.stream for each in mutations)]) as url:
        found = {
            client: SCRIPTS[client].run({"base_url": url, "runs": [(client, number) for number in numbers]})
            for client in ALL_CLIENTS[api]
        }
        if api == "responses":
            found["openai"] = read_all([f"{url}/{number}" for number in numbers])
    for client, read in found.items():
        assert len(list_unnoticed(chosen, mutations, [read])) < len(mutations) // 2, client
    assert list_unnoticed(chosen, mutations, list(found.values())) == set(UNNOTICED[api])
