"""The replicas of a Ray cluster, as far as they need no Ray."""
