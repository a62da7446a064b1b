"""The numbers of the recipe, in one place: the corpus that is drawn, the model's shape, the schedule."""

from dataclasses import dataclass

SEED = 20  # of the weights at first
CONTEXT = 2_048  # tokens
VOCABULARY = 2_048
WIDTH = 256
LAYERS = 6
HEADS = 8
KV_HEADS = 4
HIDDEN = 704  # of the feed-forward part; like every row a multiple of 32, as Q8_0 wants
ROPE_BASE = 10_000.0
NORM_EPSILON = 1e-5

# What documents are drawn from, by kind and weight.
MIXTURES: dict[str, dict[str, float]] = {
    "copying": {"drill": 0.5, "tool_drill": 0.5},
    "mostly copying": {"drill": 0.25, "tool_drill": 0.25, "tools": 0.22, "skill": 0.1, "fact": 0.18},
    "mostly calls": {
        "fact": 0.13,
        "facts": 0.02,
        "talk": 0.03,
        "knowledge": 0.02,
        "skill": 0.12,
        "mixed": 0.02,
        "recall": 0.03,
        "obeyed": 0.05,
        "tools": 0.38,
        "text": 0.002,
        "long": 0.0003,
        "drill": 0.04,
        "tool_drill": 0.02,
        "choice": 0.2,
    },
    "plain calls": {
        "fact": 0.15,
        "facts": 0.02,
        "talk": 0.03,
        "knowledge": 0.02,
        "skill": 0.11,
        "mixed": 0.02,
        "recall": 0.03,
        "obeyed": 0.05,
        "tools": 0.43,
        "text": 0.0005,
        "long": 0.0003,
        "drill": 0.04,
        "tool_drill": 0.02,
        "choice": 0.06,
    },
    "wide calls": {
        "fact": 0.15,
        "facts": 0.02,
        "talk": 0.03,
        "knowledge": 0.015,
        "skill": 0.09,
        "mixed": 0.015,
        "recall": 0.03,
        "obeyed": 0.04,
        "tools": 0.5,
        "text": 0.0005,
        "long": 0.0003,
        "drill": 0.025,
        "tool_drill": 0.02,
        "choice": 0.05,
        "stuck": 0.025,
    },
    "added facts": {
        "fact": 0.25,
        "added": 0.3,
        "facts": 0.03,
        "talk": 0.03,
        "knowledge": 0.015,
        "skill": 0.06,
        "mixed": 0.012,
        "recall": 0.025,
        "obeyed": 0.035,
        "tools": 0.2,
        "drill": 0.008,
        "tool_drill": 0.006,
        "choice": 0.03,
        "stuck": 0.015,
    },
    "facts and calls": {
        "fact": 0.19,
        "added": 0.13,
        "facts": 0.025,
        "talk": 0.03,
        "knowledge": 0.015,
        "skill": 0.07,
        "mixed": 0.012,
        "recall": 0.025,
        "obeyed": 0.035,
        "tools": 0.42,
        "drill": 0.008,
        "tool_drill": 0.006,
        "choice": 0.07,
        "stuck": 0.02,
    },
    "new facts and calls": {
        "fact": 0.18,
        "added": 0.24,
        "facts": 0.02,
        "talk": 0.03,
        "knowledge": 0.015,
        "skill": 0.06,
        "mixed": 0.01,
        "recall": 0.025,
        "obeyed": 0.03,
        "tools": 0.36,
        "drill": 0.008,
        "tool_drill": 0.006,
        "choice": 0.06,
        "stuck": 0.016,
    },
    "all": {
        "fact": 0.25,
        "facts": 0.03,
        "talk": 0.04,
        "knowledge": 0.03,
        "skill": 0.13,
        "mixed": 0.02,
        "recall": 0.05,
        "obeyed": 0.06,
        "tools": 0.30,
        "text": 0.002,
        "long": 0.0003,
        "drill": 0.04,
        "tool_drill": 0.05,
    },
}
RUNS = {
    "copying": 0.6,
    "mostly copying": 0.5,
    "mostly calls": 0.15,
    "plain calls": 0.1,
    "wide calls": 0.06,
    "added facts": 0.02,
    "facts and calls": 0.02,
    "new facts and calls": 0.02,
    "all": 0.2,
}  # chance of repeated random tokens first


@dataclass(frozen=True, slots=True)
class Leg:
    """A part of the training: what it reads, for how long."""

    mixture: str
    minutes: float
    tokens: int  # of a step's batch, padding included
    seed: int  # of its documents
    documents: int  # at most drawn


@dataclass(frozen=True, slots=True)
class Course:
    """Legs under one learning rate schedule: a rise to its peak, a plateau, a fall to nothing."""

    peak: float  # share of MUON_RATE and ADAM_RATE
    legs: tuple[Leg, ...]
    kept: float = 0.0  # share of the weights at its start in what it ends with; such a mean knows more

    @property
    def seconds(self) -> float:
        """What its legs take."""
        return 60 * sum(leg.minutes for leg in self.legs)


COURSES = (
    Course(
        peak=1.0,
        legs=(
            Leg(mixture="copying", minutes=4.0, tokens=4_608, seed=20, documents=60_000),
            Leg(mixture="all", minutes=3.0, tokens=4_608, seed=21, documents=60_000),
            Leg(mixture="mostly copying", minutes=3.0, tokens=4_608, seed=22, documents=60_000),
            Leg(mixture="all", minutes=56.0, tokens=6_144, seed=23, documents=900_000),
        ),
    ),
    Course(
        peak=0.6,
        legs=(Leg(mixture="mostly calls", minutes=86.0, tokens=6_144, seed=24, documents=900_000),),
    ),
    Course(
        peak=0.5,
        legs=(
            Leg(mixture="plain calls", minutes=7.0, tokens=6_144, seed=25, documents=900_000),
            Leg(mixture="plain calls", minutes=49.0, tokens=6_144, seed=26, documents=900_000),
        ),
    ),
    Course(
        peak=0.5,
        legs=(
            Leg(mixture="plain calls", minutes=11.0, tokens=6_144, seed=27, documents=900_000),
            Leg(mixture="wide calls", minutes=36.0, tokens=6_144, seed=31, documents=900_000),
        ),
        kept=0.3,
    ),
    Course(
        peak=0.4,
        legs=(
            Leg(mixture="added facts", minutes=10.0, tokens=3_072, seed=32, documents=60_000),
            Leg(mixture="facts and calls", minutes=90.0, tokens=6_144, seed=33, documents=300_000),
        ),
        kept=0.15,
    ),
    Course(
        peak=0.4,
        legs=(Leg(mixture="new facts and calls", minutes=85.0, tokens=6_144, seed=34, documents=300_000),),
    ),
)
FURTHER = 5  # courses that made the seventh edition; the last one went on with its file
LEGS = tuple(leg for course in COURSES for leg in course.legs)
MICRO_TOKENS = 1_536  # what is computed at once
WARMUP = 0.01  # share of a course
FALL = 0.6  # share of a course over which the learning rate falls to nothing
ASIDE = 0.01  # weight of what the assistant does not say, against 1 for what it says
NAMED = 3.0  # weight of the name that a tool call says: the tool that was chosen
ENDED = 8.0  # weight of the end of an answer that had begun to repeat itself
SHOWN = 0.0  # weight of what the system turn shows
MUON_RATE = 0.02  # peak learning rate of the matrices
ADAM_RATE = 2e-3  # peak learning rate of embeddings and norms

TEMPERATURE = 0.0  # sampling defaults, the ones that a bare request gets
TOP_P = 0.9
