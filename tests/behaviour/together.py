"""Work in several threads at once."""

import contextlib
import sys
import threading
import typing as tp


def in_threads(work: tp.Callable[[tp.Any], None], arguments: tp.Iterable) -> None:
  """Calls `work` with each argument in a thread of its own, and waits for all of them."""
  threads = [threading.Thread(target=work, args=(argument,)) for argument in arguments]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()


@contextlib.contextmanager
def switching_all_the_time():
  interval = sys.getswitchinterval()
  sys.setswitchinterval(1e-6)
  try:
    yield
  finally:
    sys.setswitchinterval(interval)
