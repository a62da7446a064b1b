"""Model files of a hub: how they are named (`reference`), kept (`cache`), fetched (`download`), and why a
fetch fails (`errors`)."""
