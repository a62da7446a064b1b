"""The binding to llama.cpp's C API. Modules outside this folder see no pointer.

`library` finds, opens and declares a library. `struct_layouts` recognises its binary interface. `model` and
`context` hold what the library makes.
"""
