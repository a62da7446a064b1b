"""Memory strategies: decisions about conversations that are too long for a model. It calls no engine."""
