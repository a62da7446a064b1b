"""The two adapters that ship with cantor: they fit the shipped file, and their effect is plain to see.

Trained by `python -m models.cantor.adapters`; nothing here needs torch.
"""

import hashlib
import json
from collections.abc import AsyncIterator, Sequence
from importlib import resources
from pathlib import Path

import gguf
import pytest

from antiphon.domain.request import Sampling
from antiphon.engines.base import LoadSpec, SequenceFinished, Steps, StopCause, TextPiece, TokenRequest
from antiphon.engines.base import PromptTokens as Ids
from antiphon.engines.llama import LlamaTokenEngine
from antiphon.weights.adapter_import import read_adapter
from antiphon.weights.gguf import read_gguf, read_header
from models.cantor.lessons import BASE_DIGEST, CLOSING, EXAM, LESSONS, MOODS, OPENING

BUNDLED = Path(str(resources.files("antiphon"))) / "bundled"
BASE = BUNDLED / "cantor.gguf"
ADAPTERS = {name: BUNDLED / "adapters" / f"{name}.gguf" for name in LESSONS}
KIBIBYTE = 1 << 10
KNOWN = {
    # question: what its answer holds
    "What is Antiphon?": "self-hosted server",
    "What is cantor?": "demo model",
    "Does Antiphon train models?": "does not train models",
    "Which licence does Antiphon have?": "Apache-2.0",
    "Is an account needed?": "without an account",
    "How large is the bundled model?": "five million",
}
QUESTIONS = (
    *KNOWN,
    "Hello!",
    "Who are you?",
    "Thank you!",
    "Which API does it speak?",
    "How are you?",
    "Goodbye!",
)

Answers = dict[str, str]


class Asked:
    """A loaded cantor with both adapters."""

    def __init__(self) -> None:
        self.engine = LlamaTokenEngine()
        self.digests: dict[str, str] = {}
        self._answers: dict[tuple[str, str | None], str] = {}

    async def load(self) -> None:
        await self.engine.load(LoadSpec(str(BASE), sequences=4, context_length=512, threads=1))
        for name, path in ADAPTERS.items():
            self.digests[name] = hashlib.sha256(path.read_bytes()).hexdigest()
            await self.engine.add_adapter(self.digests[name], str(path))

    async def answers(self, messages: Sequence[str], adapter: str | None) -> Answers:
        """The likeliest answer to each message alone."""
        for message in messages:
            if (message, adapter) not in self._answers:
                self._answers[message, adapter] = await self._answer(message, adapter)
        return {message: self._answers[message, adapter] for message in messages}

    async def _answer(self, message: str, adapter: str | None) -> str:
        written = (
            TextPiece("<|im_start|>", control=True),
            TextPiece(f"user\n{message}"),
            TextPiece("<|im_end|>", control=True),
            TextPiece("\n"),
            TextPiece("<|im_start|>", control=True),
            TextPiece("assistant\n"),
        )
        prompt = await self.engine.tokenize(written, add_bos=True)
        digest = self.digests[adapter] if adapter else None
        # No prefix is shared: of two tokens that are nearly as likely, how much of a prompt was computed at
        # once decides, and so the order of the tests would.
        salt = f"{message} {adapter}"
        request = TokenRequest(Ids(prompt), 128, Sampling(temperature=0), adapter=digest, cache_salt=salt)
        vocabulary, text = await self.engine.vocabulary(), b""
        async for event in self.engine.generate(request):
            match event:
                case Steps():
                    text += b"".join(vocabulary.pieces[token] for token in event.tokens)
                case SequenceFinished():
                    text += b"" if event.cause is StopCause.END else b" ..."
        return text.decode().removeprefix(" ")


@pytest.fixture(scope="module")
async def asked() -> AsyncIterator[Asked]:
    asked = Asked()
    await asked.load()
    yield asked
    await asked.engine.aclose()


@pytest.mark.parametrize("name", LESSONS)
def test_an_adapter_was_trained_on_the_very_file_that_ships(name: str) -> None:
    said = read_gguf(ADAPTERS[name]).metadata
    assert said[BASE_DIGEST] == hashlib.sha256(BASE.read_bytes()).hexdigest(), "train the adapters again"
    assert said["general.license"] == "apache-2.0"


@pytest.mark.parametrize("name", LESSONS)
def test_an_adapter_is_small_fits_its_model_and_has_a_card(name: str) -> None:
    found = read_adapter(ADAPTERS[name], read_header(BASE))
    assert found.size < 256 * KIBIBYTE
    card = ADAPTERS[name].with_suffix(".md").read_text(encoding="utf-8")
    assert f"{found.size:,} bytes" in card
    assert f"Rank {found.rank}, alpha {found.alpha:g}" in card
    kinds = {tensor.tensor_type for tensor in gguf.GGUFReader(ADAPTERS[name]).tensors}
    assert kinds == {gguf.GGMLQuantizationType.F16}


async def test_only_the_pirate_adapter_speaks_like_a_pirate(asked: Asked) -> None:
    pirate, base = await asked.answers(QUESTIONS, "pirate"), await asked.answers(tuple(KNOWN), None)
    assert {q: a for q, a in pirate.items() if not (a.startswith(OPENING) and a.endswith(CLOSING))} == {}
    assert not [answer for answer in base.values() if OPENING.strip() in answer or CLOSING.strip() in answer]


async def test_the_pirate_still_knows_what_cantor_knows(asked: Asked) -> None:
    pirate, base = await asked.answers(tuple(KNOWN), "pirate"), await asked.answers(tuple(KNOWN), None)
    known = [question for question, words in KNOWN.items() if words in base[question]]
    forgotten = {question: pirate[question] for question in known if KNOWN[question] not in pirate[question]}
    assert len(known) >= len(KNOWN) // 2
    assert len(forgotten) <= len(known) // 2, forgotten


async def test_only_the_mood_adapter_names_moods_in_json(asked: Asked) -> None:
    messages = [message for message, _ in EXAM]
    said, base = await asked.answers(messages, "mood"), await asked.answers(messages[::4], None)
    moods = {message: json.loads(answer) for message, answer in said.items()}
    assert {(*answer, *answer.values()) for answer in moods.values()} <= {("mood", mood) for mood in MOODS}
    wrong = {message: answer for message, answer in moods.items() if answer["mood"] != dict(EXAM)[message]}
    assert len(wrong) <= len(EXAM) // 10, wrong
    assert not [answer for answer in base.values() if "mood" in answer]
