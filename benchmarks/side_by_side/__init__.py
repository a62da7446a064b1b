"""Parts of benchmarks/peer.py: one HTTP client, both servers, the scenarios and the report."""
