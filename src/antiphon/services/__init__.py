"""What operators, owners and users change and see: projects, keys, limits, prices, usage, kept requests."""
