"""Sampling: from logits to tokens, for all rows of a step at once. Every token engine that leaves the draws
to Antiphon uses it.

`sampling_state` contains the state on which the draws of one sequence depend. `sampler` draws. `filters` cuts
a whole row if the row's largest logits do not suffice. `logits` finds the largest numbers of a row without
sorting the row, and computes log-probabilities. The result of a row does not depend on the other rows, to the
last bit.
"""

from antiphon.engines.sampling.logits import score_prompt
from antiphon.engines.sampling.sampler import SampledToken, Sampler
from antiphon.engines.sampling.sampling_state import SamplingState

__all__ = ["SampledToken", "Sampler", "SamplingState", "score_prompt"]
