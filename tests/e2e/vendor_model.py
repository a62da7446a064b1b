"""A model of a vendor on loopback, for servers of which nothing is asked that needs an engine: the process of
an engine costs a CPU second."""

VENDOR_MODEL = """
[providers.first]
kind = "openai"
base_url = "{url}"
private = true

[[models]]
name = "cantor"
routes = [{{ provider = "first", model = "fake" }}]
"""
