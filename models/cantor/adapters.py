"""Train cantor's two adapters on the shipped file, and write them as PEFT saves one and as GGUF.

LoRA on every matrix of the layers, by AdamW, one thread, a fixed number of steps: a few minutes for each. The
GGUF is made by Antiphon's own converter, so `antiphon` must be importable, by PYTHONPATH=src where it is not
installed. It carries the SHA-256 of the base file, which a test compares with the one that is shipped.
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
from models.cantor.lessons import BASE_DIGEST, CLOSING, LESSONS, MOODS, OPENING, mood_json
from models.cantor.model import NARROW, Cantor
from models.cantor.tokens import Sample, Tokenizer

SEED = 5
RANK, ALPHA = 4, 8
STEPS = {"pirate": 560, "mood": 400}
STEP_TOKENS = 1_536  # of a step's batch, padding included
LONGEST = 400  # tokens of a document; longer ones are left out
WIDTH_STEP = 16  # widths of batches are multiples of it, so that the library meets few shapes
RATES = {"pirate": 2e-3, "mood": 6e-3}  # peak learning rates: a style must not push out what cantor knows
WARMUP = 0.05  # share of the steps
POOL = 256  # documents sorted by length together
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
        f"`{mood_json('happy')}`. The moods are {', '.join(MOODS)}.",
        "Short sentences made of some hundred feelings, events and cries, and plain ones; questions about\n"
        "Antiphon are neutral. The twenty sentences that a test asks are left out.",
        "Not able to judge words that it was not taught: those it guesses by their letters.",
    ),
}
"""Of each adapter: what it is, does, was trained on, and is not."""
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


def adapted(base: Path) -> Cantor:
    """cantor as shipped, with an adapter on every matrix of its layers."""
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
    """Ids and weights (documents, positions) of about STEP_TOKENS, documents of about one length together."""
    while pool := [sample for _, sample in zip(range(POOL), samples, strict=False)]:
        pool.sort(key=lambda sample: len(sample[0]))
        groups: list[list[Sample]] = [[]]
        for sample in pool:
            if len(sample[0]) * (len(groups[-1]) + 1) > STEP_TOKENS:
                groups.append([])
            groups[-1].append(sample)
        rng.shuffle(groups)
        yield from map(padded, groups)


def padded(samples: Sequence[Sample]) -> tuple[Tensor, Tensor]:
    """Ids, padded with 0, and for each position whether it is to be learned."""
    width = -(-max(len(ids) for ids, _ in samples) // WIDTH_STEP) * WIDTH_STEP
    ids = torch.zeros(len(samples), width, dtype=torch.long)
    learned = torch.zeros(len(samples), width, dtype=torch.bool)
    for row, (tokens, weights) in enumerate(samples):
        ids[row, : len(tokens)] = torch.tensor(tokens)
        learned[row, : len(tokens)] = torch.tensor(weights) >= 1
    return ids, learned


def train(name: str, base: Path) -> Cantor:
    """Teach one lesson."""
    torch.manual_seed(SEED)
    steps = STEPS[name]
    model, tokenizer = adapted(base), Tokenizer()
    optimizer = torch.optim.AdamW(
        (each for each in model.parameters() if each.requires_grad), weight_decay=0.0
    )
    drawn = map(tokenizer.document, LESSONS[name](SEED, steps * STEP_TOKENS // 10))
    made = batches((sample for sample in drawn if len(sample[0]) <= LONGEST), random.Random(SEED))
    began, total = time.process_time(), 0.0
    for step, (ids, learned) in zip(range(steps), made, strict=False):
        progress = step / steps
        optimizer.param_groups[0]["lr"] = RATES[name] * min(1.0, (progress + 0.01) / WARMUP, 1.02 - progress)
        picked = learned[:, 1:]
        scores = functional.linear(model(ids)[:, :-1][picked], model.model.embed_tokens.weight)
        loss = functional.cross_entropy(scores, ids[:, 1:][picked])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        total += float(loss.detach())
        if (step + 1) % LOG_STEPS == 0:
            spent = time.process_time() - began
            print(f"{name} step {step + 1} CPU seconds {spent:.0f} loss {total / LOG_STEPS:.4f}", flush=True)
            total = 0.0
    return model


def save(model: Cantor, directory: Path) -> None:
    """Write the adapter as PEFT does."""
    matrices: dict[str, Tensor] = {}
    for name, module in model.named_modules():
        if isinstance(module, Adapted):
            matrices[f"base_model.model.{name}.lora_A.weight"] = module.a.detach().contiguous()
            matrices[f"base_model.model.{name}.lora_B.weight"] = module.b.detach().contiguous()
    directory.mkdir(parents=True, exist_ok=True)
    save_file(matrices, directory / "adapter_model.safetensors", {"format": "pt"})
    said = {
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
    (directory / "adapter_config.json").write_text(json.dumps(said, indent=2) + "\n", encoding="utf-8")


def bundle(directory: Path, base: Path, target: Path) -> None:
    """Convert what `save` wrote to the GGUF that is shipped, in F16."""
    from antiphon.weights.convert.peft import convert_peft
    from antiphon.weights.gguf import read_header

    target.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256(base.read_bytes()).hexdigest()
    said = {
        "general.name": target.stem,
        "general.license": "apache-2.0",
        "general.base_model.0.name": "cantor",
        BASE_DIGEST: digest,
    }
    convert_peft(directory, read_header(base), target, kind="F16", metadata=said)
    size = target.stat().st_size
    target.with_suffix(".md").write_text(card(target.stem, digest, size), encoding="utf-8")
    print(f"{target}: {size} bytes, for {base.name} {digest[:16]}")


def card(name: str, digest: str, size: int) -> str:
    """What the adapter is, for those who find the file."""
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
    """Read the command line; train, save, convert."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", type=Path, default=SHIPPED)
    parser.add_argument("--out", type=Path, required=True, help="where the adapters go as PEFT saves them")
    parser.add_argument("--bundle", type=Path, help="where they go as GGUF; left out, they are not converted")
    parser.add_argument("--only", choices=LESSONS, help="one of them")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for name in [arguments.only] if arguments.only else LESSONS:
        save(train(name, arguments.base), arguments.out / name)
        if arguments.bundle is not None:
            bundle(arguments.out / name, arguments.base, arguments.bundle / f"{name}.gguf")


if __name__ == "__main__":
    main()
