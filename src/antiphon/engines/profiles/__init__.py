"""What vendors' models take and give, as data."""
