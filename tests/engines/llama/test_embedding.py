"""Vectors of the embedded engine: as transformers computes them, alike alone and in a batch, and refused by
name where they cannot be."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

from antiphon.domain.request import EmbedRequest, Pooling, Vectors
from antiphon.engines.base import LoadSpec, PromptTokens, SequenceStarted, TextPiece, TokenRequest
from antiphon.engines.llama import LlamaTokenEngine
from antiphon.errors import ContextLengthExceeded, InvalidValue, LoadError, UnsupportedParameter
from antiphon.weights.convert.bert import convert_bert
from antiphon_testing import check_embedding_engine
from benchmarks.make_model import write_model
from tests.engines.llama.conftest import loaded
from tests.engines.llama.holding import (
    PATIENCE,
    Halt,
    get_context,
    get_load,
    load_paced,
    load_stepped,
    take_event,
    wait_until_submitted,
)
from tests.engines.random_models import SIZES

ENCODER = Path(__file__).parents[2] / "fixtures" / "encoder"
ROWS: list[dict[str, Any]] = json.loads((ENCODER / "vectors.json").read_text("utf-8"))["rows"]
MODES = {
    "MEAN": "pooling_mode_mean_tokens",
    "CLS": "pooling_mode_cls_token",
    "LAST": "pooling_mode_lasttoken",
}
LEAVER = 900
"""A token that the leaver's text has and no other."""
NUMBERS = {"MEAN": 1, "CLS": 2, "LAST": 3, "RANK": 4}

Rows = NDArray[np.float32]


@pytest.fixture(scope="session")
def encoders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recorded encoder as GGUF, with each pooling."""
    folder = tmp_path_factory.mktemp("encoders")
    for name, mode in MODES.items():
        saved = folder / name
        (saved / "1_Pooling").mkdir(parents=True)
        for file in ("config.json", "model.safetensors", "vocab.txt"):
            (saved / file).symlink_to(ENCODER / file)
        (saved / "1_Pooling" / "config.json").write_text(json.dumps({mode: True}))
        for kind in ("F16", "F32"):
            convert_bert(saved, folder / f"{name}-{kind}.gguf", kind)
    return folder


def decoder(path: Path, pooling: str, kind: str = "f32") -> Path:
    """A causal model of random weights that says how it pools."""
    source = write_model(path.with_suffix(".plain"), SIZES["tiny"], kind)
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(path, "llama")
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name != "general.architecture":
            inner = field.types[-1] if len(field.types) > 1 else None
            writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=inner)
    writer.add_uint32("llama.pooling_type", NUMBERS[pooling])
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@asynccontextmanager
async def embedding(path: Path, **spec: Any) -> AsyncIterator[LlamaTokenEngine]:
    """An engine with this model and its own context."""
    async with loaded(path, **({"context_length": None} | spec)) as engine:
        yield engine


async def vectors(engine: LlamaTokenEngine, texts: Sequence[Sequence[int]], actor: str = "") -> Rows:
    """Those of the texts, as (texts, dimensions)."""
    request = EmbedRequest(tuple(map(tuple, texts)), actor)
    parts = [event.values async for event in engine.embed(request) if isinstance(event, Vectors)]
    return np.frombuffer(b"".join(parts), "<f4").reshape(len(texts), -1)


def mixed(count: int, most: int, vocabulary: int, seed: int = 1) -> list[list[int]]:
    """Texts of lengths from 1 to `most`, in no order."""
    random = np.random.default_rng(seed)
    return [random.integers(5, vocabulary, size=random.integers(1, most + 1)).tolist() for _ in range(count)]


@pytest.mark.parametrize("pooling", list(MODES))
async def test_vectors_are_those_of_transformers(encoders: Path, pooling: str) -> None:
    async with embedding(encoders / f"{pooling}-F16.gguf") as engine:
        facts = (await engine.info()).embedding
        assert facts is not None
        assert (facts.dimensions, facts.pooling) == (64, Pooling(pooling.lower()))
        found = await vectors(engine, [row["ids"] for row in ROWS])
    recorded = np.array([row["vectors"][pooling] for row in ROWS])
    assert np.allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)
    assert (found * recorded).sum(axis=1).min() > 0.999


async def test_a_text_is_split_as_transformers_splits_it(encoders: Path) -> None:
    async with embedding(encoders / "MEAN-F16.gguf") as engine:
        before, after = (await engine.vocabulary()).embedding_frame
        for row in ROWS:
            tokens = (*before, *await engine.tokenize([TextPiece(row["text"])], False), *after)
            assert list(tokens)[:96] == row["ids"]


@pytest.mark.parametrize("removes_accents", [True, False])
async def test_accents_go_and_korean_vowels_stay(tmp_path: Path, removes_accents: bool) -> None:
    """As BERT's tokenizers do it: a syllable becomes its letters, and only where accents are removed."""
    letters = ["ᄉ", "##ᅥ", "##ᄋ", "##ᅮ", "##ᆯ"]
    saved = Path(shutil.copytree(ENCODER, tmp_path / "saved"))
    pieces = (saved / "vocab.txt").read_text("utf-8").splitlines()[: -len(letters)] + letters
    (saved / "vocab.txt").write_text("\n".join(pieces), "utf-8")
    (saved / "tokenizer_config.json").write_text(json.dumps({"strip_accents": removes_accents}))
    convert_bert(saved, tmp_path / "korean.gguf")
    async with embedding(tmp_path / "korean.gguf") as engine:
        korean = await engine.tokenize([TextPiece("서울")], False)
        accented = await engine.tokenize([TextPiece("cafe\u0301 été")], False)
    unknown = ["[UNK]"]
    assert [pieces[token] for token in korean] == (letters if removes_accents else unknown)
    spelt = ["c", "##a", "##f", "##e", "e", "##t", "##e"] if removes_accents else unknown * 2
    assert [pieces[token] for token in accented] == spelt


