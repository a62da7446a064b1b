"""Records what transformers computes with a small random encoder, for the tests of embeddings.

Writes tests/fixtures/encoder: the encoder in transformers' format, and vectors.json with the texts, their
token ids, and their vectors under each pooling. It needs its own environment:

    python3 -m venv recording && recording/bin/pip install torch==2.13.0 transformers==5.23.0
    recording/bin/python models/encoder/record.py
"""

import json
from pathlib import Path

import torch
import transformers
from transformers import BertConfig, BertModel, BertTokenizer

OUT = Path("tests/fixtures/encoder")
WIDTH, LAYERS, HEADS, HIDDEN, POSITIONS = 64, 2, 4, 128, 96
WORDS = (
    "the a of to and in is it you that he was for on are with as his they at be this from have or by "
    "one had not but what all were when we there can an your which their said if do will each about "
    "how up out them then she many some so these would other into has more her two like him see time "
    "could no make than first been its who now people my made over did down only way find use may "
    "water long little very after words called just where most know"
).split()
TEXTS = (
    "the first people",
    "What can you do with this?",
    "Été, naïve, CAFÉ!",
    "words in UPPER and lower case",
    "numbers: 1, 22, 333; e-mail@example.org",
    "unknownlongword antidisestablishmentarianism",
    "水 and 火",
    "the water of the long way is very little " * 6,
    "a",
    "...",
)


def build_vocabulary() -> list[str]:
    """Returns a WordPiece vocabulary: special tokens, marks, letters, continuations, endings, words."""
    letters = "abcdefghijklmnopqrstuvwxyz0123456789"
    marks = list("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")
    endings = ["##s", "##ed", "##ing", "##er", "##ly", "##tion", "##ment"]
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces = (
        specials + marks + list(letters) + [f"##{letter}" for letter in letters] + endings + WORDS + ["水"]
    )
    return list(dict.fromkeys(pieces))


def pool_vectors(hidden: torch.Tensor, pooling: str) -> torch.Tensor:
    """Pools the last layer's hidden states (tokens, width) to a normalised vector."""
    vector = {"MEAN": hidden.mean(0), "CLS": hidden[0], "LAST": hidden[-1]}[pooling]
    return vector / vector.norm()


def main() -> None:
    """Saves a random encoder and records its vectors."""
    torch.manual_seed(20)
    OUT.mkdir(parents=True, exist_ok=True)
    vocabulary = build_vocabulary()
    (OUT / "vocab.txt").write_text("\n".join(vocabulary) + "\n", encoding="utf-8")
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=HIDDEN,
        max_position_embeddings=POSITIONS,
        initializer_range=0.2,
    )
    model = BertModel(config).eval()
    for parameter in model.parameters():  # make biases and norms differ from their defaults
        if parameter.dim() == 1:
            parameter.data += 0.1 * torch.randn_like(parameter)
    model.half().float().half().save_pretrained(OUT)
    model = BertModel.from_pretrained(OUT).float().eval()
    tokenizer = BertTokenizer(str(OUT / "vocab.txt"), do_lower_case=True)
    rows = []
    for text in TEXTS:
        ids = tokenizer(text)["input_ids"][:POSITIONS]
        with torch.no_grad():
            hidden = model(torch.tensor([ids])).last_hidden_state[0]
        vectors = {
            pooling: [round(value, 6) for value in pool_vectors(hidden, pooling).tolist()]
            for pooling in ("MEAN", "CLS", "LAST")
        }
        rows.append({"text": text, "ids": ids, "vectors": vectors})
    recorded = {
        "made_by": "models/encoder/record.py",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "rows": rows,
    }
    (OUT / "vectors.json").write_text(json.dumps(recorded, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
