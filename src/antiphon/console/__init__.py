"""The console: pages for a browser, which are a client of the server's own API."""
