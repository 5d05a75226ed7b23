"""Expressions that mention the partition key, rewritten for an item in a bucket.

The stored partition key of such an item is the name of its bucket, but the application means its
own key. The value of this key is known, and the attribute exists exactly if the item exists. So a
condition on this key alone becomes a constant, guarded by a check that the item exists. A condition
that compares the key with other attributes compares the constant with them. Expressions that do not
mention the partition key stay as they are.
"""

from __future__ import annotations

from typing import Any

from heatsink.stores.dynamodb.wire.expressions.conditions import (
    BeginsWith,
    Between,
    Both,
    Compare,
    Condition,
    Contains,
    Either,
    Exists,
    HasType,
    Negation,
    OneOf,
    are_ordered,
)
from heatsink.stores.dynamodb.wire.expressions.operands import (
    IfNotExists,
    ListAppend,
    Path,
    Placeholder,
    Scope,
    Size,
    Sum,
)
from heatsink.stores.dynamodb.wire.expressions.parser import parse_condition, parse_update
from heatsink.stores.dynamodb.wire.expressions.reading import read_expressions
from heatsink.stores.dynamodb.wire.expressions.updates import Update
from heatsink.stores.dynamodb.wire.values import Value

from .declaration import SpreadTable
from .protocol import Body

CONDITION, UPDATE = "ConditionExpression", "UpdateExpression"
NAMES, VALUES = "ExpressionAttributeNames", "ExpressionAttributeValues"
NEVER = {"S": "\u241fhs"}  # equals no key of an application


def for_place(parameters: Body, table: SpreadTable, key: str) -> Body:
    """Return a write whose expressions see the application's partition key `key`.

    The stored partition key is another one (`room#3`), and expressions may compare or copy it.
    Raises `ValidationFailed` for an expression that DynamoDB would refuse.
    """
    changed, attribute = parameters, table.partition_key
    if isinstance(parameters.get("Expected"), dict) and attribute in parameters["Expected"]:
        expected = dict(parameters["Expected"])
        expected[attribute] = _expected(expected[attribute], key)
        changed = {**changed, "Expected": expected}
    texts = {field: parameters.get(field) for field in (UPDATE, CONDITION)}
    names, values = parameters.get(NAMES), parameters.get(VALUES)
    if not mentions(attribute, names, *texts.values()) or not is_formed(parameters):
        return changed
    given = read_expressions(names, values, texts)
    if not table.key_attributes.isdisjoint(given.nested):
        return changed  # which DynamoDB refuses
    rewriter = _Rewriter(attribute, key, names or {}, values or {})
    for field, text in texts.items():
        if text is not None:
            changed = {**changed, field: rewriter.text(field, text)}
    return {
        **{name: value for name, value in changed.items() if name not in (NAMES, VALUES)},
        **rewriter.placeholders(),
    }


def check_expressions(parameters: Body) -> None:
    """Raise `ValidationFailed` for an expression that DynamoDB would refuse."""
    if is_formed(parameters):
        texts = {field: parameters.get(field) for field in (UPDATE, CONDITION)}
        read_expressions(parameters.get(NAMES), parameters.get(VALUES), texts)


def is_formed(parameters: Body) -> bool:
    """Return whether the fields of expressions have the right types.

    DynamoDB refuses wrong ones.
    """
    if parameters.get("Expected") is not None or parameters.get("AttributeUpdates") is not None:
        return False  # which may not be mixed with expressions
    names, values = parameters.get(NAMES), parameters.get(VALUES)
    for given, kind in ((names, str), (values, dict)):
        if given is None:
            continue
        if not isinstance(given, dict) or any(type(one) is not kind for one in given.values()):
            return False
    texts = [
        parameters[field] for field in (CONDITION, UPDATE) if parameters.get(field) is not None
    ]
    return bool(texts) and all(isinstance(text, str) for text in texts)


def update_text(update: Update, names: dict[str, str], values: dict[str, Value]) -> str:
    """Return a parsed update as text."""
    return _Rewriter("", "", names, values)._update(update)


def mentions(attribute: str, names: Any, *texts: Any) -> bool:
    """Return whether expressions may mention an attribute. This only searches their texts."""
    if isinstance(names, dict) and attribute in names.values():
        return True
    return any(isinstance(text, str) and attribute in text for text in texts)


