"""Model files on a hub: their names and the local cache (`cache`), downloads (`download`), and errors
(`errors`)."""
