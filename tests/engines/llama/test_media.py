"""Pictures through the embedded engine, with random weights of four families: how a picture is computed
alone, in a batch, from the cache and after a preemption, and what llama-server says of the same files."""

import asyncio
import base64
import json
import struct
import time
import urllib.request
import weakref
import zlib
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from antiphon.domain.context import Context
from antiphon.domain.events import TextDelta, TokenScore, Usage
from antiphon.domain.media import Medium, MediumShape, build_picture, build_recording
from antiphon.domain.messages import MediaContent, MediaKind, Message, Role, TextContent
from antiphon.domain.request import Conversation, GenerationRequest, Output, Sampling, SamplingOptions
from antiphon.domain.values import replace
from antiphon.engines.base import (
    MEDIUM_CELL,
    KVLayout,
    MediumSpan,
    PromptTokens,
    RefusedMedium,
    SequenceStarted,
    Steps,
    TextPiece,
    TokenRequest,
)
from antiphon.engines.llama import LlamaTokenEngine
from antiphon.errors import ContextLengthExceeded, InvalidValue, LoadError, UnsupportedParameter
from antiphon.rendering.renderer import Renderer, RendererOptions
from benchmarks.make_media_model import (
    FAMILIES,
    HEARING,
    VISION_SHAPES,
    draw_pattern,
    write_hearing_projector,
    write_projector,
    write_text_model,
)
from tests.engines.llama.conftest import loaded
from tests.support.llama_server import serve_llama_server
from tests.support.lora_server import unproved
from tests.support.waiting import await_until

FIXTURES = Path(__file__).parents[2] / "fixtures/media"
QUESTION = ("<|user|>\nlook ", " what is it<|end|>\n<|assistant|>\n")
ROUNDING = {"exact": 0.0, "streams": 2e-3, "pool": 0.05}
"""The most that log-probabilities of a sequence differ by how its rows were batched. In a pool the
rows of all sequences are in one attention."""


@pytest.fixture(scope="session")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a text model and a projector of each family."""
    folder = tmp_path_factory.mktemp("pairs")
    for family in FAMILIES:
        write_text_model(folder / f"{family}.gguf", family)
        write_projector(folder / f"{family}-mmproj.gguf", family)
    write_text_model(folder / f"{HEARING}.gguf", HEARING)
    write_hearing_projector(folder / f"{HEARING}-mmproj.gguf")
    return folder


@asynccontextmanager
async def seeing(pairs: Path, family: str, **spec: Any) -> AsyncIterator[LlamaTokenEngine]:
    """An engine of this family that takes pictures."""
    spec = {"mmproj": str(pairs / f"{family}-mmproj.gguf"), "context_length": 2048, **spec}
    async with loaded(pairs / f"{family}.gguf", **spec) as engine:
        yield engine


def draw(seed: int, width: int = 120, height: int = 90) -> Medium:
    """A picture of random squares."""
    squares = np.random.default_rng(seed).integers(0, 255, (height // 8 + 1, width // 8 + 1, 3), np.uint8)
    return build_picture(width, height, squares.repeat(8, 0).repeat(8, 1)[:height, :width].tobytes())


async def write_prompt(engine: LlamaTokenEngine, *parts: str | Medium) -> PromptTokens:
    """The prompt of texts and pictures."""
    ids: list[int] = []
    spans: list[MediumSpan] = []
    for part in parts:
        if isinstance(part, str):
            ids += await engine.tokenize([TextPiece(part, control=True)], add_bos=not ids)
            continue
        (layout,) = await engine.lay_out([part.shape])
        spans += [replace(span, start=len(ids) + span.start, digest=part.digest) for span in layout.spans]
        ids += layout.ids
    return PromptTokens(tuple(ids), tuple(spans))


class Answer:
    """What a sequence says."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.logprobs: list[float] = []
        self.cached_tokens = 0


async def ask(
    engine: LlamaTokenEngine, prompt: PromptTokens, salt: str, length: int = 10, **more: Any
) -> Answer:
    """Runs a greedy sequence."""
    answer, sampling = Answer(), Sampling(0.0, ignore_eos=True)
    request = TokenRequest(prompt, length, sampling, logprobs=0, cache_salt=salt, **more)
    async for event in engine.generate(request):
        if isinstance(event, SequenceStarted):
            answer.cached_tokens = event.cached_tokens
        elif isinstance(event, Steps):
            answer.tokens += event.tokens
            answer.logprobs += event.logprobs
    return answer


