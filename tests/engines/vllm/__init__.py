"""Tests of what needs no vLLM; tests/cluster has those that need it."""