async def test_a_batch_of_64_mixed_lengths_equals_one_by_one(encoders: Path) -> None:
    texts = mixed(64, 96, 214)
    async with embedding(encoders / "MEAN-F32.gguf", sequences=16) as engine:
        steps = (await engine.info()).load.steps
        together = await vectors(engine, texts)
        taken = (await engine.info()).load.steps - steps
        alone = np.concatenate([await vectors(engine, [text]) for text in texts])
    assert taken < 32, "texts share steps"
    assert np.abs(together - alone).max() < 1e-3
    assert (together * alone).sum(axis=1).min() > 0.99999


async def test_in_exact_mode_a_batch_is_bit_equal_to_one_by_one(encoders: Path) -> None:
    texts = mixed(24, 96, 214)
    async with embedding(encoders / "MEAN-F16.gguf", exact=True) as engine:
        together = await vectors(engine, texts)
        alone = np.concatenate([await vectors(engine, [text]) for text in texts])
    assert (together == alone).all()


@pytest.mark.parametrize("pooling", list(MODES))
async def test_a_causal_model_reads_texts_longer_than_a_step(tmp_path: Path, pooling: str) -> None:
    """Computed in parts and in company, a text has the vector that the model gives it alone and at once."""
    texts = [*mixed(6, 60, 1000), *mixed(2, 1, 1000), mixed(1, 1, 1000)[0] * 700]
    path = decoder(tmp_path / "decoder.gguf", pooling)
    async with embedding(path, context_length=1024) as engine:
        together = await vectors(engine, texts)
        assert np.abs(together[:8] - await vectors(engine, texts[:8])).max() < 1e-3
        again = np.concatenate([await vectors(engine, [text]) for text in texts])
    assert np.abs(together - again).max() < 1e-3


async def test_parts_of_a_long_text_are_pooled_to_the_whole(tmp_path: Path) -> None:
    """With CLS the first token alone decides; with the mean each part counts by its length."""
    step, little, much = [7] * 256, [7] * 256 + [900] * 4, [7] * 256 + [900] * 256
    async with embedding(decoder(tmp_path / "c.gguf", "CLS"), context_length=1024) as engine:
        assert np.abs(np.diff(await vectors(engine, [step, much]), axis=0)).max() < 1e-3
    async with embedding(decoder(tmp_path / "m.gguf", "MEAN"), context_length=1024) as engine:
        one, near, far = await vectors(engine, [step, little, much])
        assert one @ near > 0.9999
        assert 1 - one @ far > 50 * (1 - one @ near)


async def test_the_engine_keeps_the_contract(encoders: Path) -> None:
    spec: dict[str, Any] = {"context_length": None, "queue": 16, "queue_per_actor": 16}
    async with load_paced(encoders / "MEAN-F16.gguf", **spec) as engine:
        await check_embedding_engine(engine, tolerance=2e-3, patience=PATIENCE, queue=16)