def require_alike(one: Answer, other: Answer, tolerance: float) -> None:
    """Both answers are the same, up to rounding."""
    assert one.tokens == other.tokens
    assert np.abs(np.subtract(one.logprobs, other.logprobs)).max() <= tolerance


@pytest.mark.parametrize(
    ("family", "layout"),
    [(family, "exact") for family in FAMILIES if family != "llava"]
    + [pytest.param("llava", "exact", marks=pytest.mark.soak)]  # which computes pictures like text
    + [("gemma3", "pool"), ("qwen2vl", "pool"), ("qwen2vl", "streams")],
)
async def test_a_picture_is_computed_alike_alone_among_others_and_from_the_cache(pairs, family, layout):
    spec = {"exact": True} if layout == "exact" else {"layout": KVLayout(layout)}
    tolerance = ROUNDING[layout]
    async with seeing(pairs, family, **spec) as engine, AsyncExitStack() as holds:
        one, other = draw(1), draw(2, 200, 60)
        for medium in (one, other):
            await holds.enter_async_context(engine.hold(medium))
        first = await write_prompt(engine, QUESTION[0], one, QUESTION[1])
        second = await write_prompt(engine, QUESTION[0], other, QUESTION[1])
        both = await write_prompt(
            engine, QUESTION[0], one, QUESTION[1], "ab<|end|>\n<|user|>\n", one, other, "?"
        )
        prompts = (first, second, both)
        encoder = engine._encoder
        assert encoder is not None
        alone = [await ask(engine, prompt, f"alone {index}") for index, prompt in enumerate(prompts)]
        assert alone[0].tokens != alone[1].tokens, "the picture decides the answer"
        again = [await ask(engine, prompt, "alone 0") for prompt in (first, both, second)]
        assert again[0].cached_tokens == len(first.ids) - 1
        for found, expected in zip(again, (alone[0], alone[2], alone[1]), strict=True):
            require_alike(found, expected, tolerance)
        if layout != "exact":  # exact mode reuses whole chunks alone
            assert again[1].cached_tokens == len(first.ids)
        if layout == "pool":  # streams are not copied for a few tokens
            assert again[2].cached_tokens == first.media[0].start, "no part of another picture is taken"
        beside = await asyncio.gather(
            *(ask(engine, prompt, f"beside {index}") for index, prompt in enumerate(prompts * 3))
        )
        for index, found in enumerate(beside):
            require_alike(found, alone[index % 3], tolerance)
        siblings = await asyncio.gather(
            *(ask(engine, both, "siblings", group="g", choice=choice) for choice in range(4))
        )
        assert sorted(found.cached_tokens for found in siblings) == [0, *[len(both.ids) - 1] * 3]
        for found in siblings:
            require_alike(found, alone[2], tolerance)
        # Each salt encodes each of its pictures once, whatever happens at the same time.
        assert encoder.encode_count == 4 + 1 + 4 * 3 + 2


@pytest.mark.parametrize("family", ["gemma3", "qwen2vl"])
async def test_a_preempted_sequence_goes_on_as_if_nothing_had_happened(pairs, family):
    spec = {"sequences": 6, "cells": 165, "layout": KVLayout.POOL, "kv_type": "f32", "keep_prefixes": False}
    async with seeing(pairs, family, **spec) as engine:
        pictures = [draw(seed) for seed in range(6)]
        async with AsyncExitStack() as holds:
            for picture in pictures:
                await holds.enter_async_context(engine.hold(picture))
            prompts = [await write_prompt(engine, QUESTION[0], each, QUESTION[1]) for each in pictures]
            alone = [await ask(engine, prompt, f"salt {n}", 32) for n, prompt in enumerate(prompts)]
            beside = await asyncio.gather(
                *(ask(engine, prompt, f"salt {n}", 32) for n, prompt in enumerate(prompts))
            )
        for found, expected in zip(beside, alone, strict=True):
            require_alike(found, expected, ROUNDING["pool"])
        assert (await engine.info()).load.preemptions > 0
        encoder = engine._encoder
        assert encoder is not None and encoder.encode_count == len(pictures), "a pause encodes nothing"


