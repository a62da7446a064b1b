"""Reasoning as models write it: which notation a model has (`families`), telling it from the answer as it
comes (`thinking`), counting its tokens (`counting`), what a caller may ask of it (`effort`), and what a
constraint has to let pass before the answer (`before`)."""
