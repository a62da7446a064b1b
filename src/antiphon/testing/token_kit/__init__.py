"""Checks whether a token engine satisfies the contract in `antiphon.engines.base`: `check_token_engine`,
`check_adapters`.

Every rule is one function that gets a `TokenProbe`. `check` has the rules about order, counts, ends, refusals
and adapters; `logprob_rules` those about log-probabilities, seeds, groups and scored prompts;
`sampling_rules` those about allowed tokens and constraints; `lifecycle_rules` those about closing and the
queue.
"""
