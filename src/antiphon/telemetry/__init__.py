"""What the server says about itself: log records and counters. Never a prompt, an answer or a credential."""