def write_png(picture: Medium) -> bytes:
    """The picture as a file."""
    width, height, row = picture.shape.width, picture.shape.height, 3 * picture.shape.width
    lines = b"".join(b"\0" + picture.data[start : start + row] for start in range(0, height * row, row))

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(lines))
        + chunk(b"IEND", b"")
    )


def list_unshown(model: Path) -> list[int]:
    """The tokens that llama-server leaves out of its log-probabilities, because they have no text alone."""
    kinds = gguf.GGUFReader(model).fields["tokenizer.ggml.token_type"].contents()
    return [token for token, kind in enumerate(kinds) if kind != gguf.TokenType.NORMAL]


def write_wav(recording: Medium) -> bytes:
    """The recording as a file of 16 bits."""
    samples = (np.frombuffer(recording.data, "<f4") * 32768).astype("<i2").tobytes()
    head = struct.pack("<4sIHHIIHH4sI", b"fmt ", 16, 1, 1, 16000, 32000, 2, 16, b"data", len(samples))
    return b"RIFF" + struct.pack("<I", 4 + len(head) + len(samples)) + b"WAVE" + head + samples


def hum(seconds: float) -> Medium:
    """A recording of two tones, whose samples 16 bits can hold."""
    times = np.arange(int(16000 * seconds)) / 16000
    wave = np.sin(2 * np.pi * 440 * times) + np.sin(2 * np.pi * 97 * times * times)
    return build_recording((np.round(wave * 9000) / 32768).astype("<f4").tobytes())


