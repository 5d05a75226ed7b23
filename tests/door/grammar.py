"""Requests made at random from DynamoDB's grammar: every operation, valid and wrong."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from random import Random
from typing import Any

from heatsink.door.protocol import Body

from .world import TABLE

HOT = ["room", "salon é", "c"]
COLD = ["cold", "r"]
COMPARISONS = ["=", "<>", "<", "<=", ">", ">="]
LEGACY = ["EQ", "NE", "LT", "LE", "GT", "GE", "IN", "NULL", "NOT_NULL", "BETWEEN"]
LEGACY += ["BEGINS_WITH", "CONTAINS", "NOT_CONTAINS"]
RETURNED = ["NONE", "ALL_OLD", "UPDATED_OLD", "ALL_NEW", "UPDATED_NEW"]
WORDS = ["a", "b", "room", "MSG#", "x" * 40, "é", "z"]


Maker = Callable[[], str]


def text_of(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


class Grammar:
    """Makes requests. Sort keys are dated from `past_ms` before `now_ms` to a bit after it."""

    def __init__(self, rng: Random, now_ms: int, past_ms: int = 20_000) -> None:
        self.rng = rng
        self.now_ms = now_ms
        self._past_ms = past_ms
        self._recent: list[Body] = []
        self._names: Body = {}
        self._values: Body = {}

    def request(self) -> tuple[str, Body]:
        """Return an operation and its parameters."""
        makers: list[tuple[int, Any]] = [
            (12, self._put),
            (10, self._update),
            (5, self._delete),
            (8, self._get),
            (14, self._query),
            (3, self._query_index),
            (3, self._scan),
            (4, self._batch_write),
            (4, self._batch_get),
            (5, self._transact_write),
            (3, self._transact_get),
        ]
        weights, found = zip(*makers, strict=True)
        self._names, self._values = {}, {}
        operation, parameters = self.rng.choices(found, weights)[0]()
        if self.rng.random() < 0.03:
            self._break(parameters)
        return operation, parameters

    def _break(self, parameters: Body) -> None:
        """Make a request wrong in one of its fields."""
        field = self.rng.choice(sorted(parameters))
        damage: list[Any] = [None, 7, "", {}, [], {"S": "x"}, "NO SUCH", {"x": {"S": 1}}]
        if self.rng.random() < 0.5:
            del parameters[field]
        else:
            parameters[field] = self.rng.choice(damage)

    def key(self) -> Body:
        """Return a key: often one of an item that was written before."""
        rng = self.rng
        if self._recent and rng.random() < 0.65:
            return dict(rng.choice(self._recent))
        partition = rng.choice(HOT if rng.random() < 0.9 else COLD)
        key = {"pk": {"S": partition}, "sk": {"S": self.sort()}}
        self._recent = [*self._recent[-60:], key]
        return dict(key)

    def sort(self) -> str:
        rng = self.rng
        time = text_of(
            self.now_ms + rng.choice([rng.randint(-self._past_ms, 300), rng.randint(-600, 300)])
        )
        return rng.choice(
            [
                *(f"MSG#{time}#{rng.randint(0, 3)}",) * 6,
                *(f"LOG#{time}",) * 2,
                *(f"T#{rng.getrandbits(24):06x}",) * 2,
                *(f"MSG#draft{rng.randint(0, 3)}", f"MSG#D{time}", "META"),
                f"MEMBER#{rng.choice('abc')}",
            ]
        )

    def value(self, depth: int = 0) -> Body:
        rng = self.rng
        kinds: list[Any] = [
            lambda: {"S": rng.choice(WORDS)},
            lambda: {"S": rng.choice(WORDS)},
            lambda: {"N": rng.choice(["1", "2", "-3.50", "1e3", "0"])},
            lambda: {"N": str(rng.randint(0, 9))},
            lambda: {"SS": rng.sample(["a", "b", "room"], 2)},
            lambda: {"NS": ["1", "2.0"]},
            lambda: {"B": "aGk="},
            lambda: {"BOOL": rng.random() < 0.5},
            lambda: {"NULL": True},
        ]
        if depth < 2:
            kinds.append(lambda: {"L": [self.value(depth + 1) for _ in range(rng.randint(0, 2))]})
            kinds.append(lambda: {"M": {"x": self.value(depth + 1), "y": {"N": "1"}}})
        found: Body = rng.choice(kinds)()
        return found

    def item(self) -> Body:
        rng, item = self.rng, self.key()
        for name in ("a", "n", "m", "l", "tags"):
            if rng.random() < 0.6:
                item[name] = self.value()
        if rng.random() < 0.6:
            item["n"] = {"N": str(rng.randint(0, 99))}
        if rng.random() < 0.7:
            item["kind"] = {"S": rng.choice("uvw")}
        if rng.random() < 0.7:
            item["score"] = {"N": str(rng.randint(0, 30))}
        if rng.random() < 0.04:
            item["big"] = {"S": "x" * rng.choice([100_000, 300_000, 390_000])}
        if rng.random() < 0.02:
            item[rng.choice(["score", "sk", "pk"])] = self.value()
        return item

    def path(self) -> str:
        rng = self.rng
        among = ["a", "n", "m", "l", "tags", "pk", "sk", "score", "kind"]
        name = rng.choices(among, [3] * 5 + [4, 1, 1, 1])[0]
        if rng.random() < 0.4:
            alias = f"#{name}"
            self._names[alias] = name
            name = alias
        if name in ("m", "#m") and rng.random() < 0.5:
            return f"{name}.x"
        if name in ("l", "#l") and rng.random() < 0.5:
            return f"{name}[0]"
        if rng.random() < 0.02:
            return f"{name}.x"
        return str(name)

    def placed(self, value: Body | None = None) -> str:
        name = f":v{len(self._values)}"
        self._values[name] = self.value() if value is None else value
        return name

    def text(self) -> str:
        return self.placed({"S": self.rng.choice([*WORDS, *HOT, "ro"])})

    def operand(self) -> str:
        rng = self.rng
        roll = rng.random()
        if roll < 0.5:
            return self.path()
        if roll < 0.6:
            return f"size({self.path()})"
        return self.text() if rng.random() < 0.6 else self.placed()

    def one_of(self, *makers: Maker) -> str:
        return self.rng.choice(makers)()

    def condition(self, depth: int = 0) -> str:
        rng = self.rng
        if depth < 2 and rng.random() < 0.35:
            word = rng.choice(["AND", "OR"])
            left, right = self.condition(depth + 1), self.condition(depth + 1)
            joined = f"{left} {word} {right}"
            return f"({joined})" if depth else joined
        if depth < 2 and rng.random() < 0.1:
            return f"NOT {self.condition(2)}"
        return self.one_of(
            lambda: f"{self.operand()} {rng.choice(COMPARISONS)} {self.operand()}",
            lambda: f"{self.path()} {rng.choice(COMPARISONS)} {self.text()}",
            lambda: f"attribute_exists({self.path()})",
            lambda: f"attribute_not_exists({self.path()})",
            lambda: f"attribute_not_exists({rng.choice(['pk', 'sk'])})",
            lambda: f"attribute_type({self.path()}, {self.placed({'S': 'S'})})",
            lambda: f"begins_with({self.path()}, {self.text()})",
            lambda: f"contains({self.path()}, {self.operand()})",
            lambda: f"{self.operand()} BETWEEN {self.operand()} AND {self.operand()}",
            lambda: f"{self.path()} IN ({self.operand()}, {self.text()})",
        )

    def assigned(self) -> str:
        return self.one_of(
            self.placed,
            self.path,
            lambda: f"if_not_exists({self.path()}, {self.placed()})",
            lambda: f"if_not_exists({self.path()}, {self.path()})",
            lambda: f"n + {self.placed({'N': '1'})}",
            lambda: f"if_not_exists(n, {self.placed({'N': '5'})}) - n",
            lambda: f"list_append(l, {self.placed({'L': [{'S': 'x'}]})})",
        )

    def update(self) -> str:
        rng, clauses = self.rng, []
        targets = ["a", "b", "n", "m", "l", "tags", "score", "kind", "#q"]
        rng.shuffle(targets)
        self._names["#q"] = rng.choice(["q", "q", "q", "pk", "sk"])
        if rng.random() < 0.75:
            pairs = [f"{targets.pop()} = {self.assigned()}" for _ in range(rng.randint(1, 2))]
            clauses.append(f"SET {', '.join(pairs)}")
        if rng.random() < 0.3:
            clauses.append(f"REMOVE {targets.pop()}")
        if rng.random() < 0.4:
            clauses.append(f"ADD {targets.pop()} {self.placed({'N': '2'})}")
        if rng.random() < 0.15:
            clauses.append(f"DELETE {targets.pop()} {self.placed({'SS': ['a']})}")
        if not any("#q" in clause for clause in clauses):
            self._names.pop("#q", None)
        return " ".join(clauses) or "SET a = pk"

    def placeholders(self) -> Body:
        found: Body = {}
        if self._names:
            found["ExpressionAttributeNames"] = dict(self._names)
        if self._values:
            found["ExpressionAttributeValues"] = dict(self._values)
        return found

    def legacy(self, names: list[str]) -> Body:
        rng, found = self.rng, {}
        for name in rng.sample(names, rng.randint(1, 2)):
            operator = rng.choice(LEGACY)
            count = {"NULL": 0, "NOT_NULL": 0, "BETWEEN": 2}.get(operator, 1)
            values = [{"S": rng.choice([*WORDS, *HOT])} for _ in range(count)]
            found[name] = {"ComparisonOperator": operator, "AttributeValueList": values}
        return found

    def expected(self, names: list[str]) -> Body:
        """Return legacy conditions: with operators, or in the older form with Value and Exists."""
        rng = self.rng
        if rng.random() < 0.5:
            return self.legacy(names)
        found: Body = {}
        for name in rng.sample(names, rng.randint(1, 2)):
            value = {"Value": {"S": rng.choice([*WORDS, *HOT])}}
            older: list[Body] = [value, value, {**value, "Exists": True}, {"Exists": False}]
            if rng.random() < 0.1:
                older = [{"Exists": True}, {**value, "Exists": False}, {}]
            found[name] = rng.choice(older)
        return found

    def _costs(self, others: Body) -> Body:
        if self.rng.random() < 0.2:
            others["ReturnConsumedCapacity"] = self.rng.choice(["TOTAL", "INDEXES", "NONE"])
        return others

    def _conditional(self, others: Body) -> Body:
        rng = self.rng
        if rng.random() < 0.15 and not others.get("UpdateExpression"):
            expected = self.expected(["pk", "a", "sk"])
            others["Expected"] = expected
            if len(expected) == 2 and rng.random() < 0.5:
                others["ConditionalOperator"] = rng.choice(["AND", "OR"])
        elif rng.random() < 0.55:
            others["ConditionExpression"] = self.condition()
            if rng.random() < 0.5:
                others["ReturnValuesOnConditionCheckFailure"] = "ALL_OLD"
        others.update(self.placeholders())
        if rng.random() < 0.1:
            others["ReturnItemCollectionMetrics"] = "SIZE"
        return self._costs(others)

    def _put(self) -> tuple[str, Body]:
        others: Body = {"Item": self.item()}
        if self.rng.random() < 0.4:
            others["ReturnValues"] = self.rng.choice(RETURNED[:2])
        return "PutItem", {"TableName": TABLE, **self._conditional(others)}

    def _delete(self) -> tuple[str, Body]:
        others: Body = {"Key": self.key()}
        if self.rng.random() < 0.4:
            others["ReturnValues"] = self.rng.choice(RETURNED[:2])
        return "DeleteItem", {"TableName": TABLE, **self._conditional(others)}

    def _update(self) -> tuple[str, Body]:
        rng, others = self.rng, Body(Key=self.key())
        if rng.random() < 0.15:
            others["AttributeUpdates"] = {
                rng.choice(["a", "n", "pk"]): {"Value": {"S": "x"}, "Action": "PUT"},
                "n2": {"Value": {"N": "1"}, "Action": "ADD"},
            }
            if rng.random() < 0.5:
                others["Expected"] = self.expected(["pk", "a"])
        else:
            others["UpdateExpression"] = self.update()
            others = self._conditional(others)
        if rng.random() < 0.7:
            others["ReturnValues"] = rng.choice(RETURNED)
        return "UpdateItem", {"TableName": TABLE, **others}

    def _projected(self, others: Body) -> None:
        rng = self.rng
        if rng.random() < 0.3:
            paths = [self.path() for _ in range(rng.randint(1, 3))]
            others["ProjectionExpression"] = ", ".join(dict.fromkeys(paths))
        elif rng.random() < 0.1:
            others["AttributesToGet"] = rng.sample(["pk", "a", "n"], 2)

    def _get(self) -> tuple[str, Body]:
        others: Body = {"Key": self.key(), "ConsistentRead": self.rng.random() < 0.5}
        self._projected(others)
        if self._names:
            others["ExpressionAttributeNames"] = self._names
        return "GetItem", {"TableName": TABLE, **self._costs(others)}

    def _query(self) -> tuple[str, Body]:
        rng = self.rng
        key = rng.choice(HOT if rng.random() < 0.9 else COLD)
        others: Body = {"ConsistentRead": rng.random() < 0.5}
        if rng.random() < 0.12:
            others["KeyConditions"] = {
                "pk": {"ComparisonOperator": "EQ", "AttributeValueList": [{"S": key}]},
                **({"sk": self._legacy_range()} if rng.random() < 0.7 else {}),
            }
        else:
            left = rng.choice(["pk", "#k"])
            if left == "#k":
                self._names["#k"] = "pk"
            text = f"{left} = {self.placed({'S': key})}"
            of_index = rng.random() < 0.15
            if of_index:
                others["IndexName"] = rng.choice(["by-score", "by-score-few", "by-pk"])
            if rng.random() < 0.7:
                text = f"{text} AND {self._scores() if of_index else self._range('sk')}"
            others["KeyConditionExpression"] = text
        self._page(others, ["a", "n", "kind"])
        return "Query", {"TableName": TABLE, **others}

    def _scores(self) -> str:
        rng = self.rng
        least, most = sorted([rng.randint(0, 30), rng.randint(0, 30)])
        if rng.random() < 0.5:
            return f"score {rng.choice(COMPARISONS[2:])} {self.placed({'N': str(least)})}"
        bounds = [self.placed({"N": str(one)}) for one in (least, most)]
        return f"score BETWEEN {bounds[0]} AND {bounds[1]}"

    def _range(self, name: str) -> str:
        rng = self.rng
        one, two = sorted([self.sort(), self.sort()])
        bound = rng.choice([one, "MSG#", "MSG#2026", "LOG#", "T#", "M"])
        return self.one_of(
            lambda: f"{name} {rng.choice(COMPARISONS[2:])} {self.placed({'S': bound})}",
            lambda: f"{name} = {self.placed(self.key()['sk'])}",
            lambda: f"begins_with({name}, {self.placed({'S': bound})})",
            lambda: f"begins_with({name}, {self.placed({'S': 'MSG#'})})",
            lambda: f"{name} BETWEEN {self.placed({'S': one})} AND {self.placed({'S': two})}",
        )

    def _legacy_range(self) -> Body:
        rng = self.rng
        operator = rng.choice(["EQ", "LT", "LE", "GT", "GE", "BEGINS_WITH", "BETWEEN", "NE"])
        values = sorted([self.sort(), self.sort()])
        if operator != "BETWEEN":
            values = [
                rng.choice([values[0], "MSG#", "MSG#2026", "LOG#", "T#", self.key()["sk"]["S"]])
            ]
        given = [{"S": value} for value in values]
        return {"ComparisonOperator": operator, "AttributeValueList": given}

    def _page(self, others: Body, filtered: list[str]) -> None:
        """Add filter, projection, limit and order to a query or a scan."""
        rng = self.rng
        is_legacy = "KeyConditions" in others
        if rng.random() < 0.35 and not is_legacy:
            field = "FilterExpression"
            others[field] = self.condition() if rng.random() < 0.3 else f"n > {self.placed()}"
        elif rng.random() < 0.1 and not self._names and not self._values:
            field = "ScanFilter" if "sk" in filtered else "QueryFilter"
            others[field] = self.legacy(filtered)
        if not is_legacy:
            self._projected(others)
        if rng.random() < 0.12:
            others["Select"] = rng.choice(
                ["COUNT", "ALL_ATTRIBUTES", "SPECIFIC_ATTRIBUTES", "ALL_PROJECTED_ATTRIBUTES"]
            )
        if rng.random() < 0.5:
            others["Limit"] = rng.choice([1, 2, 3, 7, 20])
        if rng.random() < 0.4 and "sk" not in filtered:
            others["ScanIndexForward"] = False
        self._costs(others)
        others.update(self.placeholders())

    def _query_index(self) -> tuple[str, Body]:
        rng = self.rng
        text = f"kind = {self.placed({'S': rng.choice('uvw')})}"
        if rng.random() < 0.5:
            text += f" AND score {rng.choice(COMPARISONS[2:])} {self.placed({'N': '12'})}"
        others: Body = {"IndexName": "by-kind", "KeyConditionExpression": text}
        self._page(others, ["a", "n", "pk"])
        return "Query", {"TableName": TABLE, **others}

    def _scan(self) -> tuple[str, Body]:
        rng, others = self.rng, Body()
        if rng.random() < 0.2:
            others["IndexName"] = rng.choice(["by-kind", "by-score", "by-score-few"])
        if rng.random() < 0.2:
            others.update(Segment=rng.randint(0, 2), TotalSegments=3)
        self._page(others, ["a", "n", "pk", "sk"])
        return "Scan", {"TableName": TABLE, **others}

    def _batch_write(self) -> tuple[str, Body]:
        writes: list[Body] = []
        for _ in range(self.rng.choice([1, 3, 6, 25 if self.rng.random() < 0.3 else 2])):
            if self.rng.random() < 0.7:
                writes.append({"PutRequest": {"Item": self.item()}})
            else:
                writes.append({"DeleteRequest": {"Key": self.key()}})
        others: Body = {"RequestItems": {TABLE: writes}}
        if self.rng.random() < 0.1:
            others["ReturnItemCollectionMetrics"] = "SIZE"
        return "BatchWriteItem", self._costs(others)

    def _batch_get(self) -> tuple[str, Body]:
        keys = [self.key() for _ in range(self.rng.randint(1, 8))]
        if self.rng.random() < 0.9:
            keys = [key for number, key in enumerate(keys) if key not in keys[:number]]
        wanted: Body = {"Keys": keys, "ConsistentRead": self.rng.random() < 0.5}
        self._projected(wanted)
        if self._names:
            wanted["ExpressionAttributeNames"] = self._names
        return "BatchGetItem", self._costs({"RequestItems": {TABLE: wanted}})

    def _transact_write(self) -> tuple[str, Body]:
        actions = []
        for _ in range(self.rng.randint(1, 4)):
            self._names, self._values = {}, {}
            actions.append(self._action())
        others: Body = {"TransactItems": actions}
        if self.rng.random() < 0.3:
            others["ClientRequestToken"] = f"t{self.rng.randint(0, 40)}"
        return "TransactWriteItems", self._costs(others)

    def _action(self) -> Body:
        rng = self.rng
        verb = rng.choice(["Put", "Update", "Delete", "ConditionCheck"])
        given: Body = {"TableName": TABLE}
        if verb == "Put":
            given["Item"] = self.item()
        else:
            given["Key"] = self.key()
        if verb == "Update":
            given["UpdateExpression"] = self.update()
        if verb == "ConditionCheck" or rng.random() < 0.4:
            given["ConditionExpression"] = self.condition()
            if rng.random() < 0.5:
                given["ReturnValuesOnConditionCheckFailure"] = "ALL_OLD"
        return {verb: {**given, **self.placeholders()}}

    def _transact_get(self) -> tuple[str, Body]:
        actions = []
        for _ in range(self.rng.randint(1, 4)):
            self._names = {}
            given: Body = {"TableName": TABLE, "Key": self.key()}
            if self.rng.random() < 0.3:
                given["ProjectionExpression"] = self.path()
            if self._names:
                given["ExpressionAttributeNames"] = self._names
            actions.append({"Get": given})
        return "TransactGetItems", self._costs({"TransactItems": actions})
