"""Records cantor's reference: ids from SentencePiece, greedy tokens and scores from transformers in float32.

`python -m models.cantor.reference` writes cantor_tokens.json, cantor_greedy.json and cantor_scores.json into
tests/fixtures. The reference weights are the shipped file's, widened to float32; convert.py writes the same
weights as F32 GGUF.
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
SEED = 41  # differs from the training seeds
STRING_COUNT, PROMPT_COUNT, GREEDY_TOKENS = 1_000, 50, 48
SCORED_COUNT, MAX_SCORED_TOKENS = 20, 120
HELDOUT = Path(__file__).parent / "heldout" / "questions.jsonl"
WINDOW_TOKENS, WINDOW_COUNT = 512, 4  # of the held-out text
ODD_STRINGS = (
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


def collect_strings(rng: random.Random) -> list[str]:
    """Collects ODD_STRINGS, corpus texts, random strings of ALPHABETS, and mixtures of these."""
    texts = list(ODD_STRINGS)
    for document in documents(SEED, 150):
        texts += [document.text] if document.text else [turn.content for turn in document.turns]
    texts = [text for text in texts if "/tmp" not in text]
    unique_texts = dict.fromkeys(texts[: STRING_COUNT // 2])
    while len(unique_texts) < STRING_COUNT:
        if rng.random() < 0.6:
            alphabet = rng.choice(ALPHABETS)
            unique_texts["".join(rng.choice(alphabet) for _ in range(rng.randint(1, 40)))] = None
        else:
            unique_texts[
                "".join(rng.choice(texts)[: rng.randint(1, 30)] for _ in range(rng.randint(2, 4)))
            ] = None
    return list(unique_texts)


def collect_prompts(tokenizer: Tokenizer) -> list[list[int]]:
    """Collects dialogues cut before an answer, and beginnings of plain texts; the last prompt is long."""
    prompts: list[list[int]] = []
    for document in documents(SEED + 1, 4 * PROMPT_COUNT):
        if document.turns:
            answer_index = max(index for index, turn in enumerate(document.turns) if turn.role == "assistant")
            prompts.append(tokenizer.prompt(Document(document.turns[:answer_index], document.tools)))
        else:
            prompts.append(tokenizer.document(document)[0][:8])
    prompts.sort(key=len)
    short = [ids for ids in prompts if len(ids) < 300]
    return [
        *short[:: max(1, len(short) // (PROMPT_COUNT - 1))][: PROMPT_COUNT - 1],
        prompts[-1][: recipe.CONTEXT - GREEDY_TOKENS],
    ]


def load_reference_model() -> transformers.LlamaForCausalLM:
    """Loads the widened weights into transformers' LlamaForCausalLM."""
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
def decode_greedily(
    model: transformers.LlamaForCausalLM, prompt: list[int]
) -> dict[str, list[int] | list[float]]:
    """Returns GREEDY_TOKENS greedy tokens with log-probabilities and logit gaps to the second-best token.

    End tokens do not end the sequence.
    """
    ids = torch.tensor([prompt])
    tokens, log_probabilities, gaps = [], [], []
    cache = None
    for _ in range(GREEDY_TOKENS):
        output = model(ids, past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        logits = output.logits[0, -1].double()
        top_two = torch.topk(logits, 2)
        tokens.append(int(top_two.indices[0]))
        log_probabilities.append(round(float(top_two.values[0] - torch.logsumexp(logits, -1)), 7))
        gaps.append(round(float(top_two.values[0] - top_two.values[1]), 7))
        ids = top_two.indices[None, :1]
    return {"prompt": prompt, "tokens": tokens, "log_probabilities": log_probabilities, "gaps": gaps}


@torch.no_grad()
def score_tokens(model: transformers.LlamaForCausalLM, ids: list[int]) -> list[float]:
    """Returns the log-probability of each token after the first, given its predecessors."""
    logits = model(torch.tensor([ids])).logits[0, :-1].double()
    log_probabilities = torch.log_softmax(logits, -1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
    return [round(float(value), 6) for value in log_probabilities]


def list_scored_texts(tokenizer: Tokenizer) -> list[list[int]]:
    """Returns token ids of dialogues and plain texts that differ from the greedy prompts."""
    texts = [
        tokenizer.document(document)[0][:MAX_SCORED_TOKENS]
        for document in documents(SEED + 2, 4 * SCORED_COUNT)
    ]
    return [ids for ids in texts if len(ids) > 20][:SCORED_COUNT]


def list_heldout_windows(tokenizer: Tokenizer) -> list[list[int]]:
    """Splits the held-out questions and examples into windows of token ids that each start with BOS."""
    rows = [json.loads(line) for line in HELDOUT.read_text("utf-8").splitlines()]
    ids = tokenizer.encode("\n".join(f"{row['messages'][-1]['content']} {row['example']}" for row in rows))
    return [
        [1, *ids[start : start + WINDOW_TOKENS - 1]]
        for start in range(0, WINDOW_COUNT * (WINDOW_TOKENS - 1), WINDOW_TOKENS - 1)
    ]


def describe_environment() -> dict[str, str]:
    """Returns the command and the package versions that record a fixture."""
    packages = ("torch", "transformers", "sentencepiece", "numpy")
    return {"command": COMMAND, "python": platform.python_version()} | {
        package: version(package) for package in packages
    }


def write_fixture(name: str, content: dict[str, object]) -> None:
    """Writes the content as JSON with one row per line, so that diffs stay readable."""
    path = FIXTURES / name
    path.parent.mkdir(exist_ok=True)
    head = json.dumps({key: value for key, value in content.items() if key != "rows"}, indent=1)
    rows = ",\n".join(json.dumps(row) for row in content["rows"])  # type: ignore[attr-defined]
    path.write_text(f'{head[:-2]},\n "rows": [\n{rows}\n]}}\n', encoding="utf-8")


def main() -> None:
    """Records the fixtures."""
    torch.set_num_threads(1)
    tokenizer = Tokenizer(MODEL)
    rows = [{"text": text, "ids": tokenizer.encode(text)} for text in collect_strings(random.Random(SEED))]
    assert all(3 not in row["ids"] and 4 not in row["ids"] for row in rows)
    write_fixture("cantor_tokens.json", {**describe_environment(), "rows": rows})
    model = load_reference_model()
    greedy_rows = [decode_greedily(model, prompt) for prompt in collect_prompts(tokenizer)]
    write_fixture("cantor_greedy.json", {**describe_environment(), "rows": greedy_rows})
    scored = [
        {"ids": ids, "log_probabilities": score_tokens(model, ids)} for ids in list_scored_texts(tokenizer)
    ]
    windows = list_heldout_windows(tokenizer)
    log_probabilities = [value for ids in windows for value in score_tokens(model, ids)]
    perplexity = {
        "windows": windows,
        "perplexity": math.exp(-sum(log_probabilities) / len(log_probabilities)),
    }
    write_fixture("cantor_scores.json", {**describe_environment(), "rows": [*scored, perplexity]})


if __name__ == "__main__":
    main()