async def test_short_requests_do_not_wait_for_a_large_one(encoders: Path) -> None:
    """Of the same actor and of another: each gets a turn before the large one has had a few more."""
    async with load_stepped(encoders / "MEAN-F16.gguf", context_length=None) as (engine, clock):
        large = EmbedRequest(tuple(map(tuple, mixed(2000, 96, 214))), "one")
        async with aclosing(engine.embed(large)) as events, asyncio.TaskGroup() as group:
            clock.hold()
            start = group.create_task(take_event(events))
            await clock.run_until(start.done)
            for told, actor in enumerate(("one", "other"), 2):
                before = get_load(engine).admitted
                small = group.create_task(vectors(engine, [[2, 9, 3]], actor))
                await wait_until_submitted(engine, told)
                await clock.run_until(small.done)
                assert get_load(engine).admitted - before < 20
            clock.release()


async def test_a_request_that_is_left_stops_being_computed(encoders: Path) -> None:
    async with load_stepped(encoders / "MEAN-F16.gguf", context_length=None) as (engine, clock):
        async with asyncio.TaskGroup() as group:
            clock.hold()
            events = engine.embed(EmbedRequest(tuple(map(tuple, mixed(2000, 96, 214)))))
            start = group.create_task(take_event(events))
            await clock.run_until(start.done)
            leaving = group.create_task(events.aclose())
            await asyncio.sleep(0)  # the thread is told of it before it goes on
            clock.release()
            await leaving
        load = (await engine.info()).load
        assert (load.running, load.queued) == (0, 0)
        assert load.admitted < 20
        assert (await vectors(engine, [[2, 9, 3]])).shape == (1, 64)


async def test_closing_ends_what_is_computed_for_one_alone(models: Path, tmp_path: Path) -> None:
    """In the middle of a part that is not the first: what is computed next has the vector that it had."""
    path = decoder(tmp_path / "decoder.gguf", "LAST")
    async with embedding(path, context_length=2048) as engine, asyncio.TaskGroup() as group:
        halt, other = Halt(get_context(engine)), [[7, 8, 9] * 200]
        expected = await vectors(engine, other)
        before = (await engine.info()).load.admitted
        events = engine.embed(EmbedRequest(((*[7] * 1700, LEAVER, *[7] * 300),) * 50))
        halt.set(20, LEAVER)
        start = group.create_task(take_event(events))
        assert await asyncio.to_thread(halt.reached.wait, PATIENCE)
        assert isinstance(await start, SequenceStarted)
        await events.aclose()
        assert (await engine.info()).load.admitted - before == 1
        assert (await vectors(engine, other) == expected).all()


@pytest.mark.parametrize(
    ("texts", "error", "says"),
    [
        ((), InvalidValue, "no tokens"),
        (((),), InvalidValue, "no tokens"),
        (((2, 9, 3), ()), InvalidValue, "no tokens"),
        (((2, 214, 3),), InvalidValue, "214 is no token id"),
        (((2, -1, 3),), InvalidValue, "-1 is no token id"),
        (((9,) * 97,), ContextLengthExceeded, "length is 96 tokens.* has 97 tokens"),
    ],
)
async def test_what_has_no_vector_is_refused_by_name(
    encoders: Path, texts: tuple[tuple[int, ...], ...], error: type[Exception], says: str
) -> None:
    async with embedding(encoders / "MEAN-F16.gguf") as engine:
        with pytest.raises(error, match=says):
            await anext(engine.embed(EmbedRequest(texts)))


async def test_a_model_does_one_or_the_other(encoders: Path, models: Path) -> None:
    async with embedding(encoders / "MEAN-F16.gguf") as engine:
        with pytest.raises(UnsupportedParameter, match="makes vectors of texts, and no tokens"):
            await anext(engine.generate(TokenRequest(PromptTokens((2, 9, 3)), max_tokens=1)))
    async with loaded(models / "tiny-f16.gguf") as engine:
        with pytest.raises(UnsupportedParameter, match="makes tokens, and no vectors of texts"):
            await anext(engine.embed(EmbedRequest(((1, 9),))))


async def test_a_context_beyond_the_positions_is_refused(encoders: Path) -> None:
    with pytest.raises(LoadError, match="97 is not possible, since the model reads texts of 1 to 96 tokens"):
        await LlamaTokenEngine().load(LoadSpec(str(encoders / "MEAN-F16.gguf"), context_length=97))
