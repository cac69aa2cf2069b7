"""The parts of the compiled twins, one idea a module; `docs/sources.md` is the reader's map."""
