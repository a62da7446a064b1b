"""Train cantor from scratch on this machine's cores: the legs of recipe.py, for their minutes.

Matrices learn by Muon (momentum whose update is made orthogonal by Newton-Schulz steps; Keller Jordan, 2024),
embeddings and norms by AdamW. Documents are drawn as they are needed and batched with others of about their
length, so there is next to no padding and no document sees another. Time is the sum of the steps' own times,
so a run that is paused for a while loses nothing. A checkpoint goes to --out every few minutes, with the
share of fresh documents of each kind that it answers without a wrong token; --resume goes on from it.
A course ends with a mean of its last weights and of those it began with, by the course's share; that of the
last one, mean.safetensors, is shipped. --from trains a GGUF file further, by the courses that follow.
The network is compiled (which takes half a minute and a C++ compiler), but not with --plain. Its products are
in bfloat16 where the processor has units for it, which is several times as fast; weights, sums and attention
stay float32.
Command: `python -m models.cantor.train --out weights`, or `--from cantor.gguf` too to go on with a file.
"""

import argparse
import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional

from models.cantor import recipe
from models.cantor.convert import reference_weights
from models.cantor.corpus import documents
from models.cantor.model import NARROW, Cantor
from models.cantor.tokens import Sample, Tokenizer

POOL = 2_000  # documents sorted by length together
WIDTH_STEP = 8  # widths of batches are multiples of it, so that the library meets few shapes
CHECKPOINT_SECONDS = 480.0
LOG_STEPS = 10
STACKED = 3  # matrices that Muon takes at once
USUAL_STEP = 1.0  # seconds, until some are known
LONGEST_STEP = 4.0  # of the usual; what a step takes beyond that it was paused, or compiled
EXAMINED = 20  # documents of each kind that a checkpoint is examined on
EXAM_SEED = 77
BEFORE = "before.safetensors"  # the weights that a course began with
MEAN = "mean.safetensors"  # what it ends with


Network = Callable[[Tensor], Tensor]
"""Hidden states (documents, positions, width) of token ids (documents, positions)."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Token ids (documents, positions), padded with 0, and how much each position's prediction counts."""

    ids: Tensor
    weights: Tensor


def width_of(sample: Sample) -> int:
    """Positions that a sample takes in a batch."""
    return -(-len(sample[0]) // WIDTH_STEP) * WIDTH_STEP


def batch_of(samples: list[Sample]) -> Batch:
    """Pad samples to the longest of them."""
    width = max(width_of(sample) for sample in samples)
    ids = torch.zeros(len(samples), width, dtype=torch.long)
    weights = torch.zeros(len(samples), width)
    for row, (tokens, counted) in enumerate(samples):
        ids[row, : len(tokens)] = torch.tensor(tokens)
        weights[row, : len(counted) - 1] = torch.tensor(counted[1:])
    return Batch(ids, weights)


def micro_batches(samples: list[Sample]) -> list[Batch]:
    """Cut samples, sorted by length, into batches of one width and of at most MICRO_TOKENS."""
    batches: list[Batch] = []
    group: list[Sample] = []
    for sample in sorted(samples, key=lambda each: len(each[0])):
        width = width_of(sample)
        if group and (width != width_of(group[0]) or width * (len(group) + 1) > recipe.MICRO_TOKENS):
            batches.append(batch_of(group))
            group = []
        group.append(sample)
    return [*batches, batch_of(group)]


def samples_of(tokenizer: Tokenizer, leg: recipe.Leg) -> Iterator[Sample]:
    """Documents of a leg as token ids, cut to the context; some are runs of tokens that come twice."""
    rng = random.Random(leg.seed)
    for document in documents(leg.seed, leg.documents, mixture=leg.mixture):
        while rng.random() < recipe.RUNS[leg.mixture]:
            yield tokenizer.repeated_run(rng)
        ids, weights = tokenizer.document(document)
        yield ids[: recipe.CONTEXT], weights[: recipe.CONTEXT]


def steps(samples: Iterator[Sample], tokens: int, rng: random.Random) -> Iterator[tuple[int, list[Batch]]]:
    """Batches in groups that make a step, with the number of samples taken so far."""
    taken = 0
    while pool := [sample for _, sample in zip(range(POOL), samples, strict=False)]:
        taken += len(pool)
        batches = micro_batches(pool)
        rng.shuffle(batches)
        group = tokens // recipe.MICRO_TOKENS
        for at in range(0, len(batches) - group + 1, group):
            yield taken, batches[at : at + group]


def loss_of(model: Cantor, hidden_of: Network, batch: Batch) -> Tensor:
    """Summed cross-entropy, weighted."""
    hidden = hidden_of(batch.ids)[:, :-1]
    weights = batch.weights[:, :-1]
    picked = weights > 0
    losses = functional.cross_entropy(
        model.logits(hidden[picked]), batch.ids[:, 1:][picked], reduction="none"
    )
    return (losses * weights[picked]).sum()


@torch.no_grad()
def exact(model: Cantor, batches: Sequence[Batch]) -> tuple[float, float]:
    """Shares of documents, and of tokens, whose every counted token is the model's first choice.

    That is what greedy decoding would write, so no text has to be generated.
    """
    whole = right = documents_seen = tokens_seen = 0
    for batch in batches:
        chosen = model.logits(model(batch.ids)[:, :-1]).argmax(-1)
        counted = batch.weights[:, :-1] >= 1
        hits = (chosen == batch.ids[:, 1:]) & counted
        whole += int((hits.sum(1) == counted.sum(1)).sum())
        right += int(hits.sum())
        documents_seen += len(batch.ids)
        tokens_seen += int(counted.sum())
    return whole / documents_seen, right / tokens_seen


def orthogonal(updates: Tensor) -> Tensor:
    """Five Newton-Schulz steps towards the nearest orthogonal matrices; wide ones, in a stack."""
    a, b, c = 3.4445, -4.7750, 2.0315
    matrix = (updates / (updates.norm(dim=(1, 2), keepdim=True) + 1e-7)).to(NARROW)
    for _ in range(5):
        gram = matrix @ matrix.transpose(1, 2)
        matrix = torch.baddbmm(matrix, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), matrix, beta=a)
    return matrix.float()


