"""The binding to llama.cpp's C API. Modules outside this folder use no native pointer.

`library` finds and opens a library, and declares its functions. `struct_layouts` recognises its binary
interface. `model` and `context` own the objects that the library makes. `placement` chooses the devices of
layers.
"""
