"""Schemas of function parameters: one of every kind, and many drawn ones."""

from __future__ import annotations

import random
from typing import Any

Schema = dict[str, Any]


def obj(required: list[str] | None = None, **properties: Any) -> Schema:
    schema: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
    schema["required"] = list(properties) if required is None else required
    return schema


STRING: Schema = {"type": "string"}
INTEGER: Schema = {"type": "integer"}
NUMBER: Schema = {"type": "number"}
BOOLEAN: Schema = {"type": "boolean"}
NULL: Schema = {"type": "null"}
TREE: Schema = {
    **obj(root={"$ref": "#/$defs/node"}),
    "$defs": {
        "node": obj(
            ["value"], value=INTEGER, children={"type": "array", "items": {"$ref": "#/$defs/node"}}
        )
    },
}
LINKED: Schema = {
    **obj(head={"$ref": "#/$defs/cell"}),
    "$defs": {"cell": obj(v=STRING, next={"anyOf": [{"$ref": "#/$defs/cell"}, NULL]})},
}

VALUES: dict[str, Schema] = {
    "string": STRING,
    "integer": INTEGER,
    "number": NUMBER,
    "boolean": BOOLEAN,
    "null": NULL,
    "short": {"type": "string", "maxLength": 3},
    "long": {"type": "string", "minLength": 10},
    "between": {"type": "string", "minLength": 2, "maxLength": 5},
    "empty": {"type": "string", "maxLength": 0},
    "positive": {"type": "integer", "minimum": 1},
    "negative": {"type": "integer", "maximum": -1},
    "die": {"type": "integer", "minimum": 1, "maximum": 6},
    "wide": {"type": "integer", "minimum": -1234, "maximum": 98765},
    "open": {"type": "integer", "exclusiveMinimum": 10, "exclusiveMaximum": 12},
    "even": {"type": "integer", "multipleOf": 2, "minimum": 0, "maximum": 40},
    "seven": {"type": "integer", "multipleOf": 7},
    "latitude": {"type": "number", "minimum": -90, "maximum": 90},
    "share": {"type": "number", "minimum": 0, "maximum": 1},
    "open share": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    "narrow": {"type": "number", "minimum": 0.25, "maximum": 0.5},
    "decimal": {"type": "number", "minimum": -2.75, "exclusiveMaximum": 3.125},
    "above": {"type": "number", "exclusiveMinimum": 99.5},
    "below": {"type": "number", "maximum": -0.001},
    "enum": {"type": "string", "enum": ["red", "green", "blue"]},
    "enum of numbers": {"enum": [1, 2.5, -3]},
    "mixed enum": {"enum": ["a", 1, None, True, "1", "null", {"x": 1}, [1, "b"]]},
    "odd enum": {"type": "string", "enum": ["", " a ", "x\ny", "Ünïcode 😀", '"q"', "<b>", "]<"]},
    "const": {"const": "fixed"},
    "const number": {"const": 42},
    "nullable enum": {"type": ["string", "null"], "enum": ["x", None]},
    "date": {"type": "string", "format": "date"},
    "time": {"type": "string", "format": "time"},
    "date-time": {"type": "string", "format": "date-time"},
    "duration": {"type": "string", "format": "duration"},
    "email": {"type": "string", "format": "email"},
    "hostname": {"type": "string", "format": "hostname"},
    "ipv4": {"type": "string", "format": "ipv4"},
    "ipv6": {"type": "string", "format": "ipv6"},
    "uuid": {"type": "string", "format": "uuid"},
    "uri": {"type": "string", "format": "uri"},
    "plate": {"type": "string", "pattern": "^[A-Z]{1,3}-[A-Z]{1,2} [0-9]{1,4}$"},
    "code": {"type": "string", "pattern": r"^(foo|ba[rz])\d{2,4}$"},
    "sku": {"type": "string", "pattern": r"^\w+-\d{4}$"},
    "contains": {"type": "string", "pattern": "ab+c"},
    "prefix": {"type": "string", "pattern": "^v[0-9]"},
    "escaped": {"type": "string", "pattern": r'^[\\/"\]]{2}\.\s$'},
    "negated": {"type": "string", "pattern": "^[^a-z<]{3}$"},
    "strings": {"type": "array", "items": STRING},
    "integers": {"type": "array", "items": INTEGER, "minItems": 1},
    "pair": {"type": "array", "items": NUMBER, "minItems": 2, "maxItems": 2},
    "no items": {"type": "array", "maxItems": 0},
    "any items": {"type": "array"},
    "matrix": {"type": "array", "items": {"type": "array", "items": INTEGER}},
    "tuple": {"type": "array", "prefixItems": [STRING, INTEGER], "items": False, "minItems": 2},
    "open tuple": {"type": "array", "prefixItems": [INTEGER], "items": STRING, "maxItems": 4},
    "set": {"type": "array", "items": {"enum": ["a", "b", "c"]}, "uniqueItems": True,
            "minItems": 1},
    "enums": {"type": "array", "items": {"enum": [1, "1", None]}, "maxItems": 3},
    "object": obj(a=STRING, b=INTEGER),
    "optional": obj(["b"], a=STRING, b=INTEGER, c=BOOLEAN),
    "all optional": obj([], a=STRING, b=INTEGER),
    "at least one": {**obj([], a=STRING, b=INTEGER, c=NULL), "minProperties": 1},
    "at most one": {**obj([], a=STRING, b=INTEGER, c=NULL), "maxProperties": 1},
    "empty object": obj(),
    "any object": {"type": "object"},
    "map": {"type": "object", "additionalProperties": INTEGER},
    "map of lists": {"type": "object", "additionalProperties": {"type": "array", "items": STRING}},
    "one or more": {"type": "object", "additionalProperties": STRING, "minProperties": 1},
    "undeclared": {"type": "object", "required": ["x"], "additionalProperties": INTEGER},
    "open object": {"type": "object", "properties": {"a": STRING}, "required": ["a"]},
    "deep": obj(a=obj(b=obj(c=obj(d={"type": "array", "items": obj(e=INTEGER)})))),
    "odd keys": obj(**{"a b": STRING, "ключ": INTEGER, "x-y.z": BOOLEAN, "$ref": NULL}),
    "keys of tags": obj(**{"a>b": STRING, "/c": INTEGER, "": BOOLEAN, "tool_call": NULL}),
    "item": obj(item=STRING),
    "items": {"type": "array", "items": obj(item={"type": "array", "items": STRING})},
    "objects": {"type": "array", "items": obj(id=INTEGER, tags={"type": "array", "items": STRING})},
    "optional string": {"anyOf": [STRING, NULL]},
    "nullable": {"type": ["string", "null"]},
    "nullable integer": {"type": ["integer", "null"]},
    "string or number": {"type": ["string", "number"]},
    "string or small": {"anyOf": [STRING, {"type": "integer", "minimum": 1, "maximum": 9}]},
    "string or list": {"anyOf": [STRING, {"type": "array", "items": STRING}]},
    "string or object": {"anyOf": [{"type": "string", "minLength": 2}, obj(a=INTEGER)]},
    "scalar": {"type": ["string", "number", "boolean", "null"]},
    "two objects": {"anyOf": [obj(a=STRING), obj(a=INTEGER, b=STRING)]},
    "list or null": {"anyOf": [{"type": "array", "items": INTEGER}, NULL]},
    "date or number": {"anyOf": [{"type": "string", "format": "date"}, {"type": "integer",
                                                                       "minimum": 0}]},
    "shapes": {"oneOf": [obj(kind={"const": "circle"}, r=NUMBER),
                         obj(kind={"const": "square"}, side=NUMBER)]},
    "kinds": {"oneOf": [STRING, INTEGER, {"type": "array", "items": BOOLEAN}]},
    "shared limits": {"type": "string", "anyOf": [{"maxLength": 2}, {"minLength": 5}]},
    "all": {"allOf": [{"type": "integer"}, {"minimum": 3}, {"maximum": 5}]},
    "all objects": {"allOf": [{"type": "object", "properties": {"a": STRING}, "required": ["a"]},
                              {"type": "object", "properties": {"b": INTEGER},
                               "required": ["b"]}]},
    "anything": {},
    "described": {"description": "whatever", "title": "W", "default": 3},
    "no type": {"minLength": 3},
    "no type minimum": {"minimum": 3},
    "no type items": {"items": INTEGER, "minItems": 1},
    "no type object": {"properties": {"a": INTEGER}, "required": ["a"]},
    "list of anything": {"type": "array", "items": {}, "minItems": 1},
    "object of anything": obj(a={}),
    "union list": {"type": "array", "items": {"anyOf": [INTEGER, STRING]}, "minItems": 1},
    "nested union": {"anyOf": [{"anyOf": [INTEGER, NULL]}, {"anyOf": [BOOLEAN, STRING]}]},
}  # fmt: skip

