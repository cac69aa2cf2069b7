"""Steps that stay in Python because their error messages are the interpreter's own."""


def unpack_pair(pair):
  key, value = pair
  return key, value