def show(medium: Medium) -> dict[str, Any]:
    """The part of a message with this medium."""
    if medium.shape.kind is MediaKind.AUDIO:
        data = base64.b64encode(write_wav(medium)).decode()
        return {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
    url = "data:image/png;base64," + base64.b64encode(write_png(medium)).decode()
    return {"type": "image_url", "image_url": {"url": url}}


def ask_llama_server(
    address: str, medium: Medium, unshown: Sequence[int]
) -> tuple[int, list[tuple[int, float]]]:
    """The prompt's tokens, and the tokens of the answer with their log-probabilities."""
    content = [{"type": "text", "text": "look at "}, show(medium), {"type": "text", "text": " and tell"}]
    body = {
        "messages": [{"role": "user", "content": content}],
        "temperature": 0,
        "max_tokens": 8,
        "logprobs": True,
        "ignore_eos": True,
        "logit_bias": [[token, -100] for token in unshown],
    }
    headers = {"content-type": "application/json"}
    asked = urllib.request.Request(f"{address}/v1/chat/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(asked, timeout=60) as reply:
        answer = json.load(reply)
    tokens = answer["choices"][0]["logprobs"]["content"]
    return answer["usage"]["prompt_tokens"], [(token["id"], token["logprob"]) for token in tokens]


def build_request(kind: MediaKind = MediaKind.IMAGE, **more: Any) -> GenerationRequest:
    """A conversation with one picture or recording."""
    medium = MediaContent(kind, data="AAAA", field="messages[0].content[1].image_url")
    parts = (TextContent("look at "), medium, TextContent(" and tell"))
    message = Message(Role.USER, "look at  and tell", content=parts)
    sampling = SamplingOptions(temperature=0.0, ignore_eos=True, logit_bias=more.pop("bias", ()))
    output = Output(max_tokens=8, logprobs=0, token_ids=True)
    return GenerationRequest("m", (Conversation((message,)),), sampling, replace(output, **more))


def render(engine: LlamaTokenEngine, picture: Medium) -> Renderer:
    """A renderer whose reader gives this picture for every part."""

    async def read_media(parts: Sequence[MediaContent], *_: object) -> Sequence[Medium]:
        return [picture] * len(parts)

    return Renderer(engine, prove=unproved, options=RendererOptions(read_media=read_media))


async def answer_request(renderer: Renderer, request: GenerationRequest) -> tuple[Usage, list[TokenScore]]:
    """The usage and the tokens of an answer."""
    context, scores, usage = Context("r"), list[TokenScore](), None
    prepared = await renderer.prepare(request, context)
    async with prepared.stream(context) as groups:
        async for group in groups:
            for event in group:
                if isinstance(event, TextDelta):
                    scores += event.scores or ()
                elif isinstance(event, Usage):
                    usage = event
    assert usage is not None
    return usage, scores


RECORDED = ["gemma3", "qwen2vl", "idefics3"]
"""Families whose answers were recorded with transformers."""


@pytest.mark.parametrize(
    "family",
    # The tiles of idefics3 have text between them, which the recorded answers lack.
    ["llava", "idefics3", HEARING, *(pytest.param(name, marks=pytest.mark.soak) for name in RECORDED[:2])],
)
async def test_the_answer_is_that_of_llama_server(pairs, family):
    model, projector = pairs / f"{family}.gguf", pairs / f"{family}-mmproj.gguf"
    medium = hum(2.5) if family == HEARING else draw(7, 300, 200)
    unshown = list_unshown(model)
    with serve_llama_server(model, template="", projector=projector) as address:
        prompt_tokens, expected = await asyncio.to_thread(ask_llama_server, address, medium, unshown)
    async with seeing(pairs, family) as engine:
        request = build_request(medium.shape.kind, bias=tuple((token, -100.0) for token in unshown))
        usage, scores = await answer_request(render(engine, medium), request)
        (layout,) = await engine.lay_out([medium.shape])
    assert usage.prompt_tokens == prompt_tokens
    assert usage.prompt_image_tokens + usage.prompt_audio_tokens == layout.ids.count(MEDIUM_CELL) > 0
    assert bool(usage.prompt_audio_tokens) == (family == HEARING)
    assert [score.token for score in scores] == [token for token, _ in expected]
    for score, (_, logprob) in zip(scores, expected, strict=True):
        assert score.logprob == pytest.approx(logprob, abs=1e-3)


@pytest.mark.parametrize("family", RECORDED)
async def test_the_answer_is_that_of_transformers(pairs, tmp_path, family):
    recorded = json.loads((FIXTURES / "answers.json").read_bytes())[family]
    side = VISION_SHAPES[family].side
    picture = build_picture(side, side, draw_pattern(side))
    untiled = write_projector(
        tmp_path / "untiled.gguf", family, shape=replace(VISION_SHAPES[family], tiles=1)
    )
    spec: dict[str, Any] = {"mmproj": str(untiled), "exact": True, "kv_type": "f32"}
    async with seeing(pairs, family, **spec) as engine, engine.hold(picture):
        (layout,) = await engine.lay_out([picture.shape])
        ids, spans = list(recorded["prefix"]), list[MediumSpan]()
        for span in layout.spans:  # without the words between the parts of a picture
            spans.append(replace(span, start=len(ids), digest=picture.digest))
            ids += [MEDIUM_CELL] * span.cells
        prompt = PromptTokens((*ids, *recorded["suffix"]), tuple(spans))
        answer = await ask(engine, prompt, "s", len(recorded["tokens"]))
    assert answer.tokens == recorded["tokens"]
    assert np.abs(np.subtract(answer.logprobs, recorded["logprobs"])).max() < 1e-2


async def test_a_picture_that_exceeds_the_context_is_refused_with_its_tokens(pairs):
    async with seeing(pairs, "qwen2vl", context_length=256) as engine:
        with pytest.raises(ContextLengthExceeded, match=r"256 tokens.* resulted in 1\d\d\d tokens"):
            await render(engine, draw(1, 1200, 1000)).prepare(build_request(), Context("r"))
        encoder = engine._encoder
        assert encoder is not None and not encoder.encode_count


@pytest.mark.parametrize(
    ("more", "field"),
    [({"prompt_logprobs": 0}, "prompt_logprobs"), ({"truncate_prompt": 9}, "truncate_prompt_tokens")],
)
async def test_a_field_that_a_picture_excludes_is_refused(pairs, more, field):
    async with seeing(pairs, "llava") as engine:
        with pytest.raises(UnsupportedParameter) as refused:
            await render(engine, draw(1)).prepare(build_request(**more), Context("r"))
    assert refused.value.param == field


async def test_a_model_without_eyes_refuses_the_part_by_name(pairs):
    async with loaded(pairs / "llava.gguf") as engine:
        with pytest.raises(UnsupportedParameter) as refused:
            await render(engine, draw(1)).prepare(build_request(), Context("r"))
        assert refused.value.param == "messages[0].content[1].image_url"
        with pytest.raises(UnsupportedParameter):
            await engine.lay_out([draw(1).shape])


async def test_no_text_of_a_caller_stands_for_a_picture(pairs):
    async with seeing(pairs, "llava") as engine:
        renderer = render(engine, draw(1))
        request = build_request()
        (prompt,) = request.prompts
        assert isinstance(prompt, Conversation)
        (message,) = prompt.messages
        marks = "".join(map(chr, range(0xE000, 0xE010))) + "<__media__><image>"
        parts = (TextContent(marks), *message.content[1:])
        marked = Conversation((replace(message, text=marks + " and tell", content=parts),))
        usage, _ = await answer_request(renderer, replace(request, prompts=(marked,)))
    assert usage.prompt_image_tokens == 64


async def test_no_pixels_stay_after_a_request_and_after_one_that_fails(pairs):
    async with seeing(pairs, "llava") as engine:
        shown: list[weakref.ref[Medium]] = []

        async def read_media(parts: Sequence[MediaContent], *_: object) -> Sequence[Medium]:
            media = [draw(1) for _ in parts]
            shown.extend(map(weakref.ref, media))
            return media

        renderer = Renderer(engine, prove=unproved, options=RendererOptions(read_media=read_media))
        await answer_request(renderer, build_request())
        with pytest.raises(ContextLengthExceeded):
            await answer_request(renderer, build_request(max_tokens=4096))
        assert [medium() for medium in shown] == [None, None]


async def test_a_prompt_that_lies_about_its_media_is_refused(pairs):
    async with seeing(pairs, "llava") as engine:
        picture = draw(1)
        prompt = await write_prompt(engine, QUESTION[0], picture, QUESTION[1])
        with pytest.raises(InvalidValue, match="does not have"):
            await ask(engine, prompt, "s")
        (span,) = prompt.media
        async with engine.hold(picture):
            for wrong in (
                replace(prompt, media=(replace(span, cells=63),)),
                replace(prompt, media=(replace(span, start=span.start - 1),)),
                replace(prompt, media=(replace(span, part=1),)),
                replace(prompt, media=(span, span)),
                replace(prompt, media=()),
                replace(prompt, ids=prompt.ids[: span.start + span.cells]),
            ):
                with pytest.raises(InvalidValue):
                    await ask(engine, wrong, "s")
            assert len((await ask(engine, prompt, "s")).tokens) == 10


async def test_encoded_media_are_forgotten_beyond_the_limit(pairs):
    picture_bytes = 64 * 64 * 4
    async with seeing(pairs, "llava", media_memory=2 * picture_bytes) as engine, AsyncExitStack() as holds:
        pictures = [draw(seed) for seed in range(3)]
        for picture in pictures:
            await holds.enter_async_context(engine.hold(picture))
        encoder = engine._encoder
        assert encoder is not None
        for count, picture in ((1, pictures[0]), (2, pictures[1]), (2, pictures[0]), (3, pictures[2]),
                               (3, pictures[0]), (4, pictures[1])):  # fmt: skip
            await ask(engine, await write_prompt(engine, QUESTION[0], picture, QUESTION[1]), "s", 1)
            assert encoder.encode_count == count


async def test_an_encoded_picture_is_held_without_its_pixels_by_requests_of_the_same_salt(pairs):
    picture_bytes = 64 * 64 * 4
    async with seeing(pairs, "llava", media_memory=picture_bytes) as engine:
        pictures = [draw(seed) for seed in range(2)]
        prompts = [await write_prompt(engine, QUESTION[0], each, QUESTION[1]) for each in pictures]
        async with engine.hold(pictures[0]):
            expected = await ask(engine, prompts[0], "s")
        digest = pictures[0].digest
        assert engine.has_encoded(digest, "s") and not engine.has_encoded(digest, "other")
        async with engine.hold(replace(pictures[0], data=b""), "s"):
            async with engine.hold(pictures[1]):
                await ask(engine, prompts[1], "s")
            require_alike(await ask(engine, prompts[0], "s"), expected, ROUNDING["pool"])
            with pytest.raises(InvalidValue, match="does not have"):
                await ask(engine, prompts[0], "other")
        async with engine.hold(pictures[1]):
            await ask(engine, prompts[1], "s")
        assert not engine.has_encoded(digest, "s") and engine.has_encoded(pictures[1].digest, "s")


async def test_a_refused_picture_is_not_encoded_until_its_time(pairs):
    async with seeing(pairs, "llava") as engine:
        reports, picture = list[str](), draw(1)
        engine.watch_encodes(reports.append)
        prompt = await write_prompt(engine, QUESTION[0], picture, QUESTION[1])
        async with engine.hold(picture):
            engine.refuse_medium(RefusedMedium(picture.digest, time.time() + 3600))
            with pytest.raises(InvalidValue, match="has ended the engine before"):
                await ask(engine, prompt, "s")
            assert not reports
            engine.refuse_medium(RefusedMedium(picture.digest, time.time()))
            await ask(engine, prompt, "s")
            assert reports == [picture.digest, ""]


async def test_a_picture_of_a_waiting_sequence_is_encoded_when_its_turn_is_near(pairs):
    async with seeing(pairs, "llava", sequences=1) as engine, AsyncExitStack() as holds:
        pictures = [draw(seed) for seed in range(5)]
        for picture in pictures:
            await holds.enter_async_context(engine.hold(picture))
        prompts = [await write_prompt(engine, QUESTION[0], each, QUESTION[1]) for each in pictures]
        encoder, encoded = engine._encoder, list[int]()
        assert encoder is not None

        async def run(prompt: PromptTokens) -> None:
            request = TokenRequest(prompt, 60, Sampling(0.0, ignore_eos=True))
            async for event in engine.generate(request):
                if isinstance(event, SequenceStarted):
                    encoded.append(encoder.encode_count)

        await asyncio.gather(*map(run, prompts))
        assert encoder.encode_count == 5
        assert all(count <= started + 2 for started, count in enumerate(encoded)), encoded


async def test_a_projector_that_cannot_be_used_is_a_load_error(pairs, tmp_path):
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes((pairs / "llava-mmproj.gguf").read_bytes()[:-4000])
    wide = write_projector(tmp_path / "wide.gguf", "llava", text_width=128)
    for path in (damaged, wide, pairs / "llava.gguf", tmp_path / "missing.gguf"):
        with pytest.raises(LoadError, match=path.name):
            async with seeing(pairs, "llava", mmproj=str(path)):
                pass


async def test_shapes_are_counted_without_a_picture(pairs):
    async with seeing(pairs, "qwen2vl", image_max_tokens=64) as engine:
        shapes = [MediumShape(MediaKind.IMAGE, *sides) for sides in ((1, 1), (2048, 2048), (1200, 800))]
        counts = [layout.ids.count(MEDIUM_CELL) for layout in await engine.lay_out(shapes)]
        assert counts[1] == 64 and max(counts) <= 64 and counts[0] < 64
        with pytest.raises(UnsupportedParameter):
            await engine.lay_out([MediumShape(MediaKind.AUDIO, samples=100)])


async def test_a_recording_takes_its_parts_of_thirty_seconds(pairs):
    async with seeing(pairs, HEARING, exact=True) as engine:
        long = hum(31)
        (layout,) = await engine.lay_out([long.shape])
        assert [span.cells for span in layout.spans] == [375, 375]
        prompt = await write_prompt(engine, QUESTION[0], long, QUESTION[1])
        async with engine.hold(long):
            alone = await ask(engine, prompt, "alone")
            text = await write_prompt(engine, QUESTION[0], QUESTION[1])
            found, _ = await asyncio.gather(ask(engine, prompt, "beside"), ask(engine, text, "text"))
            require_alike(found, alone, 0.0)
        for samples in (1, 1599):  # one sample would end the process
            with pytest.raises(InvalidValue, match="a tenth of a second"):
                await engine.lay_out([MediumShape(MediaKind.AUDIO, samples=samples)])


async def test_a_long_recording_leaves_turns_to_others_and_ends_with_its_caller(pairs):
    async with seeing(pairs, HEARING) as engine:
        long, short = hum(31), hum(1)
        prompts = {
            name: await write_prompt(engine, QUESTION[0], medium, QUESTION[1])
            for name, medium in (("long", long), ("short", short))
        }

        async def run(name: str, salt: str) -> None:
            await ask(engine, prompts[name], salt, 1, actor=name)

        encoder = engine._encoder
        assert encoder is not None
        async with engine.hold(long), engine.hold(short), asyncio.TaskGroup() as group:
            left = group.create_task(run("long", "left"))
            await await_until(lambda: encoder.waiting_count == 1)
            left.cancel()
            for name in prompts:
                group.create_task(run(name, "stays"))
        assert list(encoder._encoded) == [("stays", short.digest), ("stays", long.digest)]
