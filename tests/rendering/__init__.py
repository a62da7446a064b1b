"""Tests of the renderer and its parts."""
