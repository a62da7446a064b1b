"""What benchmarks/gateway.py starts: an upstream, the gateways beside each other, and the load."""
