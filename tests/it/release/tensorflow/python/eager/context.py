"""The eager context; to make one is to take a GPU."""

_context = None
made = []


class Context:
    _initialized = True


def ensure_initialized():
    global _context
    if _context is None:
        made.append('context')
        _context = Context()
