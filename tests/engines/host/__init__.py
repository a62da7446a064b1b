"""Tests of the engine host, its client and what runs between them."""
