"""C++ sources of the native runtime; `bow.runtime` builds them when they are first used."""
