"""The composition root of an HTTP process: builds a serving application from settings.

Only this package imports implementations. `__main__` is the process. `app_state` builds the application's
state, the adapters, and the parts that exist only if keys are on. `models` builds the engines and models.
"""
