"""From a JSON schema to nodes, refusing by name every keyword that cannot be enforced."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any
from urllib.parse import unquote

from gnomon.engine.grammar import regex
from gnomon.engine.grammar.classes import PatternUnsupported
from gnomon.engine.grammar.disjoint import disjoint
from gnomon.engine.grammar.endless import endless
from gnomon.engine.grammar.formats import FORMATS, SHORT_FORMATS
from gnomon.engine.grammar.keywords import (
    ANNOTATIONS,
    BY_TYPE,
    SchemaUnsupported,
    first_malformed,
    first_unknown,
    inferred_type,
)
from gnomon.engine.grammar.merge import merged
from gnomon.engine.grammar.nodes import (
    Anything,
    Array,
    Member,
    Node,
    Number,
    Object,
    OneOf,
    Reference,
    Simple,
    Subset,
    Text,
    Values,
)
from gnomon.engine.grammar.numbers import Bounds

_MAX_DEPTH = 64
_MAX_NODES = 20_000
_MAX_STATES = 8192
_MAX_STEPS = 1_000_000
_TYPES = ("null", "boolean", "integer", "number", "string", "object", "array")


class SchemaReader:
    """Reads one schema; ``named`` has the nodes that references lead back to."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._nodes = 0
        self._states = self._steps = 0  # of patterns
        self._open: list[str] = []
        self._recursive: set[str] = set()
        self.named: dict[str, Node] = {}

    def read(self, schema: Any, path: str = "", depth: int = 0) -> Node:
        """The node of a schema inside the root.

        Raises:
            SchemaUnsupported: a keyword cannot be enforced, or no value can satisfy the schema.
        """
        self._nodes += 1
        if depth > _MAX_DEPTH or self._nodes > _MAX_NODES:
            raise SchemaUnsupported(path, "$ref", "makes the schema too large or too deep")
        if schema is True or schema == {}:
            return Anything()
        if not isinstance(schema, Mapping):
            raise SchemaUnsupported(path, "false", "allows no value")
        unknown = first_unknown(schema)
        if unknown is not None:
            raise SchemaUnsupported(path, unknown, "is not supported in strict schemas")
        malformed = first_malformed(schema)
        if malformed is not None:
            raise SchemaUnsupported(path, *malformed)
        constraints = {word: v for word, v in schema.items() if word not in ANNOTATIONS}
        if "$ref" in constraints:
            return self._reference(constraints, path, depth)
        if "allOf" in constraints:
            return self._all_of(constraints, path, depth)
        for word in ("anyOf", "oneOf"):
            if word in constraints:
                return self._alternatives(word, constraints, path, depth)
        return self._plain(constraints, path, depth)

    # Combining keywords

    def _reference(self, schema: dict[str, Any], path: str, depth: int) -> Node:
        name = schema.pop("$ref")
        if schema:  # siblings of a reference hold as well
            target = self._target(name, path)
            return self.read(merged(target, schema, path), path, depth + 1)
        if name in self.named:
            return Reference(name)
        if name in self._open:
            self._recursive.add(name)
            return Reference(name)
        self._open.append(name)
        node = self.read(self._target(name, path), path, depth + 1)
        self._open.pop()
        if name in self._recursive:
            self.named[name] = node
            if name in self._at_once(node) or endless(self.named):
                raise SchemaUnsupported(path, "$ref", "leads back to itself without an end")
            return Reference(name)
        return node

    def _at_once(self, node: Node, seen: frozenset[str] = frozenset()) -> frozenset[str]:
        """References that a node may be, without anything around them."""
        match node:
            case OneOf(options):
                return seen.union(*(self._at_once(option, seen) for option in options))
            case Reference(name) if name not in seen:
                seen |= {name}
                return self._at_once(self.named[name], seen) if name in self.named else seen
            case _:
                return seen

    def _target(self, name: Any, path: str) -> Any:
        if not isinstance(name, str) or not name.startswith("#"):
            raise SchemaUnsupported(path, "$ref", f"names {name!r}, which is outside the schema")
        start, *steps = unquote(name[1:]).split("/")
        if start:
            raise SchemaUnsupported(
                path, "$ref", f"names {name!r}; write a path, as in '#/$defs/name'"
            )
        here: Any = self._root
        for part in steps:
            key = part.replace("~1", "/").replace("~0", "~")
            if isinstance(here, Sequence) and not isinstance(here, str) and key.isdigit():
                here = here[int(key)] if int(key) < len(here) else None
            else:
                here = here.get(key) if isinstance(here, Mapping) else None
        if here is None:
            raise SchemaUnsupported(path, "$ref", f"names {name!r}, which does not exist")
        return here

    def _resolved(self, schema: Any, path: str) -> Any:
        for _ in range(_MAX_DEPTH):
            if not isinstance(schema, Mapping) or "$ref" not in schema:
                return schema
            rest = {word: value for word, value in schema.items() if word != "$ref"}
            target = self._target(schema["$ref"], path)
            schema = merged(target, rest, path) if isinstance(target, Mapping) else target
        raise SchemaUnsupported(path, "$ref", "leads nowhere")

    def _all_of(self, schema: dict[str, Any], path: str, depth: int) -> Node:
        parts = schema.pop("allOf")
        for part in parts:
            part = self._resolved(part, path)
            if part is False:
                raise SchemaUnsupported(path, "allOf", "allows no value")
            if isinstance(part, Mapping):
                schema = merged(schema, part, path)
        return _not_plain(self.read(schema, path, depth + 1))

    def _alternatives(self, word: str, schema: dict[str, Any], path: str, depth: int) -> Node:
        options = schema.pop(word)
        nodes = []
        for at, option in enumerate(options):
            if option is False:
                continue
            if schema and option is not True:
                option = merged(schema, self._resolved(option, path), path)
            elif schema:
                option = schema
            nodes.append(self.read(option, f"{path}.{word}.{at}".lstrip("."), depth + 1))
        if not nodes:
            raise SchemaUnsupported(path, word, "allows no value")
        if word == "oneOf" and not self._exclusive(nodes):
            raise SchemaUnsupported(
                path, word, "has alternatives that a value may satisfy together; use 'anyOf'"
            )
        return nodes[0] if len(nodes) == 1 else OneOf(tuple(nodes))

    def _exclusive(self, nodes: Sequence[Node]) -> bool:
        return all(
            disjoint(a, b, self.named) for at, a in enumerate(nodes) for b in nodes[at + 1 :]
        )

    # Types

    def _plain(self, schema: dict[str, Any], path: str, depth: int) -> Node:
        if "enum" in schema or "const" in schema:
            return _values(schema, path)
        named = schema.get("type", inferred_type(schema))
        if named is None:
            return Anything()
        names = [named] if isinstance(named, str) else list(named)
        if not names:
            raise SchemaUnsupported(path, "type", "allows no value")
        if "number" in names:
            names = [name for name in names if name != "integer"]
        nodes = [self._typed(name, schema, path, depth) for name in names]
        return nodes[0] if len(nodes) == 1 else OneOf(tuple(nodes))

    def _typed(self, name: str, schema: dict[str, Any], path: str, depth: int) -> Node:
        match name:
            case "null" | "boolean":
                return Simple(name)
            case "integer" | "number":
                return _number(schema, path, whole=name == "integer")
            case "string":
                return self._text(schema, path)
            case "array":
                return self._array(schema, path, depth)
            case "object":
                return self._object(schema, path, depth)
            case _:
                raise SchemaUnsupported(path, "type", f"{name!r} is none of {', '.join(_TYPES)}")

    def _text(self, schema: dict[str, Any], path: str) -> Node:
        node = _text(schema, path)
        if node.pattern is not None:
            word = "format" if node.is_format else "pattern"
            try:
                states, steps = node.pattern.cost
            except PatternUnsupported as error:
                raise SchemaUnsupported(path, word, error.why) from None
            self._states += states
            self._steps += steps
            if self._states > _MAX_STATES or self._steps > _MAX_STEPS:
                raise SchemaUnsupported(path, word, "makes the patterns too large together")
        return node

    def _array(self, schema: dict[str, Any], path: str, depth: int) -> Node:
        items, prefix = schema.get("items", True), schema.get("prefixItems", [])
        if isinstance(items, list):  # the spelling before 2020
            items, prefix = schema.get("additionalItems", True), items
        least, most = schema.get("minItems", 0), schema.get("maxItems")
        at = f"{path}.items".lstrip(".")
        members = tuple(
            self.read(one, f"{path}.prefixItems.{n}".lstrip("."), depth + 1)
            for n, one in enumerate(prefix)
        )
        # No more members than are asked for, if a schema has positions and does not say more.
        extra = None if items is False or (prefix and items is True) else items
        node = None if extra is None or most == 0 else self.read(extra, at, depth + 1)
        if node is None and least > len(members):
            raise SchemaUnsupported(path, "minItems", "asks for more members than there are")
        if schema.get("uniqueItems") and (most is None or most > 1):
            distinct = isinstance(node, Values) and not members
            if not distinct:
                raise SchemaUnsupported(path, "uniqueItems", "is supported for enums only")
            assert isinstance(node, Values)
            return _subset(node, least, most, path)
        return Array(members, node, least, most)

    def _object(self, schema: dict[str, Any], path: str, depth: int) -> Node:
        declared = dict(schema.get("properties", {}))
        required = list(schema.get("required", []))
        extra = schema.get("additionalProperties", schema.get("unevaluatedProperties", True))
        for name in required:
            if name not in declared:
                if extra is False:
                    raise SchemaUnsupported(path, "required", f"names {name!r}, which is forbidden")
                declared[name] = extra
        members = tuple(
            Member(
                name,
                self.read(one, f"{path}.properties.{name}".lstrip("."), depth + 1),
                name in required,
            )
            for name, one in declared.items()
            if one is not False or name in required
        )
        least, most = schema.get("minProperties", 0), schema.get("maxProperties")
        free = not members and extra is not False
        if least > len(members) and not (free and least <= 1):
            raise SchemaUnsupported(
                path, "minProperties", "asks for more members than the schema declares"
            )
        at = f"{path}.additionalProperties".lstrip(".")
        other = self.read(extra, at, depth + 1) if free else None
        return Object(members, other, least, most)


