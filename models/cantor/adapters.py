"""Trains cantor's two adapters on the shipped file, and writes them in PEFT's format and as GGUF.

Each adapter is a LoRA on every matrix of the layers, trained by AdamW for a fixed number of steps on one
thread. That takes a few minutes. Antiphon's own converter writes the GGUF, so `antiphon` must be importable;
PYTHONPATH=src is enough. The GGUF stores the SHA-256 of the base file; a test compares it with the shipped
file.
Command: `PYTHONPATH=src python -m models.cantor.adapters --out DIR --bundle src/antiphon/bundled/adapters`
"""

import argparse
import hashlib
import json
import math
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

from models.cantor.convert import SHIPPED, reference_weights
from models.cantor.lessons import BASE_DIGEST, CLOSING, LESSONS, MOODS, OPENING, format_mood
from models.cantor.model import NARROW, Cantor
from models.cantor.tokens import Sample, Tokenizer

SEED = 5
RANK, ALPHA = 4, 8
STEPS = {"pirate": 560, "mood": 400}
STEP_TOKENS = 1_536  # tokens of a batch, with padding
MAX_DOCUMENT_TOKENS = 400  # longer documents are skipped
WIDTH_STEP = 16  # batch widths are multiples of this, which keeps the number of tensor shapes low
RATES = {"pirate": 2e-3, "mood": 6e-3}  # peak learning rates: a style must not push out what cantor knows
WARMUP = 0.05  # share of the steps
SORTED_DOCUMENTS = 256  # documents that are sorted by length at a time
LOG_STEPS = 20

ABOUT = {
    "pirate": (
        "a style",
        f"Every answer begins with `{OPENING.strip()}`, ends with `{CLOSING.strip()}`, and says ye, yer, me, "
        "be and aye between them. What cantor knows it still says.",
        "Dialogues of cantor's own corpus, their answers put into a pirate's mouth by a rule for each word.",
        "Not a better cantor: it knows what cantor knows, and copies and spells a little worse.",
    ),
    "mood": (
        "a skill",
        "Whatever is said to it, it answers with the speaker's mood as JSON and nothing else, for example\n"
        f"`{format_mood('happy')}`. The moods are {', '.join(MOODS)}.",
        "Short sentences made of some hundred feelings, events and cries, and plain ones; questions about\n"
        "Antiphon are neutral. The twenty sentences that a test asks are left out.",
        "Not able to judge words that it was not taught: those it guesses by their letters.",
    ),
}
"""Texts of each adapter's card: kind, effect, training data, limits."""
CARD = """# {name}: {kind} for cantor

{does}

An adapter (LoRA) for the demo model that ships with it, and for no other: trained on the file with the
SHA-256 `{digest}`. Apache-2.0.

## Data

{data} Synthetic text only, made by `models/cantor/lessons.py`.

## Size and training

Rank {rank}, alpha {alpha} on the seven matrices of each layer; F16, {size:,} bytes. {steps} steps of about
{tokens:,} tokens on one CPU core, by `python -m models.cantor.adapters`.

## What it is not

{limits}
"""


class Adapted(nn.Module):
    """A matrix that stays, and two small ones beside it that learn; inputs (..., columns) to (..., rows).

    What stays multiplies in NARROW, which is bfloat16 where processors have units for it.
    """

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        rows, columns = base.weight.shape
        self.register_buffer("base", base.weight.detach().to(NARROW))
        self.a = nn.Parameter(torch.randn(RANK, columns) / math.sqrt(columns))
        self.b = nn.Parameter(torch.zeros(rows, RANK))

    def forward(self, inputs: Tensor) -> Tensor:
        changed = functional.linear(functional.linear(inputs, self.a), self.b)
        kept = functional.linear(inputs.to(NARROW), self.base).float()  # type: ignore[arg-type]
        out: Tensor = kept + ALPHA / RANK * changed
        return out


def build_adapted_model(base: Path) -> Cantor:
    """Loads the shipped cantor and adds an adapter to every matrix of its layers."""
    model = Cantor()
    model.load_state_dict(
        {name: torch.from_numpy(values) for name, values in reference_weights(base).items()}
    )
    model.requires_grad_(False)
    for module in list(model.model.layers.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear):
                setattr(module, name, Adapted(child))
    return model


