"""Limits and budgets: what is counted, and who counts it."""
