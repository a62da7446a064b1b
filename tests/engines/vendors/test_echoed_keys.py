"""A vendor that echoes the operator's key shows it neither to callers nor in the log."""

import asyncio
import time
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from antiphon.assembly.vendors import build_client, resolve_provider
from antiphon.domain.context import Context, EngineReport
from antiphon.domain.messages import Message, Role
from antiphon.domain.request import Conversation, GenerationRequest
from antiphon.engines.vendors.base import VendorError, VendorModel
from antiphon.engines.vendors.engine import VendorEngine
from antiphon.engines.vendors.errors import LONGEST_TEXT, SecretFilter, build_error
from antiphon.engines.vendors.profiles import VendorProfile, build_profile
from antiphon.errors import AntiphonError, ProviderError
from antiphon.settings.providers import ProviderSettings
from tests.support.vendors.hostile_vendor import list_key_forms

KEY = "plain.key.of.these.tests"
REQUEST = GenerationRequest("m", (Conversation((Message(Role.USER, "Count."),)),), is_buffered=True)
ERROR = '{"error":{"message":"odd","%s":"%s"}}'
CHOICE = '{"choices":[{"index":0,"message":{"role":"assistant","content":"Hi"},"finish_reason":"%s"}]}'


def build_answer(body: str, headers: str = "", status: int = 200) -> bytes:
    """Builds a response. `headers`: whole lines."""
    length = f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
    return f"HTTP/1.1 {status} Said\r\n{length}{headers}\r\n{body}".encode()


@asynccontextmanager
async def connect(answer: bytes, preset: str = "vllm") -> AsyncIterator[VendorEngine]:
    """A model of a vendor that answers every request with these bytes."""

    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(reply, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        settings = ProviderSettings(preset=preset, base_url=f"http://127.0.0.1:{port}/v1", key="env:KEY")
        provider = build_client(resolve_provider("first", settings, {"KEY": KEY}))
        profile = build_profile(VendorProfile(), "first", "openai", frozenset())
        try:
            yield VendorEngine(provider, VendorModel("m", "first"), profile)
        finally:
            await provider.aclose()


async def generate(engine: VendorEngine) -> EngineReport:
    """Reads an answer, and returns the engine's report."""
    context = Context("r")
    prepared = await engine.prepare(REQUEST, context)
    async with prepared.stream(context) as events:
        async for _ in events:
            pass
    return prepared.report


async def fail(answer: bytes) -> AntiphonError:
    """Returns the error of a request to a vendor with this answer."""
    async with connect(answer) as engine:
        with pytest.raises(ProviderError) as caught:
            await generate(engine)
    return caught.value


def test_a_parameter_with_a_key_is_not_named():
    for param in (f"body.{KEY}", KEY.upper(), "sk-proj-0123456789abcdef", "llm.corp.example"):
        error = build_error(
            "first", 400, VendorError("odd", param=param), {}, SecretFilter((KEY,), ("llm.corp.example",))
        )
        assert error.param is None
    named = build_error(
        "first", 400, VendorError("odd", param="messages[0].content"), {}, SecretFilter((KEY,))
    )
    assert named.param == "messages[0].content"


def test_a_host_is_hidden_in_any_case():
    error = build_error(
        "first", 400, VendorError("ask LLM.Corp.example"), {}, SecretFilter((), ("llm.corp.example",))
    )
    assert error.message.endswith(": ask ***")


def test_a_secret_that_contains_another_is_hidden_whole():
    error = build_error(
        "first", 400, VendorError("see abcdefgh-ijkl"), {}, SecretFilter(("abcdefgh", "abcdefgh-ijkl"))
    )
    assert error.message.endswith(": see ***")


SHOWN = ("the key *** is wrong", "the key ***.. is wrong")


def test_an_encoded_key_and_a_part_of_it_are_removed():
    secrets = SecretFilter((KEY,))
    for form in list_key_forms(KEY):
        assert secrets.remove(f"the key {form} is wrong") in SHOWN


def test_a_text_that_shares_a_few_characters_with_the_key_stays():
    text = f"the key begins with {KEY[:11]}, in base64 with {b64encode(KEY.encode())[:15].decode()}"
    assert SecretFilter((KEY,)).remove(text) == text


@pytest.mark.parametrize("before", ["", "a", "ab", "Bearer "])
def test_a_key_in_base64_is_found_after_any_text(before: str):
    text = b64encode(f"{before}{KEY}!".encode()).decode()
    assert SecretFilter((KEY,)).remove(f"bad {text}, sorry") == "bad ***, sorry"


def test_a_text_is_searched_once():
    """A search for each secret and each length of it would take minutes."""
    secrets, began_at = SecretFilter(("k" * 1000, "l" * 16_000)), time.process_time()
    assert len(secrets.remove("the key " * 100_000)) == LONGEST_TEXT
    assert time.process_time() - began_at < 3


@pytest.mark.parametrize(
    ("answer", "kept"),
    [
        (build_answer(ERROR % ("code", f"code {KEY}"), status=400), "400 code ***"),
        (build_answer(ERROR % ("type", f"type {KEY}"), status=500), "500 type ***"),
        (build_answer(CHOICE % f"fin {KEY}"), "fin ***"),
        (build_answer("{}", f"Bad Header {KEY}: x\r\n"), "Invalid header"),
    ],
    ids=["code", "type", "finish", "header"],
)
async def test_the_cause_for_the_log_has_no_key(answer: bytes, kept: str):
    error = await fail(answer)
    assert error.cause is not None and kept in error.cause
    assert KEY not in error.cause + error.message


async def test_the_cause_keeps_the_address_for_the_operator():
    async with connect(b"") as engine:
        pass
    with pytest.raises(ProviderError) as caught:
        await generate(engine)
    assert caught.value.cause is not None and "127.0.0.1" in caught.value.cause


REPORTS = f"x-antiphon-ignored: user, top_k, {KEY}\r\nx-antiphon-relaxed: pattern, a.{KEY}\r\n"


async def test_reports_of_another_antiphon_have_no_key():
    async with connect(build_answer(CHOICE % "stop", REPORTS), "antiphon") as engine:
        report = await generate(engine)
    assert report.ignored == ("top_k", "***") and report.relaxed == ("pattern", "a.***")


async def test_other_vendors_have_no_reports():
    async with connect(build_answer(CHOICE % "stop", REPORTS)) as engine:
        report = await generate(engine)
    assert not report.ignored and not report.relaxed
