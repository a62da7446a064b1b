"""The composition root of an HTTP process: builds a serving application from settings.

Only this package imports implementations. `__main__` is the process. `app_state` builds the application's
state and the adapters, `models` the engines and models, and `tenancy` the parts that exist only if keys are
on.
"""
