"""The numbers of the recipe, in one place: the corpus that is drawn, the model's shape, the schedule."""

SEED = 20  # of the training corpus
DOCUMENTS = 120_000  # drawn for training; training goes round again when it needs more
CONTEXT = 2_048  # tokens
VOCABULARY = 2_048
WIDTH = 256
LAYERS = 6
HEADS = 8
KV_HEADS = 4
HIDDEN = 704  # of the feed-forward part; like every row a multiple of 32, as Q8_0 wants
ROPE_BASE = 10_000.0
NORM_EPSILON = 1e-5

MINUTES = 67.0  # of training; the learning rate falls to nothing at their end
STEP_TOKENS = 4_096  # a step's batch, padding included
MICRO_TOKENS = 2_048  # what is computed at once
WARMUP = 0.02  # share of the training
ASIDE = 0.2  # weight of what the assistant does not say, against 1 for what it says
MUON_RATE = 0.015  # peak learning rate of the matrices
ADAM_RATE = 2e-3  # peak learning rate of embeddings and norms

TEMPERATURE = 0.3  # sampling defaults, the ones that a bare request gets
TOP_P = 0.9
