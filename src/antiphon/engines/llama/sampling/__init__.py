"""From logits to tokens: what each request asked for, over all rows of a step at once.

`drawing` holds what one sequence's draws depend on, `sampler` draws, `block` finds a row's largest logits
without sorting it, `filters` does by row what its largest logits cannot decide, `scores` says
log-probabilities. Results of a row do not depend on the rows beside it, to the last bit.
"""

from antiphon.engines.llama.sampling.drawing import Drawing
from antiphon.engines.llama.sampling.sampler import Drawn, Sampler
from antiphon.engines.llama.sampling.scores import prompt_scores

__all__ = ["Drawing", "Drawn", "Sampler", "prompt_scores"]
