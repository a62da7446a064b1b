"""Train cantor from scratch on this machine's cores, for a stated number of minutes.

Matrices learn by Muon (momentum whose update is made orthogonal by Newton-Schulz steps; Keller Jordan, 2024),
embeddings and norms by AdamW. Documents are batched with others of about their length, so there is next to
no padding and no document sees another. What the assistant says counts in full, and plain texts; all else
counts a little, which teaches the words. A checkpoint goes to --out every few minutes; --start takes one up.
Command: `python -m models.cantor.train --out weights`
"""

import argparse
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional

from models.cantor import recipe
from models.cantor.corpus import documents
from models.cantor.model import Cantor
from models.cantor.tokens import Tokenizer

POOL = 1_500  # documents sorted by length together
CHECKPOINT_SECONDS = 180.0
LOG_STEPS = 20
HELD_BACK = 400  # documents of another seed, for the validation loss
Sample = tuple[list[int], list[float]]


@dataclass(frozen=True, slots=True)
class Batch:
    """Token ids (documents, positions), padded with 0, and how much each position's prediction counts."""

    ids: Tensor
    weights: Tensor


def batch_of(samples: list[Sample]) -> Batch:
    """Pad samples to the longest of them."""
    width = max(len(ids) for ids, _ in samples)
    ids = torch.zeros(len(samples), width, dtype=torch.long)
    weights = torch.zeros(len(samples), width)
    for row, (tokens, counted) in enumerate(samples):
        ids[row, : len(tokens)] = torch.tensor(tokens)
        weights[row, : len(counted) - 1] = torch.tensor(counted[1:])
    return Batch(ids, weights)


def micro_batches(samples: list[Sample]) -> list[Batch]:
    """Cut samples, sorted by length, into batches of at most MICRO_TOKENS."""
    batches: list[Batch] = []
    group: list[Sample] = []
    for sample in sorted(samples, key=lambda each: len(each[0])):
        if group and len(sample[0]) * (len(group) + 1) > recipe.MICRO_TOKENS:
            batches.append(batch_of(group))
            group = []
        group.append(sample)
    return [*batches, batch_of(group)]


def steps(samples: list[Sample], rng: random.Random) -> Iterator[list[Batch]]:
    """Batches for ever, in groups that make a step; each round in another order."""
    while True:
        rng.shuffle(samples)
        for start in range(0, len(samples), POOL):
            batches = micro_batches(samples[start : start + POOL])
            rng.shuffle(batches)
            group = recipe.STEP_TOKENS // recipe.MICRO_TOKENS
            for at in range(0, len(batches) - group + 1, group):
                yield batches[at : at + group]


def loss_of(model: Cantor, batch: Batch) -> Tensor:
    """Summed cross-entropy, weighted."""
    hidden = model(batch.ids)[:, :-1]
    weights = batch.weights[:, :-1]
    picked = weights > 0
    losses = functional.cross_entropy(
        model.logits(hidden[picked]), batch.ids[:, 1:][picked], reduction="none"
    )
    return (losses * weights[picked]).sum()


def orthogonal(update: Tensor) -> Tensor:
    """Five Newton-Schulz steps towards the nearest orthogonal matrix."""
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = update.shape[0] > update.shape[1]
    matrix: Tensor = update.T if tall else update
    matrix = matrix / (matrix.norm() + 1e-7)
    for _ in range(5):
        gram = matrix @ matrix.T
        matrix = a * matrix + (b * gram + c * gram @ gram) @ matrix
    return matrix.T if tall else matrix


class Muon:
    """Muon over matrices; holds their momentum."""

    def __init__(self, matrices: Sequence[Tensor], momentum: float = 0.95, decay: float = 0.01) -> None:
        self.matrices, self.momentum, self.decay = matrices, momentum, decay
        self.buffers = [torch.zeros_like(matrix) for matrix in matrices]

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """One update from the gradients."""
        for matrix, buffer in zip(self.matrices, self.buffers, strict=True):
            gradient = matrix.grad
            assert gradient is not None
            buffer.lerp_(gradient, 1 - self.momentum)
            update = orthogonal(gradient.lerp(buffer, self.momentum))
            scale = max(1.0, matrix.shape[0] / matrix.shape[1]) ** 0.5
            matrix.mul_(1 - rate * self.decay).add_(update, alpha=-rate * scale)


def schedule(progress: float) -> float:
    """Share of the peak learning rate: a short rise, a plateau, then a straight fall over the last 60 %."""
    if progress < recipe.WARMUP:
        return max(0.02, progress / recipe.WARMUP)
    return min(1.0, max(0.01, (1.0 - progress) / 0.6))


