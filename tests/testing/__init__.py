"""Tests of the shipped doubles and conformance kits."""
