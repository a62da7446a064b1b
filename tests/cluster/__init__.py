"""Tests with vLLM, in the environment of `make cluster`; `make cluster-test` runs them."""
