"""Sampling: from logits to tokens, over all rows of a step at once, for every token engine that lets Antiphon
draw.

`sampling_state` contains the state on which the draws of one sequence depend. `sampler` draws. `filters` cuts
a whole row if its largest logits do not suffice. `logits` finds the largest numbers of a row without sorting
it, and computes log-probabilities. The result of a row does not depend on the rows beside it, to the last
bit.
"""

from antiphon.engines.sampling.logits import score_prompt
from antiphon.engines.sampling.sampler import SampledToken, Sampler
from antiphon.engines.sampling.sampling_state import SamplingState

__all__ = ["SampledToken", "Sampler", "SamplingState", "score_prompt"]
