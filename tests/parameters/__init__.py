"""For every field that a dialect supports, two requests that differ in it alone, and what then
has to differ."""
