"""Ingest: reads the text of documents and splits it into the chunks of a knowledge table. It stores
nothing."""
