"""The eager context. Creating a context allocates GPU memory."""

_context = None
made = []


class Context:
    _initialized = True


def ensure_initialized():
    global _context
    if _context is None:
        made.append('context')
        _context = Context()
