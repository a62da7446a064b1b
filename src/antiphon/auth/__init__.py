"""Who calls: the seam of token verifiers, and the verifiers that are built."""
