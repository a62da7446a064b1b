"""Filling in the middle: what a model with the tokens for it reads, and who refuses."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from antiphon.engines.base import InfillTokens
from antiphon.engines.llama.libllama.library import find_library
from antiphon.engines.llama.libllama.model import NativeModel, NativeTokenizer, read_vocabulary
from benchmarks.make_model import CONTROL, write_model
from tests.engines.llama.conftest import loaded
from tests.engines.random_models import SIZES
from tests.support.http_server import TEXT, serving_tokens

FIRST = 3 + len(CONTROL)
INFILL = InfillTokens(FIRST, FIRST + 1, FIRST + 2)


@pytest.fixture(scope="module")
def filler(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with tokens for filling in the middle, which its file names by their ids."""
    return write_model(tmp_path_factory.mktemp("filler") / "filler.gguf", SIZES["tiny"], infill=True)


@pytest.fixture(scope="module")
def native(filler: Path) -> Iterator[NativeModel]:
    library, _ = find_library(None)
    model = NativeModel(library, filler)
    yield model
    model.close()


def test_the_tokens_are_the_files(native: NativeModel, models: Path):
    table = read_vocabulary(native)
    assert table.infill == INFILL
    assert [table.names[INFILL.prefix + at] for at in range(3)] == ["<|before|>", "<|after|>", "<|middle|>"]
    library, _ = find_library(None)
    plain = NativeModel(library, models / "tiny-q8_0.gguf")
    try:
        assert read_vocabulary(plain).infill is None
    finally:
        plain.close()


ASKED: dict[str, Any] = {"model": "filler", "max_tokens": 4, "temperature": 0, "return_token_ids": True}


async def test_a_prompt_is_put_before_its_suffix(filler: Path, native: NativeModel):
    tokenizer = NativeTokenizer(native)

    def lay_out(before: str, after: str, *bos: int) -> list[int]:
        first, last = (native.tokenize(text.encode()) for text in (before, after))
        return [*bos, INFILL.prefix, *first, INFILL.suffix, *last, INFILL.middle]

    async with loaded(filler) as engine, serving_tokens(filler=engine) as served:
        for before, after, fields, ids in (
            ("once a", " the end", {}, lay_out("once a", " the end", 1)),
            ("once a", "the", {"add_special_tokens": False}, lay_out("once a", "the")),
            ("", "the end", {}, lay_out("", "the end", 1)),
            ("a <|middle|>", "<s> b", {}, lay_out("a <|middle|>", "<s> b", 1)),
            ("once a", "", {}, list(tokenizer.tokenize([], True)) + native.tokenize(b"once a")),
        ):
            reply = await served.ask(TEXT, ASKED | {"prompt": before, "suffix": after} | fields)
            (choice,) = reply.json()["choices"]
            assert choice["prompt_token_ids"] == ids
            assert len(choice["token_ids"]) == reply.json()["usage"]["completion_tokens"] > 0
        several = await served.ask(TEXT, ASKED | {"prompt": ["a", "b"], "suffix": "c"})
        shown = [choice["prompt_token_ids"] for choice in several.json()["choices"]]
        assert shown == [lay_out("a", "c", 1), lay_out("b", "c", 1)]
        card = (await served.ask("/v1/models/filler")).json()
        assert card["profile"]["infill"] is True


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "token ids": ({"prompt": [5, 6]}, "token ids"),
    "echo": ({"echo": True}, "leave out echo"),
    "truncation": ({"truncate_prompt_tokens": 3}, "truncate_prompt_tokens"),
}


async def test_what_has_no_middle_is_refused_by_name(filler: Path, models: Path):
    async with (
        loaded(filler) as engine,
        loaded(models / "tiny-q8_0.gguf") as plain,
        serving_tokens(filler=engine, plain=plain) as served,
    ):
        asked = ASKED | {"prompt": "a", "suffix": "b"}
        for fields, told in (*REFUSED.values(), ({"model": "plain"}, "this model has no tokens")):
            reply = await served.ask(TEXT, asked | fields)
            assert reply.status == 400
            assert (reply.error["param"], reply.error["code"]) == ("suffix", "unsupported_parameter")
            assert told in reply.error["message"]
        long = await served.ask(TEXT, asked | {"prompt": "a " * 550})
        assert long.error["code"] == "context_length_exceeded"
        assert "prompt and suffix" in long.error["message"]
        card = (await served.ask("/v1/models/plain")).json()
        assert card["profile"]["infill"] is False
