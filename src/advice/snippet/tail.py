

_name = os.environ.get("GPUMEM_RELEASE_SIGNAL", "").upper()
_name = _name[3:] if _name.startswith("SIG") else _name
if _name in ("USR1", "USR2", "HUP"):
    signal.signal(getattr(signal, "SIG" + _name), _ask)