def _expected(given: Any, key: str) -> Any:
    """Replace a legacy condition on the partition key, `given`, by one that does not compare it.

    The result holds for the same items, since the key is known to be `key`.
    """
    if not isinstance(given, dict) or given.get("Exists") is False:
        return given
    fields = ("ComparisonOperator", "Exists", "Value", "AttributeValueList")
    operator, exists, value, listed = map(given.get, fields)
    is_wrong = (listed if operator is None else exists) is not None
    if is_wrong or (value is not None and listed is not None):
        return given  # which DynamoDB refuses
    values = [value] if value is not None else listed or []
    if operator in ("NULL", "NOT_NULL") or not values or not all(map(_is_text, values)):
        return given
    texts = [one["S"] for one in values]
    tests: dict[str, Any] = {
        "EQ": lambda: key == texts[0],
        "NE": lambda: key != texts[0],
        "LE": lambda: key <= texts[0],
        "LT": lambda: key < texts[0],
        "GE": lambda: key >= texts[0],
        "GT": lambda: key > texts[0],
        "CONTAINS": lambda: texts[0] in key,
        "NOT_CONTAINS": lambda: texts[0] not in key,
        "BEGINS_WITH": lambda: key.startswith(texts[0]),
        "IN": lambda: key in texts,
        "BETWEEN": lambda: len(texts) == 2 and texts[0] <= key <= texts[1],
    }
    operator = "EQ" if operator is None else operator
    is_valid = operator in tests and (operator in ("IN", "BETWEEN") or len(texts) == 1)
    if not is_valid or (operator == "BETWEEN" and (len(texts) != 2 or texts[0] > texts[1])):
        return given
    return _constant(tests[operator](), missing=operator in ("NE", "NOT_CONTAINS"))


def _is_text(value: Any) -> bool:
    return isinstance(value, dict) and set(value) == {"S"} and isinstance(value["S"], str)


def _constant(holds: bool, missing: bool) -> Body:
    """Return a legacy condition that is constant.

    It is `holds` for an item that exists, and `missing` for an item that does not.
    """
    if holds:
        never = {"ComparisonOperator": "NE", "AttributeValueList": [NEVER]}
        return never if missing else {"ComparisonOperator": "NOT_NULL"}
    if missing:
        return {"ComparisonOperator": "NULL"}
    return {"ComparisonOperator": "EQ", "AttributeValueList": [NEVER]}