class Muon:
    """Muon over matrices, those of one shape at once; holds their momentum."""

    def __init__(self, matrices: Sequence[Tensor], momentum: float = 0.95, decay: float = 0.01) -> None:
        self.momentum, self.decay = momentum, decay
        shapes = sorted({tuple(sorted(matrix.shape)) for matrix in matrices})
        self.groups = [
            [matrix for matrix in matrices if tuple(sorted(matrix.shape)) == shape] for shape in shapes
        ]
        self.buffers = [
            torch.zeros(len(group), *shape) for group, shape in zip(self.groups, shapes, strict=True)
        ]

    def parts(self) -> Iterator[Callable[[float], None]]:
        """One update from the gradients, in parts that may run side by side; each takes the rate."""
        for group, buffer in zip(self.groups, self.buffers, strict=True):
            for at in range(0, len(group), STACKED):
                yield partial(self._update, group[at : at + STACKED], buffer[at : at + STACKED])

    @torch.no_grad()
    def _update(self, group: Sequence[Tensor], buffer: Tensor, rate: float) -> None:
        gradient = torch.stack([_wide(matrix.grad) for matrix in group])
        buffer.lerp_(gradient, 1 - self.momentum)
        updates = orthogonal(gradient.lerp_(buffer, self.momentum))
        for matrix, update in zip(group, updates, strict=True):
            tall = matrix.shape[0] > matrix.shape[1]
            scale = max(1.0, matrix.shape[0] / matrix.shape[1]) ** 0.5
            matrix.mul_(1 - rate * self.decay).add_(update.T if tall else update, alpha=-rate * scale)


def _wide(matrix: Tensor | None) -> Tensor:
    assert matrix is not None
    return matrix.T if matrix.shape[0] > matrix.shape[1] else matrix


def schedule(seconds: float) -> float:
    """Share of the highest learning rate: in each course a short rise, a plateau, then a straight fall."""
    *others, last = recipe.COURSES
    for course in others:
        if seconds < course.seconds:
            return _within(course, seconds)
        seconds -= course.seconds
    return _within(last, seconds)


def _within(course: recipe.Course, seconds: float) -> float:
    progress = seconds / course.seconds
    if progress < recipe.WARMUP:
        return course.peak * max(0.02, progress / recipe.WARMUP)
    return course.peak * min(1.0, max(0.01, (1.0 - progress) / recipe.FALL))


def replica(model: Cantor) -> Cantor:
    """Another model on the same weights, with gradients of its own."""
    made = Cantor()
    for weight, shared in zip(made.parameters(), model.parameters(), strict=True):
        weight.data = shared.data
    return made


def gradients(model: Cantor, hidden_of: Network, waiting: "SimpleQueue[Batch]", weight: float) -> float:
    """Add up the gradients of batches until none waits; returns the loss."""
    total = 0.0
    while True:
        try:
            batch = waiting.get_nowait()
        except Empty:
            return total
        loss = loss_of(model, hidden_of, batch) / weight
        loss.backward()  # type: ignore[no-untyped-call]
        total += float(loss.detach())


