"""What operators, owners and users do with a server: projects, keys, limits, prices, usage and kept requests."""
