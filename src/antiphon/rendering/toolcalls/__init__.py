"""Calls of functions as models write them: which notation a model has (`families`), the constraint that keeps
it to that (`layout`), and from its text to calls as it comes (`reading`, `objects`, `hearing`)."""
