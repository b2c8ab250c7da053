"""Checks a Grafana dashboard against the models of Grafana's SDK: no unknown keys, and values of the declared types."""

import enum
import json
import sys
import typing

from grafana_foundation_sdk.cog import encoder, plugins
from grafana_foundation_sdk.models import dashboard

plugins.register_default_plugins()


def compare(path, written, understood):
    """Yields the keys that the models do not know, which are lost when they write the dashboard."""
    if isinstance(written, dict):
        for key, value in written.items():
            if not isinstance(understood, dict) or key not in understood:
                yield f"{path}: unknown key {key!r}"
            else:
                yield from compare(f"{path}.{key}", value, understood[key])
    elif isinstance(written, list):
        for at, value in enumerate(written):
            yield from compare(f"{path}[{at}]", value, understood[at])


def check(path, value, kind):
    """Yields the values that are not of their declared types."""
    origin, of = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Union:
        results = [list(check(path, value, each)) for each in of]
        yield from [] if [] in results else results[0]
    elif origin is list:
        if not isinstance(value, list):
            yield f"{path}: {value!r} is not a list"
            return
        for at, each in enumerate(value):
            yield from check(f"{path}[{at}]", each, of[0])
    elif isinstance(kind, type) and issubclass(kind, enum.Enum):
        if value not in [each.value for each in kind]:
            yield f"{path}: {value!r} is not one of {[each.value for each in kind]}"
    elif hasattr(value, "from_json"):
        module = sys.modules[type(value).__module__]
        for name, each in typing.get_type_hints(type(value), vars(module)).items():
            if hasattr(value, name):
                yield from check(f"{path}.{name}", getattr(value, name), each)
    elif kind in (str, int, bool, type(None), float):
        if not isinstance(value, (int, float) if kind is float else kind):
            yield f"{path}: {value!r} is not of type {kind.__name__}"


with open(sys.argv[1]) as file:
    written = json.load(file)
model = dashboard.Dashboard.from_json(written)
understood = json.loads(encoder.JSONEncoder().encode(model))
problems = [*compare("dashboard", written, understood), *check("dashboard", model, dashboard.Dashboard)]
sys.exit("\n".join(problems) or 0)