class _Rewriter:
    """Rewrites the expressions of one request, so that they do not read the stored partition key.

    It also collects the placeholders that the new expressions use.
    """

    def __init__(
        self, attribute: str, key: str, names: dict[str, str], values: dict[str, Value]
    ) -> None:
        self._attribute = attribute
        self._names = names
        self._values = values
        self._item = {attribute: {"S": key}}
        self._added: dict[str, Value] = {}
        self._used: set[str] = set()
        self._own = Path((attribute,))
        for alias, name in names.items():
            if name == attribute:
                self._own = Path((alias,))

    def text(self, field: str, text: str) -> str:
        if field == UPDATE:
            return self._update(parse_update(text).root)
        return self._shown(self._condition(parse_condition(text, field).root))

    def placeholders(self) -> Body:
        """Return the names and values of placeholders that the new expressions use."""
        names = {name: self._names[name] for name in self._names if name in self._used}
        values = {**self._values, **self._added}
        values = {name: value for name, value in values.items() if name in self._used}
        return {**({NAMES: names} if names else {}), **({VALUES: values} if values else {})}

    def _is_own(self, operand: object) -> bool:
        if isinstance(operand, Size):
            return self._is_own(operand.of)
        if not isinstance(operand, Path) or len(operand.parts) != 1:
            return False
        return self._names.get(str(operand.parts[0]), operand.parts[0]) == self._attribute

    def _value(self, operand: Any) -> Any:
        """Replace the partition key, or its size, by a placeholder with the right value.

        Any other operand is returned unchanged.
        """
        if not self._is_own(operand):
            return operand
        name = ":hs_size" if isinstance(operand, Size) else ":hs_key"
        while name in self._values:
            name += "_"
        value = operand.value(self._item, Scope(self._names, self._values))
        assert value is not None
        self._added[name] = value
        return Placeholder(name)

    def _condition(self, node: Any) -> Any:
        if isinstance(node, Both | Either):
            return type(node)(self._condition(node.left), self._condition(node.right))
        if isinstance(node, Negation):
            return Negation(self._condition(node.of))
        operands = _operands(node)
        if isinstance(node, Exists | HasType) or not any(map(self._is_own, operands)):
            return node
        scope = Scope(self._names, self._values)
        if_missing = node.holds({}, scope)
        rest = [self._value(one) for one in operands]
        if any(isinstance(one, Path | Size) for one in rest):
            changed = _with(node, rest)
            if not self._is_contradiction(changed):
                return self._guarded(changed, if_missing)
            return self._always(False, if_missing)
        return self._always(node.holds(self._item, scope), if_missing)

    def _is_contradiction(self, node: Condition) -> bool:
        """Return whether BETWEEN has a lower bound above its upper one.

        DynamoDB would refuse that.
        """
        if not isinstance(node, Between) or not isinstance(node.low, Placeholder):
            return False
        if not isinstance(node.high, Placeholder):
            return False
        values = {**self._values, **self._added}
        return not are_ordered("<=", values[node.low.name], values[node.high.name])

    def _guarded(self, node: Condition, if_missing: bool) -> Condition:
        if if_missing:
            return Either(Exists(self._own, False), node)
        return Both(Exists(self._own, True), node)

    def _always(self, holds: bool, if_missing: bool) -> Condition:
        exists, missing = Exists(self._own, True), Exists(self._own, False)
        if holds:
            return Either(exists, missing) if if_missing else exists
        return missing if if_missing else Both(exists, missing)

    def _update(self, update: Update) -> str:
        """Return an update as text.

        Where the update copies the partition key, it copies the application's key. Sums and
        list_append refuse any text, so they stay as they are.
        """
        sets = [(path, self._assigned(operand)) for path, operand in update.sets]
        clauses = {
            "SET": [f"{self._shown(path)} = {self._shown(value)}" for path, value in sets],
            "REMOVE": [self._shown(path) for path in update.removes],
            "ADD": [f"{self._shown(path)} {self._shown(one)}" for path, one in update.adds],
            "DELETE": [f"{self._shown(path)} {self._shown(one)}" for path, one in update.deletes],
        }
        return " ".join(f"{verb} {', '.join(parts)}" for verb, parts in clauses.items() if parts)

    def _assigned(self, operand: Any) -> Any:
        if isinstance(operand, IfNotExists):
            if self._is_own(operand.path):
                return self._value(operand.path)
            return IfNotExists(operand.path, self._assigned(operand.otherwise))
        return self._value(operand)

    def _shown(self, node: Any) -> str:
        """Return a node as text."""
        if isinstance(node, Path):
            self._used.update(str(part) for part in node.parts)
            first, *rest = node.parts
            return f"{first}" + "".join(
                f"[{part}]" if isinstance(part, int) else f".{part}" for part in rest
            )
        if isinstance(node, Placeholder):
            self._used.add(node.name)
            return node.name
        if isinstance(node, Both | Either):
            word = "AND" if isinstance(node, Both) else "OR"
            return f"{self._in_group(node.left)} {word} {self._in_group(node.right)}"
        if isinstance(node, Negation):
            return f"NOT {self._in_group(node.of)}"
        parts = [self._shown(operand) for operand in _operands(node)]
        return _written(node, parts)

    def _in_group(self, node: Any) -> str:
        shown = self._shown(node)
        return f"({shown})" if isinstance(node, Both | Either | Negation) else shown


def _written(node: Any, parts: list[str]) -> str:
    """Return the text of a comparison, function or sum. `parts` are its operands as text."""
    if isinstance(node, Compare):
        return f"{parts[0]} {node.sign} {parts[1]}"
    if isinstance(node, Between):
        return f"{parts[0]} BETWEEN {parts[1]} AND {parts[2]}"
    if isinstance(node, OneOf):
        return f"{parts[0]} IN ({', '.join(parts[1:])})"
    if isinstance(node, Sum):
        left = f"({parts[0]})" if isinstance(node.left, Sum) else parts[0]
        return f"{left} {'+' if node.sign > 0 else '-'} {parts[1]}"
    if isinstance(node, Exists):
        return f"{'attribute_exists' if node.wanted else 'attribute_not_exists'}({parts[0]})"
    return f"{FUNCTIONS[type(node)]}({', '.join(parts)})"


FUNCTIONS: dict[type, str] = {
    HasType: "attribute_type",
    BeginsWith: "begins_with",
    Contains: "contains",
    Size: "size",
    IfNotExists: "if_not_exists",
    ListAppend: "list_append",
}


def _operands(node: Any) -> list[Any]:
    if isinstance(node, OneOf):
        return [node.subject, *node.options]
    fields = [name for name in node.__struct_fields__ if name not in ("sign", "wanted")]
    return [getattr(node, name) for name in fields]


def _with(node: Any, operands: list[Any]) -> Any:
    if isinstance(node, OneOf):
        return OneOf(operands[0], tuple(operands[1:]))
    if isinstance(node, Compare):
        return Compare(node.sign, *operands)
    return type(node)(*operands)
