"""Limits that several nodes count in one Redis or Valkey."""