def _not_plain(node: Node) -> Node:
    if isinstance(node, Object):
        return Object(node.members, node.extra, node.least, node.most, plain=False)
    return node


def _values(schema: dict[str, Any], path: str) -> Node:
    word = "const" if "const" in schema else "enum"
    values = [schema["const"]] if "const" in schema else list(schema["enum"])
    if "const" in schema and "enum" in schema:
        values = [value for value in values if value in schema["enum"]]
    named = schema.get("type")
    if named is not None:
        names = [named] if isinstance(named, str) else list(named)
        values = [value for value in values if any(_is(value, name) for name in names)]
    others = [w for words in BY_TYPE.values() for w in words if w in schema]
    if others:
        raise SchemaUnsupported(path, others[0], f"is not supported beside {word!r}")
    if not values:
        raise SchemaUnsupported(path, word, "allows no value")
    return Values(tuple(values), word)


def _is(value: Any, name: str) -> bool:
    match name:
        case "null":
            return value is None
        case "boolean":
            return isinstance(value, bool)
        case "integer":
            whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
            return whole and not isinstance(value, bool)
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "string":
            return isinstance(value, str)
        case "object":
            return isinstance(value, Mapping)
        case _:
            return isinstance(value, list)


def _number(schema: dict[str, Any], path: str, *, whole: bool) -> Node:
    def exact(word: str) -> Decimal | None:
        value = schema.get(word)
        return None if value is None or isinstance(value, bool) else Decimal(json.dumps(value))

    low, high, multiple = exact("minimum"), exact("maximum"), exact("multipleOf")
    above, below = exact("exclusiveMinimum"), exact("exclusiveMaximum")
    if multiple is not None and (multiple != int(multiple) or multiple <= 0):
        raise SchemaUnsupported(path, "multipleOf", "is supported for whole numbers only")
    low_open = above is not None and (low is None or above >= low)
    high_open = below is not None and (high is None or below <= high)
    bounds = Bounds(
        above if low_open else low, below if high_open else high, low_open, high_open, multiple
    )
    return Number(whole, bounds)