def gather(models: Sequence[Cantor]) -> None:
    """Bring all gradients to the first model."""
    for first, *others in zip(*(model.parameters() for model in models), strict=True):
        found = [each.grad for each in (first, *others) if each.grad is not None]
        first.grad = found[0] if len(found) == 1 else torch.stack(found).sum(0)


class Run:
    """One training run: the model, its optimizers, its clock and its log."""

    def __init__(self, out: Path, tokenizer: Tokenizer, workers: int, *, compiled: bool = True) -> None:
        torch.manual_seed(recipe.SEED)
        self.model, self.out, self.tokenizer = Cantor(), out, tokenizer
        named = list(self.model.named_parameters())
        self.muon = Muon([weight for name, weight in named if weight.ndim == 2 and "embed" not in name])
        others = [weight for name, weight in named if weight.ndim == 1 or "embed" in name]
        self.adam = torch.optim.AdamW(others, lr=recipe.ADAM_RATE, betas=(0.9, 0.98), weight_decay=0.0)
        self.clock = self.saved = self.loss = 0.0
        self.usual = USUAL_STEP
        self.tokens = self.count = self.leg = self.taken = 0
        self.exam: dict[str, list[Batch]] = {}
        self.replicas = [self.model, *(replica(self.model) for _ in range(1, workers))]
        self.networks: list[Network] = list(self.replicas)
        if compiled:
            self.networks = [torch.compile(each, dynamic=True) for each in self.replicas]
        self.pool = ThreadPoolExecutor(workers)

    def resume(self) -> None:
        """Take up the run that --out holds."""
        with safe_open(self.out / "state.safetensors", "pt") as state:
            numbers = json.loads(state.metadata()["numbers"])
            found = {name: state.get_tensor(name) for name in state.keys()}  # noqa: SIM118 - no mapping
        parts: dict[str, dict[str, Tensor]] = {"model": {}, "muon": {}, "adam": {}}
        for name, tensor in found.items():
            part, rest = name.split(".", 1)
            parts[part][rest] = tensor
        self.model.load_state_dict(parts["model"])
        self.muon.buffers = [parts["muon"][str(at)] for at in range(len(self.muon.buffers))]
        adam: dict[int, dict[str, Tensor]] = {}
        for name, tensor in parts["adam"].items():
            at, key = name.split(".")
            adam.setdefault(int(at), {})[key] = tensor
        self.adam.load_state_dict(self.adam.state_dict() | {"state": adam})
        self.clock, self.tokens, self.count = numbers["clock"], numbers["tokens"], numbers["count"]
        self.leg, self.taken, self.saved = numbers["leg"], numbers["taken"], numbers["clock"]

    def train(self) -> None:
        """The legs that are left."""
        end = 0.0
        legs = [(course, leg) for course in recipe.COURSES for leg in course.legs]
        for number, (course, leg) in enumerate(legs):
            end += 60 * leg.minutes
            if number < self.leg:
                continue
            self.taken, self.leg = self.taken if number == self.leg else 0, number
            if leg is course.legs[0] and not self.taken:
                self.save(BEFORE)
            self.exam = examination(self.tokenizer, leg.mixture)
            made = samples_of(self.tokenizer, leg)
            for _ in range(self.taken):
                next(made)
            self._leg(made, leg.tokens, end)
            self.checkpoint()
            if leg is course.legs[-1]:
                self.settle(course.kept)

    def begin(self, path: Path, before: int) -> None:
        """Take the weights of a GGUF file, and begin the course that has so many before it."""
        found = {name: torch.from_numpy(weight) for name, weight in reference_weights(path).items()}
        self.model.load_state_dict(found)
        self.leg = sum(len(course.legs) for course in recipe.COURSES[:before])
        self.clock = self.saved = sum(course.seconds for course in recipe.COURSES[:before])

    def settle(self, kept: float) -> None:
        """End a course: the mean of its weights and, by the share, of those it began with."""
        before = load_file(self.out / BEFORE)
        with torch.no_grad():
            for name, weight in self.model.named_parameters():
                weight.lerp_(before[name], kept)
        self.save(MEAN)

    def save(self, name: str) -> None:
        """Write the weights alone."""
        self.out.mkdir(parents=True, exist_ok=True)
        weights = {key: weight.detach().contiguous() for key, weight in self.model.named_parameters()}
        save_file(weights, str(self.out / name))

    def _leg(self, made: Iterator[Sample], tokens: int, end: float) -> None:
        before = self.taken
        for taken, batches in steps(made, tokens, random.Random(self.count)):
            self.taken = before + taken
            began = time.monotonic()
            self.loss += self.step(batches)
            spent = time.monotonic() - began
            spent = min(spent, LONGEST_STEP * self.usual)
            self.usual += 0.05 * (spent - self.usual)
            self.clock += spent
            self.count += 1
            if self.count % LOG_STEPS == 0:
                self.report()
            if self.clock - self.saved > CHECKPOINT_SECONDS:
                self.checkpoint()
            if self.clock > end:
                return

    def step(self, batches: list[Batch]) -> float:
        """One update; returns the mean loss of the step."""
        rate = schedule(self.clock)
        weight = sum(float(batch.weights.sum()) for batch in batches)
        waiting: SimpleQueue[Batch] = SimpleQueue()
        for batch in sorted(batches, key=lambda each: -each.ids.numel()):
            waiting.put(batch)
            self.tokens += batch.ids.numel()
        total = sum(
            self.pool.map(
                lambda model, hidden_of: gradients(model, hidden_of, waiting, weight),
                self.replicas,
                self.networks,
            )
        )
        gather(self.replicas)
        self.adam.param_groups[0]["lr"] = recipe.ADAM_RATE * rate
        self.adam.step()
        list(self.pool.map(lambda part: part(recipe.MUON_RATE * rate), self.muon.parts()))
        for each in self.replicas:
            each.zero_grad(set_to_none=True)
        return total

    def report(self) -> None:
        """One line about the last steps."""
        print(
            f"step {self.count} minute {self.clock / 60:.1f} tokens {self.tokens} "
            f"seconds/step {self.usual:.2f} loss {self.loss / LOG_STEPS:.4f}",
            flush=True,
        )
        self.loss = 0.0

    def checkpoint(self) -> None:
        """Save, and say what the model gets right."""
        self.saved = self.clock
        self.out.mkdir(parents=True, exist_ok=True)
        weights = {name: weight.detach().contiguous() for name, weight in self.model.named_parameters()}
        state = {f"model.{name}": weight for name, weight in weights.items()}
        state |= {f"muon.{at}": buffer for at, buffer in enumerate(self.muon.buffers)}
        for at, moments in self.adam.state_dict()["state"].items():
            state |= {f"adam.{at}.{key}": moment for key, moment in moments.items()}
        numbers = {"clock": self.clock, "tokens": self.tokens, "count": self.count}
        numbers |= {"leg": self.leg, "taken": self.taken}
        for name, tensors in (("model", weights), ("state", state)):
            partial_path = self.out / f"{name}.partial"
            save_file(tensors, str(partial_path), {"numbers": json.dumps(numbers)})
            partial_path.rename(self.out / f"{name}.safetensors")
        marks = {kind: exact(self.model, batches) for kind, batches in self.exam.items()}
        shown = " ".join(f"{kind} {whole:.2f}/{token:.3f}" for kind, (whole, token) in marks.items())
        print(f"checkpoint step {self.count} minute {self.clock / 60:.1f} exact {shown}", flush=True)


