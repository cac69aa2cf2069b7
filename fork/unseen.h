/* Included before every compiled module: its functions stand in no traceback.

   What a user sees between his own lines are the functions of upstream's that the fronts stand for, as
   without the compiled twin. FLAX_FAST_FRAMES shows ours, for work on the twin itself.

   An exception may have no traceback then. Cython counts on one in `with`, and where an `except` block
   is left by `return`, `break` or `continue`: no .pyx has these. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#ifndef FLAX_FAST_FRAMES
#define PyTraceBack_Here(frame) ((void)(frame))
#endif
