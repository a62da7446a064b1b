# Read by llama-cpp-python's build, right after it has named its project (scripts/build-native says so): of
# llama.cpp only the library is built. The build sets this in the cache, which a plain variable goes before.
set(LLAMA_BUILD_COMMON OFF)