def examination(tokenizer: Tokenizer, mixture: str) -> dict[str, list[Batch]]:
    """Fresh documents of each kind that a mixture holds."""
    rng = random.Random(EXAM_SEED)
    made = {"runs": micro_batches([tokenizer.repeated_run(rng) for _ in range(EXAMINED)])}
    kinds = [kind for kind, weight in recipe.MIXTURES[mixture].items() if weight > 0.02]
    for kind in kinds:
        drawn = documents(EXAM_SEED, EXAMINED, mixture=kind)
        samples = [tokenizer.document(each) for each in drawn]
        made[kind] = micro_batches([sample for sample in samples if len(sample[0]) <= recipe.CONTEXT])
    return made


def main() -> None:
    """Read the command line, train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "weights")
    begin = parser.add_mutually_exclusive_group()
    begin.add_argument("--from", dest="source", type=Path, help="a GGUF file to train further")
    begin.add_argument("--resume", action="store_true", help="go on from the checkpoint in --out")
    parser.add_argument("--workers", type=int, default=2, help="batches computed side by side, a core each")
    parser.add_argument(
        "--done", type=int, default=recipe.FURTHER, help="courses that made the file of --from"
    )
    parser.add_argument(
        "--plain", action="store_true", help="do not compile: for a short course on a busy machine"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # whole batches side by side wait less for one another than halves of each
    run = Run(arguments.out, Tokenizer(), arguments.workers, compiled=not arguments.plain)
    if arguments.resume:
        run.resume()
    if arguments.source is not None:
        run.begin(arguments.source, arguments.done)
    print(f"parameters {sum(weight.numel() for weight in run.model.parameters())}", flush=True)
    run.train()


if __name__ == "__main__":
    main()
