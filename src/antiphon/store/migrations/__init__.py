"""The migrations, one in each file. There are no downgrades."""