def _text(schema: dict[str, Any], path: str) -> Text:
    shortest, longest = schema.get("minLength", 0), schema.get("maxLength")
    name, source = schema.get("format"), schema.get("pattern")
    if longest is not None and longest < shortest:
        raise SchemaUnsupported(path, "maxLength", "is less than minLength")
    if name is not None and name not in FORMATS:
        raise SchemaUnsupported(path, "format", f"{name!r} is none of {', '.join(FORMATS)}")
    if name is not None and source is not None:
        raise SchemaUnsupported(path, "pattern", "is not supported beside 'format'")
    if name is None and source is None:
        return Text(shortest, longest)
    if source is None:
        name = str(name)
        source, short = f"^(?:{FORMATS[name]})$", f"^(?:{SHORT_FORMATS[name]})$"
    else:
        short = source
    return Text(pattern=regex.Pattern(source, short, shortest, longest), is_format=name is not None)


def _subset(node: Values, least: int, most: int | None, path: str) -> Node:
    """Distinct members of an enum, in its order: what ``uniqueItems`` asks for."""
    distinct = list({json.dumps(value, sort_keys=True): value for value in node.values}.values())
    if least > len(distinct):
        raise SchemaUnsupported(path, "minItems", "asks for more distinct members than there are")
    return Subset(tuple(distinct), least, most)