WHOLE: dict[str, Schema] = {
    "tree": TREE,
    "linked list": LINKED,
    "no parameters": {"type": "object", "properties": {}},
    "nothing said": {},
    "two refs": {
        **obj(a={"$ref": "#/$defs/x"}, b={"$ref": "#/$defs/x"}),
        "$defs": {"x": obj(n=INTEGER)},
    },
    "old definitions": {
        **obj(["a"], a={"$ref": "#/definitions/x"}, b={"$ref": "#/definitions/y"}),
        "definitions": {"x": {"enum": ["p", "q"]}, "y": {"$ref": "#/definitions/x"}},
    },
    "ref with siblings": {
        **obj(a={"$ref": "#/$defs/x", "description": "of a", "maximum": 3}),
        "$defs": {"x": {"type": "integer", "minimum": 0}},
    },
    "tuple of draft 7": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        **obj(a={"type": "array", "items": [BOOLEAN, STRING], "additionalItems": INTEGER}),
    },
    "pointer to a property": obj(a=INTEGER, b={"$ref": "#/properties/a"}),
}


def wrapped(value: Schema) -> Schema:
    """A value's schema as the one parameter of a function."""
    return obj(value=value)


def drawn(seed: int) -> Schema:
    """A random schema of parameters, nested up to three levels."""
    rng = random.Random(seed)
    names = ["city", "days", "filter", "options", "note", "ids", "unit", "when"]

    def value(depth: int) -> Schema:
        kinds = ["leaf"] * 4 + (["array", "object", "union"] if depth else [])
        match rng.choice(kinds):
            case "array":
                least = rng.randrange(3)
                return {"type": "array", "items": value(depth - 1), "minItems": least,
                        "maxItems": least + rng.randrange(1, 3)}  # fmt: skip
            case "object":
                return members(depth - 1)
            case "union":
                return {"anyOf": [value(depth - 1), rng.choice([NULL, INTEGER, obj(z=BOOLEAN)])]}
            case _:
                return rng.choice([v for v in VALUES.values() if "type" in v and "anyOf" not in v])

    def members(depth: int) -> Schema:
        chosen = rng.sample(names, rng.randrange(1, 4))
        return obj(
            [name for name in chosen if rng.random() < 0.6],
            **{name: value(depth) for name in chosen},
        )

    return members(2)


CASES: dict[str, Schema] = {
    **{f"value: {name}": wrapped(value) for name, value in VALUES.items()},
    **{f"whole: {name}": schema for name, schema in WHOLE.items()},
    **{f"drawn: {seed}": drawn(seed) for seed in range(120)},
}
