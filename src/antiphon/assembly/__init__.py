"""The composition root of an HTTP process: builds a serving application from settings.

It is the only importer of implementations. `__main__` is the process, `app_state` builds the state of the
application, `models` the engines, models and adapters, `tenancy` the parts that exist only where keys are on.
"""
