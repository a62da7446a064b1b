"""Tests of the sampler, against a slow and obvious one."""
