"""Record the reference of cantor: ids by SentencePiece, greedy tokens and scores by transformers in float32.

`python -m models.cantor.reference` writes cantor_tokens.json, cantor_greedy.json and cantor_scores.json into
tests/fixtures. The reference weights are those of the shipped file, widened to float32; convert.py writes the
same as F32 GGUF.
"""

import json
import math
import platform
import random
from importlib.metadata import version
from pathlib import Path

import torch
import transformers

from models.cantor import recipe
from models.cantor.convert import reference_weights
from models.cantor.corpus import Document, documents
from models.cantor.tokens import CONTROLS, MODEL, Tokenizer

FIXTURES = Path(__file__).parents[2] / "tests" / "fixtures"
COMMAND = "python -m models.cantor.reference"
SEED = 41  # another one than training's
STRINGS, PROMPTS, STEPS = 1_000, 50, 48
SCORED, LONGEST_SCORED = 20, 120  # texts, and tokens of one
HELDOUT = Path(__file__).parent / "heldout" / "questions.jsonl"
WINDOW, WINDOWS = 512, 4  # tokens of the held-out text that are scored at once, and how often
ODD = (
    *(
        "",
        " ",
        "  ",
        "\n",
        "\n\n",
        "\t",
        " a",
        "a ",
        "  two  spaces  ",
        "a\nb",
        "a\r\nb",
        " " * 40,
        "ab " * 60,
    ),
    *(
        "\u00a0",
        "a\u00a0b",
        "\u2003x",
        "\u3000",
        "\u200b",
        "\ufeffBOM",
        "\u202eRTL",
        "\ufffd",
        "\x01\x7f",
        "\u0000",
    ),
    *(
        "😀",
        "👩‍👩‍👧‍👦",
        "🇫🇷",
        "👍🏽",
        "naïve café",
        "cafe\u0301",
        "Grüße",
        "日本語のテキスト",
        "Привет",
        "مرحبا",
        "ελληνικά",
        "𝔘𝔫𝔦",
    ),
    *(
        "0",
        "007",
        "1234567890",
        "3.14159",
        "1,000,000",
        "2048",
        "-1",
        "1e-9",
        "0x1F",
        "x" * 400,
        "antiphon" * 30,
    ),
    *("<s>", "</s>", "<unk>", "<0x41>", *CONTROLS, "<|im_start|>user\nhi<|im_end|>\n", "<s><s>", "a</s>b"),
    *(
        "< s >",
        "<|im_",
        "_start|>",
        "▁",
        "▁under",
        "a▁b",
        "</tool_call>",
        "`make serve`",
        "/v1/chat/completions",
    ),
    '<tool_call>{"name": "x", "arguments": {}}</tool_call>',
)
ALPHABETS = (
    *("abcdefghijklmnopqrstuvwxyz", " \n\tab", "0123456789.,-", "äöüßéèñøåçæœ", "<|im_start|>end</s>▁"),
    *(
        "日本語漢字かなカナ",
        "😀🎉🚀❤️👍🏽🇩🇪\u200d",
        "АБВгде",
        '{}[]":,\\/',
        "\u00a0\u2009\u3000 x",
        "\x01\x1f\x7f\x80é€𐍈",
    ),
)


