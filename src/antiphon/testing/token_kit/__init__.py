"""Whether a token engine keeps the contract in `antiphon.engines.base`: `check_token_engine`,
`check_adapters`.

Every rule is one function that gets a `TokenProbe`. `check` holds the rules about order, counts, ends and
refusals, and those of adapters; `logprob_rules` those about log-probabilities, seeds, groups and scored
prompts; `sampling_rules` those about what may be drawn, and constraints; `lifecycle_rules` those about
closing and the queue.
"""