@torch.no_grad()
def validate(model: Cantor, batches: list[Batch]) -> float:
    """Mean loss of what the assistant says in documents that are not trained on."""
    spoken = [Batch(batch.ids, (batch.weights == 1).float()) for batch in batches]
    total = sum(float(loss_of(model, batch)) for batch in spoken)
    return total / sum(float(batch.weights.sum()) for batch in spoken)


def save(model: Cantor, folder: Path) -> None:
    """Write the weights as float32 safetensors."""
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / "model.partial"
    save_file({name: weight.detach().contiguous() for name, weight in model.named_parameters()}, str(partial))
    partial.rename(folder / "model.safetensors")


class Run:
    """One training run: the model, its optimizers, its clock and its log."""

    def __init__(self, minutes: float, out: Path, start: Path | None) -> None:
        torch.manual_seed(recipe.SEED)
        self.model, self.seconds, self.out = Cantor(), minutes * 60, out
        if start is not None:
            self.model.load_state_dict(load_file(start))
        matrices = [
            weight
            for name, weight in self.model.named_parameters()
            if weight.ndim == 2 and "embed" not in name
        ]
        others = [
            weight for name, weight in self.model.named_parameters() if weight.ndim == 1 or "embed" in name
        ]
        self.muon = Muon(matrices)
        self.adam = torch.optim.AdamW(others, lr=recipe.ADAM_RATE, betas=(0.9, 0.98), weight_decay=0.0)
        self.started = self.saved = time.monotonic()
        self.tokens, self.count, self.loss = 0, 0, 0.0

    def step(self, batches: list[Batch]) -> float:
        """One update; returns the mean loss of the step."""
        rate = schedule((time.monotonic() - self.started) / self.seconds)
        weight = sum(float(batch.weights.sum()) for batch in batches)
        total = 0.0
        for batch in batches:
            loss = loss_of(self.model, batch) / weight
            loss.backward()  # type: ignore[no-untyped-call]
            total += float(loss.detach())
            self.tokens += batch.ids.numel()
        self.adam.param_groups[0]["lr"] = recipe.ADAM_RATE * rate
        self.adam.step()
        self.muon.step(recipe.MUON_RATE * rate)
        self.model.zero_grad(set_to_none=True)
        return total

    def train(self, samples: list[Sample], held_back: list[Batch], rng: random.Random) -> None:
        """Train until the minutes are over, with checkpoints and log lines between."""
        for batches in steps(samples, rng):
            self.loss += self.step(batches)
            self.count += 1
            now = time.monotonic()
            if self.count % LOG_STEPS == 0:
                self.report(now)
            if now - self.saved > CHECKPOINT_SECONDS:
                self.checkpoint(now, held_back)
            if now - self.started > self.seconds:
                break
        self.checkpoint(time.monotonic(), held_back)

    def report(self, now: float) -> None:
        """One line about the last steps."""
        elapsed = now - self.started
        print(
            f"step {self.count} minute {elapsed / 60:.1f} tokens {self.tokens} "
            f"tokens/s {self.tokens / elapsed:.0f} loss {self.loss / LOG_STEPS:.4f}",
            flush=True,
        )
        self.loss = 0.0

    def checkpoint(self, now: float, held_back: list[Batch]) -> None:
        """Save, and say the validation loss."""
        save(self.model, self.out)
        self.saved = now
        print(
            f"checkpoint step {self.count} minute {(now - self.started) / 60:.1f} "
            f"validation {validate(self.model, held_back):.4f}",
            flush=True,
        )


def main() -> None:
    """Read the command line, make the corpus, train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=recipe.MINUTES)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "weights")
    parser.add_argument("--start", type=Path, help="a checkpoint to go on from; its documents are drawn anew")
    parser.add_argument("--seed", type=int, default=recipe.SEED, help="of the order of documents")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    tokenizer = Tokenizer()
    samples = [tokenizer.document(document) for document in documents(recipe.SEED, recipe.DOCUMENTS)]
    held_back = micro_batches([tokenizer.document(each) for each in documents(recipe.SEED + 1, HELD_BACK)])
    run = Run(arguments.minutes, arguments.out, arguments.start)
    parameters = sum(weight.numel() for weight in run.model.parameters())
    print(
        f"parameters {parameters} documents {len(samples)} tokens {sum(len(ids) for ids, _ in samples)} "
        f"weight {sum(sum(weights) for _, weights in samples):.0f}",
        flush=True,
    )
    cut = [(ids[: recipe.CONTEXT], weights[: recipe.CONTEXT]) for ids, weights in samples]
    run.train(cut, held_back, random.Random(arguments.seed))


if __name__ == "__main__":
    main()
