"""Sampling: draws the tokens of all rows of a step at once. A row has the logits of one sequence.

`sampling_state` has the state on which the draws of one sequence depend. `sampler` draws, and filters a
whole row if the row's largest logits are not enough. `simple_rows` draws rows of the usual kind faster.
`logits` finds the largest logits of a row without sorting the row, and computes log-probabilities. The result
of a row does not depend on the other rows, not even in its last bit.
"""

from antiphon.engines.sampling.logits import score_prompt
from antiphon.engines.sampling.sampler import DrawnToken, SampledToken, Sampler
from antiphon.engines.sampling.sampling_state import SamplingState

__all__ = ["DrawnToken", "SampledToken", "Sampler", "SamplingState", "score_prompt"]
