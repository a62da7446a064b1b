"""The composition root of the HTTP process: settings in, a serving application out.

The only importer of implementations. `__main__` is the process, `edge` what lies between the socket and the
engines, `models` the engines and what they compute with, `keys` what there is only where keys are on.
"""
