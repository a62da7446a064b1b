"""Model files on a hub: their names (`reference`), the local cache (`cache`), downloads (`download`), and
errors (`errors`)."""
