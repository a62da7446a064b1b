"""The features of vendors' models, and presets of vendors, as data."""