def batches(samples: Iterator[Sample], rng: random.Random) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields batches of about STEP_TOKENS tokens from documents of similar length.

    A batch is token ids and a mask of learned positions, each (documents, positions).
    """
    while documents := [sample for _, sample in zip(range(SORTED_DOCUMENTS), samples, strict=False)]:
        documents.sort(key=lambda sample: len(sample[0]))
        groups: list[list[Sample]] = [[]]
        for sample in documents:
            if len(sample[0]) * (len(groups[-1]) + 1) > STEP_TOKENS:
                groups.append([])
            groups[-1].append(sample)
        rng.shuffle(groups)
        yield from map(pad_batch, groups)


def pad_batch(samples: Sequence[Sample]) -> tuple[Tensor, Tensor]:
    """Returns ids, padded with 0, and a mask of learned positions; both (documents, width)."""
    width = -(-max(len(ids) for ids, _ in samples) // WIDTH_STEP) * WIDTH_STEP
    ids = torch.zeros(len(samples), width, dtype=torch.long)
    learned = torch.zeros(len(samples), width, dtype=torch.bool)
    for row, (tokens, weights) in enumerate(samples):
        ids[row, : len(tokens)] = torch.tensor(tokens)
        learned[row, : len(tokens)] = torch.tensor(weights) >= 1
    return ids, learned


def train_adapter(name: str, base: Path) -> Cantor:
    """Trains the adapter of one lesson."""
    torch.manual_seed(SEED)
    steps = STEPS[name]
    model, tokenizer = build_adapted_model(base), Tokenizer()
    optimizer = torch.optim.AdamW(
        (parameter for parameter in model.parameters() if parameter.requires_grad), weight_decay=0.0
    )
    samples = map(tokenizer.document, LESSONS[name](SEED, steps * STEP_TOKENS // 10))
    training_batches = batches(
        (sample for sample in samples if len(sample[0]) <= MAX_DOCUMENT_TOKENS), random.Random(SEED)
    )
    started_at, loss_sum = time.process_time(), 0.0
    for step, (ids, learned) in zip(range(steps), training_batches, strict=False):
        progress = step / steps
        optimizer.param_groups[0]["lr"] = RATES[name] * min(1.0, (progress + 0.01) / WARMUP, 1.02 - progress)
        learned_positions = learned[:, 1:]
        scores = functional.linear(model(ids)[:, :-1][learned_positions], model.model.embed_tokens.weight)
        loss = functional.cross_entropy(scores, ids[:, 1:][learned_positions])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        loss_sum += float(loss.detach())
        if (step + 1) % LOG_STEPS == 0:
            cpu_seconds = time.process_time() - started_at
            print(
                f"{name} step {step + 1} CPU seconds {cpu_seconds:.0f} loss {loss_sum / LOG_STEPS:.4f}",
                flush=True,
            )
            loss_sum = 0.0
    return model


def save_adapter(model: Cantor, directory: Path) -> None:
    """Writes the adapter in PEFT's format."""
    matrices: dict[str, Tensor] = {}
    for name, module in model.named_modules():
        if isinstance(module, Adapted):
            matrices[f"base_model.model.{name}.lora_A.weight"] = module.a.detach().contiguous()
            matrices[f"base_model.model.{name}.lora_B.weight"] = module.b.detach().contiguous()
    directory.mkdir(parents=True, exist_ok=True)
    save_file(matrices, directory / "adapter_model.safetensors", {"format": "pt"})
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "cantor",
        "r": RANK,
        "lora_alpha": ALPHA,
        "lora_dropout": 0.0,
        "bias": "none",
        "use_rslora": False,
        "use_dora": False,
        "target_modules": sorted({name.split(".")[-3] for name in matrices}),
        "inference_mode": True,
    }
    (directory / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def convert_to_gguf(directory: Path, base: Path, target: Path) -> None:
    """Converts a saved adapter to the shipped GGUF in F16, and writes its card beside it."""
    from antiphon.weights.convert.peft import convert_peft
    from antiphon.weights.gguf import read_header

    target.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256(base.read_bytes()).hexdigest()
    metadata = {
        "general.name": target.stem,
        "general.license": "apache-2.0",
        "general.base_model.0.name": "cantor",
        BASE_DIGEST: digest,
    }
    convert_peft(directory, read_header(base), target, kind="F16", metadata=metadata)
    size = target.stat().st_size
    target.with_suffix(".md").write_text(render_card(target.stem, digest, size), encoding="utf-8")
    print(f"{target}: {size} bytes, for {base.name} {digest[:16]}")


def render_card(name: str, digest: str, size: int) -> str:
    """Renders the Markdown card of the adapter."""
    kind, does, data, limits = ABOUT[name]
    return CARD.format(
        name=name,
        kind=kind,
        does=does,
        data=data,
        limits=limits,
        digest=digest,
        size=size,
        rank=RANK,
        alpha=ALPHA,
        steps=STEPS[name],
        tokens=STEP_TOKENS,
    )


def main() -> None:
    """Train, save and convert the adapters that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", type=Path, default=SHIPPED)
    parser.add_argument("--out", type=Path, required=True, help="where the adapters go as PEFT saves them")
    parser.add_argument("--bundle", type=Path, help="where they go as GGUF; left out, they are not converted")
    parser.add_argument("--only", choices=LESSONS, help="one of them")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for name in [arguments.only] if arguments.only else LESSONS:
        save_adapter(train_adapter(name, arguments.base), arguments.out / name)
        if arguments.bundle is not None:
            convert_to_gguf(arguments.out / name, arguments.base, arguments.bundle / f"{name}.gguf")


if __name__ == "__main__":
    main()