def strings(rng: random.Random) -> list[str]:
    """The odd ones, texts of the corpus, runs drawn from alphabets, and mixtures of all."""
    made = list(ODD)
    for document in documents(SEED, 150):
        made += [document.text] if document.text else [turn.content for turn in document.turns]
    made = [text for text in made if "/tmp" not in text]
    unique = dict.fromkeys(made[: STRINGS // 2])
    while len(unique) < STRINGS:
        if rng.random() < 0.6:
            alphabet = rng.choice(ALPHABETS)
            unique["".join(rng.choice(alphabet) for _ in range(rng.randint(1, 40)))] = None
        else:
            unique["".join(rng.choice(made)[: rng.randint(1, 30)] for _ in range(rng.randint(2, 4)))] = None
    return list(unique)


def prompts(tokenizer: Tokenizer) -> list[list[int]]:
    """Dialogues cut before an answer, and beginnings of plain texts; the last one long."""
    made: list[list[int]] = []
    for document in documents(SEED + 1, 4 * PROMPTS):
        if document.turns:
            cut = max(at for at, turn in enumerate(document.turns) if turn.role == "assistant")
            made.append(tokenizer.prompt(Document(document.turns[:cut], document.tools)))
        else:
            made.append(tokenizer.document(document)[0][:8])
    made.sort(key=len)
    short = [ids for ids in made if len(ids) < 300]
    return [*short[:: max(1, len(short) // (PROMPTS - 1))][: PROMPTS - 1], made[-1][: recipe.CONTEXT - STEPS]]


def reference_model() -> transformers.LlamaForCausalLM:
    """The widened weights in transformers' own network."""
    config = transformers.LlamaConfig(
        vocab_size=recipe.VOCABULARY,
        hidden_size=recipe.WIDTH,
        intermediate_size=recipe.HIDDEN,
        num_hidden_layers=recipe.LAYERS,
        num_attention_heads=recipe.HEADS,
        num_key_value_heads=recipe.KV_HEADS,
        max_position_embeddings=recipe.CONTEXT,
        rms_norm_eps=recipe.NORM_EPSILON,
        rope_parameters={"rope_type": "default", "rope_theta": recipe.ROPE_BASE},
        tie_word_embeddings=True,
    )
    model = transformers.LlamaForCausalLM(config)
    model.set_attn_implementation("eager")
    model.train(False)
    weights = {name: torch.from_numpy(weight) for name, weight in reference_weights().items()}
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert set(missing) <= {"lm_head.weight"}, missing
    assert not unexpected, unexpected
    model.tie_weights()
    return model


@torch.no_grad()
def greedy(model: transformers.LlamaForCausalLM, prompt: list[int]) -> dict[str, list[int] | list[float]]:
    """STEPS greedy tokens, end tokens like any other, with log-probabilities and gaps to the second best."""
    ids = torch.tensor([prompt])
    tokens, scores, gaps = [], [], []
    past = None
    for _ in range(STEPS):
        output = model(ids, past_key_values=past, use_cache=True)
        past = output.past_key_values
        logits = output.logits[0, -1].double()
        best = torch.topk(logits, 2)
        tokens.append(int(best.indices[0]))
        scores.append(round(float(best.values[0] - torch.logsumexp(logits, -1)), 7))
        gaps.append(round(float(best.values[0] - best.values[1]), 7))
        ids = best.indices[None, :1]
    return {"prompt": prompt, "tokens": tokens, "log_probabilities": scores, "gaps": gaps}


@torch.no_grad()
def scores(model: transformers.LlamaForCausalLM, ids: list[int]) -> list[float]:
    """Log-probability of each token but the first, given all before it."""
    logits = model(torch.tensor([ids])).logits[0, :-1].double()
    chosen = torch.log_softmax(logits, -1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
    return [round(float(value), 6) for value in chosen]


def scored_texts(tokenizer: Tokenizer) -> list[list[int]]:
    """Dialogues and plain texts, not those of the greedy prompts."""
    made = [tokenizer.document(document)[0][:LONGEST_SCORED] for document in documents(SEED + 2, 4 * SCORED)]
    return [ids for ids in made if len(ids) > 20][:SCORED]


def heldout_windows(tokenizer: Tokenizer) -> list[list[int]]:
    """The held-out questions as one text, in windows that each begin like a text."""
    rows = [json.loads(line) for line in HELDOUT.read_text("utf-8").splitlines()]
    ids = tokenizer.encode("\n".join(f"{row['messages'][-1]['content']} {row['example']}" for row in rows))
    return [[1, *ids[at : at + WINDOW - 1]] for at in range(0, WINDOWS * (WINDOW - 1), WINDOW - 1)]


def about() -> dict[str, str]:
    """How a fixture was made."""
    packages = ("torch", "transformers", "sentencepiece", "numpy")
    return {"command": COMMAND, "python": platform.python_version()} | {
        name: version(name) for name in packages
    }


def write(name: str, content: dict[str, object]) -> None:
    """One row a line, so that a change can be read."""
    path = FIXTURES / name
    path.parent.mkdir(exist_ok=True)
    head = json.dumps({key: value for key, value in content.items() if key != "rows"}, indent=1)
    rows = ",\n".join(json.dumps(row) for row in content["rows"])  # type: ignore[attr-defined]
    path.write_text(f'{head[:-2]},\n "rows": [\n{rows}\n]}}\n', encoding="utf-8")


def main() -> None:
    """Record the fixtures."""
    torch.set_num_threads(1)
    tokenizer = Tokenizer(MODEL)
    rows = [{"text": text, "ids": tokenizer.encode(text)} for text in strings(random.Random(SEED))]
    assert all(3 not in row["ids"] and 4 not in row["ids"] for row in rows)
    write("cantor_tokens.json", {**about(), "rows": rows})
    model = reference_model()
    greedy_rows = [greedy(model, prompt) for prompt in prompts(tokenizer)]
    write("cantor_greedy.json", {**about(), "rows": greedy_rows})
    scored = [{"ids": ids, "log_probabilities": scores(model, ids)} for ids in scored_texts(tokenizer)]
    windows = heldout_windows(tokenizer)
    said = [value for ids in windows for value in scores(model, ids)]
    perplexity = {"windows": windows, "perplexity": math.exp(-sum(said) / len(said))}
    write("cantor_scores.json", {**about(), "rows": [*scored, perplexity]})


if __name__ == "__main__":
    main()
