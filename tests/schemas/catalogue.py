"""Three hundred JSON schemas that between them use JSON Schema's vocabulary, in families of ten.

They are written for small models: what could go on for ever has a limit, so that an answer can end within 512 tokens. A
few use keywords that the server refuses.
"""

from __future__ import annotations

from functools import reduce
from typing import Any, NamedTuple

Schema = Any


class Case(NamedTuple):
    """A schema, and what is asked for."""

    name: str
    about: str
    schema: Schema


def obj(properties: dict[str, Schema], *required: str, **more: Any) -> Schema:
    """A closed object; without names all its properties are required."""
    names = list(required or properties)
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False, **more}


def text(most: int = 20, least: int = 1, **more: Any) -> Schema:
    return {"type": "string", "minLength": least, "maxLength": most, **more}


def whole(low: int, high: int, **more: Any) -> Schema:
    return {"type": "integer", "minimum": low, "maximum": high, **more}


def number(low: float, high: float, **more: Any) -> Schema:
    """Its digits have an end only by a step."""
    return {"type": "number", "minimum": low, "maximum": high, "multipleOf": 0.01, **more}


def some(items: Schema, most: int = 4, least: int = 0, **more: Any) -> Schema:
    return {"type": "array", "items": items, "minItems": least, "maxItems": most, **more}


def one(*values: Any) -> Schema:
    return {"enum": list(values)}


def ref(name: str) -> Schema:
    return {"$ref": f"#/$defs/{name}"}


YES = {"type": "boolean"}
NOTHING = {"type": "null"}

FAMILIES: dict[str, list[tuple[str, Schema]]] = {
    "types": [
        ("the name of a river", text(30)),
        ("how many legs a spider has", whole(0, 20)),
        ("the height of a door in metres", number(0.5, 5)),
        ("whether snow is cold", YES),
        ("nothing at all", NOTHING),
        ("a few colours", some(text(12), 3, 1)),
        ("a point on a map", obj({"x": number(-90, 90), "y": number(-90, 90)})),
        ("a word or a number", {"type": ["string", "integer"], "maxLength": 10, "minimum": 0, "maximum": 99}),
        ("a flag, or nothing", {"type": ["boolean", "null"]}),
        ("an empty list", {"type": "array", "maxItems": 0}),
    ],
    "enum": [
        ("a season", one("spring", "summer", "autumn", "winter")),
        ("a prime number", one(2, 3, 5, 7, 11)),
        ("a switch", one("on", "off", None)),
        ("a mixture", one(1, "one", True, None, 1.5)),
        ("a list from a menu", one(["tea"], ["coffee", "milk"], [])),
        ("an object from a menu", one({"size": "S"}, {"size": "M", "stock": 3})),
        ("the only answer", {"const": "forty-two"}),
        ("the only number", {"const": -7}),
        ("the only object", {"const": {"a": [1, {"b": None}], "c": ""}}),
        ("a traffic light", {"type": "string", "enum": ["red", "amber", "green"]}),
    ],
    "length": [
        ("a letter", text(1)),
        ("a code of four letters", text(4, 4)),
        ("a short word", text(6, 2)),
        ("a text that may be empty", text(10, 0)),
        ("a title", text(40, 5)),
        ("a nick name and a motto", obj({"nick": text(8, 3), "motto": text(60, 10)})),
        ("three words", some(text(9, 2), 3, 3)),
        ("a sentence", {"type": "string", "maxLength": 120}),
        ("a paragraph", text(300, 20)),
        ("words of growing length", obj({"a": text(2, 2), "b": text(4, 4), "c": text(8, 8)})),
    ],
    "pattern": [
        ("a telephone number", {"type": "string", "pattern": "^[0-9]{3}-[0-9]{4}$"}),
        ("a licence plate", {"type": "string", "pattern": "^[A-Z]{2} [0-9]{1,4}$"}),
        ("a colour in hexadecimal", {"type": "string", "pattern": "^#[0-9a-f]{6}$"}),
        ("a version", {"type": "string", "pattern": r"^v\d{1,2}\.\d{1,2}(\.\d{1,3})?$"}),
        ("a text with a digit in it", {"type": "string", "pattern": "[0-9]", "maxLength": 12}),
        ("an identifier", {"type": "string", "pattern": "^[a-z_][a-z0-9_]{0,15}$"}),
        ("a file name", {"type": "string", "pattern": r"^[a-z]{1,12}\.(txt|md|csv)$"}),
        ("a chess move", {"type": "string", "pattern": "^[a-h][1-8][a-h][1-8]$"}),
        ("times of day", some({"type": "string", "pattern": "^([01][0-9]|2[0-3]):[0-5][0-9]$"}, 3, 1)),
        ("a product", obj({"sku": {"type": "string", "pattern": r"^\w{3}-\d{5}$"}, "left": whole(0, 99)})),
    ],
    "format": [
        ("a birthday", {"type": "string", "format": "date"}),
        ("a moment", {"type": "string", "format": "date-time", "maxLength": 30}),
        ("a time of day", {"type": "string", "format": "time", "maxLength": 20}),
        ("a mail address", {"type": "string", "format": "email", "maxLength": 40}),
        ("an IPv4 address", {"type": "string", "format": "ipv4"}),
        ("an IPv6 address", {"type": "string", "format": "ipv6"}),
        ("a UUID", {"type": "string", "format": "uuid"}),
        ("a host", {"type": "string", "format": "hostname", "maxLength": 30}),
        ("how long a film is", {"type": "string", "format": "duration", "maxLength": 16}),
        ("a visit", obj({"day": {"type": "string", "format": "date"}, "who": text(20), "from": {"format": "ipv4"}},
                        "day", "who")),
    ],
    "integers": [
        ("a month", whole(1, 12)),
        ("a temperature", whole(-40, 50)),
        ("a number above ten", {"type": "integer", "exclusiveMinimum": 10, "maximum": 99}),
        ("a number below zero", {"type": "integer", "minimum": -99, "exclusiveMaximum": 0}),
        ("an even number", whole(0, 100, multipleOf=2)),
        ("a price in steps of 25", whole(25, 1000, multipleOf=25)),
        ("a large number", whole(1_000_000, 9_999_999)),
        ("zero or one", whole(0, 1)),
        ("a year", whole(1900, 2100)),
        ("a die and a coin", obj({"die": whole(1, 6), "coin": whole(0, 1)})),
    ],
    "numbers": [
        ("a share", {"type": "number", "minimum": 0, "maximum": 1}),
        ("a weight in kilograms", number(0.1, 250.5)),
        ("a balance", number(-1000, 1000)),
        ("a latitude", number(-90, 90)),
        ("more than nothing", {"type": "number", "exclusiveMinimum": 0, "maximum": 10, "multipleOf": 0.5}),
        ("less than a half", {"type": "number", "minimum": 0, "exclusiveMaximum": 0.5, "multipleOf": 0.001}),
        ("a price", {"type": "number", "minimum": 0, "maximum": 500, "multipleOf": 0.25}),
        ("two measures", obj({"width": number(0, 9.5), "height": number(0, 9.5)})),
        ("some readings", some(number(-5, 5), 4, 2)),
        ("a number of either kind", {"anyOf": [whole(0, 9), number(0.25, 0.75)]}),
    ],
    "arrays": [
        ("two to four animals", some(text(12), 4, 2)),
        ("exactly three numbers", some(whole(0, 99), 3, 3)),
        ("at most five flags", some(YES, 5)),
        ("a row of seats", some(one("free", "taken"), 6, 1)),
        ("a list of nothing", some(NOTHING, 3, 1)),
        ("a grid of two rows", some(some(whole(0, 9), 3, 3), 2, 2)),
        ("a mixed bag", some({"type": ["string", "boolean", "null"], "maxLength": 8}, 4, 1)),
        ("shopping", obj({"items": some(text(15), 5, 1)})),
        ("a cube", some(some(some(whole(0, 1), 2, 2), 2, 2), 2, 2)),
        ("steps of a plan", some(obj({"step": whole(1, 9), "what": text(30)}), 3, 1)),
    ],
    "tuples": [
        ("a name and an age", {"type": "array", "prefixItems": [text(15), whole(0, 120)], "items": False,
                               "minItems": 2}),
        ("a point in space", {"type": "array", "prefixItems": [number(0, 9)] * 3, "items": False, "minItems": 3}),
        ("a key and a value", {"type": "array", "prefixItems": [text(8), {"type": ["integer", "null"], "minimum": 0,
                                                                         "maximum": 9}], "items": False,
                                                                             "minItems": 2}),
        ("a label and numbers", {"type": "array", "prefixItems": [text(8)], "items": whole(0, 9), "minItems": 2,
                                 "maxItems": 4}),
        ("a flag, maybe with a reason", {"type": "array", "prefixItems": [YES, text(20)], "items": False,
                                         "minItems": 1}),
        ("a command", {"type": "array", "prefixItems": [one("go", "stop"), one("left", "right")], "items": False,
                       "minItems": 2, "maxItems": 2}),
        ("a pair of pairs", {"type": "array", "minItems": 2, "items": False, "prefixItems": [
            {"type": "array", "prefixItems": [whole(0, 9), whole(0, 9)], "items": False, "minItems": 2}] * 2}),
        ("routes", some({"type": "array", "prefixItems": [text(10), text(10), whole(1, 900)], "items": False,
                         "minItems": 3}, 2, 1)),
        ("a tuple in an object", obj({"range": {"type": "array", "prefixItems": [whole(0, 4), whole(5, 9)],
                                                "items": False, "minItems": 2}})),
        ("a list that starts with null", {"type": "array", "prefixItems": [NOTHING], "items": YES, "minItems": 1,
                                          "maxItems": 3}),
    ],
    "objects": [
        ("a person", obj({"name": text(), "age": whole(0, 120)})),
        ("a city", obj({"city": text(), "country": text(), "capital": YES})),
        ("a book", obj({"title": text(40), "author": text(30), "year": whole(1500, 2030)})),
        ("a film", obj({"title": text(40), "minutes": whole(1, 400), "genre": one("drama", "comedy", "crime")})),
        ("a car", obj({"make": text(12), "doors": whole(2, 5), "electric": YES, "colour": text(12)})),
        ("the weather", obj({"sky": one("clear", "cloudy", "rain"), "celsius": whole(-30, 45)})),
        ("a planet", obj({"name": text(12), "moons": whole(0, 100), "rings": YES})),
        ("a recipe", obj({"dish": text(25), "serves": whole(1, 12), "vegan": YES})),
        ("an empty object", {"type": "object", "additionalProperties": False}),
        ("a song", obj({"title": text(30), "seconds": whole(30, 900), "live": YES, "rating": number(0, 5)})),
    ],
    "optional": [
        ("a user", obj({"id": whole(1, 999), "mail": text(30), "nick": text(10)}, "id")),
        ("a parcel", obj({"to": text(25), "fragile": YES, "grams": whole(1, 9999)}, "to", "grams")),
        ("settings", {"type": "object", "additionalProperties": False,
                      "properties": {"dark": YES, "size": whole(8, 32), "font": text(12)}}),
        ("a note", obj({"text": text(60), "pinned": YES, "colour": one("red", "blue")}, "text")),
        ("a room", obj({"number": whole(1, 500), "beds": whole(1, 4), "view": text(10), "bath": YES}, "number",
            "beds")),
        ("a flight", obj({"from": text(12), "to": text(12), "gate": text(3), "delay": whole(0, 600)}, "from", "to")),
        ("a pet", obj({"name": text(12), "kind": one("cat", "dog"), "age": whole(0, 30)}, "kind")),
        ("a filter", {"type": "object", "additionalProperties": False,
                      "properties": {"min": whole(0, 99), "max": whole(0, 99), "unit": one("cm", "m")}}),
        ("a coupon", obj({"code": text(8, 4), "percent": whole(1, 90), "until": {"format": "date", "type": "string"}},
                         "code", "percent")),
        ("a comment", obj({"author": text(15), "body": text(80), "likes": whole(0, 999), "reply": YES}, "author",
            "body")),
    ],
    "additional": [
        ("scores by player", {"type": "object", "additionalProperties": whole(0, 99), "maxProperties": 3}),
        ("names by letter", {"type": "object", "additionalProperties": text(10), "maxProperties": 2}),
        ("a title and flags", {"type": "object", "properties": {"title": text(15)}, "required": ["title"],
                               "additionalProperties": YES, "maxProperties": 3}),
        ("options", {"type": "object", "additionalProperties": one("yes", "no"), "minProperties": 1,
            "maxProperties": 3}),
        ("nothing more than a name", obj({"name": text(12)})),
        ("labels", {"type": "object", "additionalProperties": {"type": "string", "maxLength": 8}, "maxProperties": 1}),
        ("votes", obj({"votes": {"type": "object", "additionalProperties": whole(0, 9), "maxProperties": 3}})),
        ("lists by name", {"type": "object", "additionalProperties": some(whole(0, 9), 3), "maxProperties": 2}),
        ("an index", {"type": "object", "required": ["a"], "properties": {"a": whole(1, 2)},
                      "additionalProperties": NOTHING, "maxProperties": 2}),
        ("a dictionary of dictionaries", {"type": "object", "maxProperties": 2, "additionalProperties": {
            "type": "object", "additionalProperties": whole(0, 9), "maxProperties": 2}}),
    ],
    "patterned": [
        ("columns", {"type": "object", "patternProperties": {"^c[0-9]$": whole(0, 99)}, "additionalProperties": False,
                     "maxProperties": 3}),
        ("headers", {"type": "object", "patternProperties": {"^X-[A-Z]{1,6}$": text(10)}, "maxProperties": 2,
                     "additionalProperties": False}),
        ("flags", {"type": "object", "patternProperties": {"^is_[a-z]{1,8}$": YES}, "additionalProperties": False,
                   "maxProperties": 3}),
        ("a name and extras", {"type": "object", "properties": {"name": text(10)}, "required": ["name"],
                               "patternProperties": {"^x_[a-z]{1,5}$": whole(0, 9)}, "additionalProperties": False,
                               "maxProperties": 3}),
        ("days", {"type": "object", "patternProperties": {"^(mon|tue|wed)$": whole(0, 24)},
                  "additionalProperties": False, "maxProperties": 3}),
        ("numbers and texts", {"type": "object", "patternProperties": {"^n[0-9]$": whole(0, 9), "^t[0-9]$": text(5)},
                               "additionalProperties": False, "maxProperties": 4}),
        ("rows", obj({"rows": {"type": "object", "patternProperties": {"^r[1-3]$": some(whole(0, 9), 2, 1)},
                               "additionalProperties": False, "maxProperties": 3}})),
        ("ids", {"type": "object", "patternProperties": {"^[a-f0-9]{4}$": text(8)}, "additionalProperties": False,
                 "minProperties": 1, "maxProperties": 2}),
        ("translations", {"type": "object", "patternProperties": {"^[a-z]{2}$": text(12)},
                          "additionalProperties": False, "maxProperties": 3}),
        ("prices", {"type": "object", "patternProperties": {"^[A-Z]{3}$": number(0, 99)}, "maxProperties": 2,
                    "additionalProperties": False}),
    ],
    "nested": [
        ("an address", obj({"name": text(), "home": obj({"street": text(), "number": whole(1, 300)})})),
        ("a company", obj({"name": text(), "boss": obj({"name": text(), "since": whole(1950, 2030)})})),
        ("a box in a box", obj({"box": obj({"box": obj({"box": obj({"gold": whole(0, 9)})})})})),
        ("an order", obj({"id": whole(1, 999), "buyer": obj({"name": text(), "mail": text(25)}), "paid": YES})),
        ("a window", obj({"title": text(), "at": obj({"x": whole(0, 99), "y": whole(0, 99)}),
                          "size": obj({"w": whole(1, 99), "h": whole(1, 99)})})),
        ("a match", obj({"home": obj({"team": text(15), "goals": whole(0, 9)}),
                         "away": obj({"team": text(15), "goals": whole(0, 9)})})),
        ("a sensor", obj({"id": text(6), "reading": obj({"value": number(-50, 50), "unit": one("C", "F")})})),
        ("an account", obj({"owner": obj({"first": text(12), "last": text(12)}), "limits": obj({"day": whole(0,
            999)})})),
        ("a page", obj({"head": obj({"title": text(25)}), "body": obj({"text": text(80), "notes": some(text(15),
            2)})})),
        ("a trip", obj({"start": obj({"place": text(), "day": whole(1, 31)}), "end": obj({"place": text()}),
                        "means": one("train", "bus", "bicycle")})),
    ],
    "records": [
        ("two people", some(obj({"name": text(12), "age": whole(0, 99)}), 2, 2)),
        ("a shopping basket", obj({"lines": some(obj({"what": text(15), "count": whole(1, 9)}), 3, 1)})),
        ("a class", obj({"teacher": text(15), "pupils": some(obj({"name": text(10), "mark": whole(1, 6)}), 3, 1)})),
        ("a menu", some(obj({"dish": text(20), "price": number(1, 60)}), 3, 1)),
        ("a timetable", some(obj({"day": one("mon", "tue", "wed"), "hours": some(whole(8, 18), 2, 1)}), 2, 1)),
        ("a league", obj({"teams": some(obj({"team": text(12), "points": whole(0, 99)}), 3, 2)})),
        ("a library", obj({"shelves": some(obj({"topic": text(12), "books": some(text(20), 2)}), 2, 1)})),
        ("errors", some(obj({"line": whole(1, 999), "message": text(40), "fatal": YES}), 2)),
        ("coins", some(obj({"cents": one(1, 2, 5, 10, 20, 50), "count": whole(0, 20)}), 4, 1)),
        ("a survey", some(obj({"question": text(40, 5), "answers": some(text(15), 3, 2)}), 2, 1)),
    ],
    "anyOf": [
        ("a number or a word", {"anyOf": [whole(0, 9), text(8)]}),
        ("an id or an object", {"anyOf": [whole(1, 99), obj({"name": text(10)})]}),
        ("a list or nothing", {"anyOf": [some(whole(0, 9), 3), NOTHING]}),
        ("a date in two ways", {"anyOf": [{"type": "string", "format": "date"}, obj({"year": whole(1900, 2100)})]}),
        ("one or many", {"anyOf": [text(10), some(text(10), 3, 1)]}),
        ("a shape", {"anyOf": [obj({"radius": whole(1, 9)}), obj({"width": whole(1, 9), "height": whole(1, 9)})]}),
        ("a value of three kinds", obj({"value": {"anyOf": [YES, NOTHING, whole(-9, 9)]}})),
        ("an event", some({"anyOf": [obj({"key": text(1)}), obj({"x": whole(0, 9), "y": whole(0, 9)})]}, 3, 1)),
        ("a contact", obj({"by": {"anyOf": [obj({"mail": text(20)}), obj({"phone": text(12)})]}})),
        ("small or large", {"anyOf": [whole(0, 9), whole(1000, 9999)]}),
    ],
    "oneOf": [
        ("an animal", {"oneOf": [obj({"kind": {"const": "cat"}, "lives": whole(1, 9)}),
                                 obj({"kind": {"const": "dog"}, "tricks": some(text(10), 2)})]}),
        ("a payment", {"oneOf": [obj({"by": {"const": "card"}, "digits": {"type": "string", "pattern": "^[0-9]{4}$"}}),
                                 obj({"by": {"const": "cash"}})]}),
        ("a text or a flag", {"oneOf": [text(10), YES]}),
        ("a list or an object", {"oneOf": [some(YES, 2), obj({"a": YES})]}),
        ("a number or nothing", {"oneOf": [whole(0, 99), NOTHING]}),
        ("a command", {"oneOf": [obj({"op": {"const": "add"}, "by": whole(1, 9)}), obj({"op": {"const": "reset"}})]}),
        ("commands", some({"oneOf": [obj({"op": {"const": "up"}}), obj({"op": {"const": "down"}, "by": whole(1, 5)})]},
                          3, 1)),
        ("a field", obj({"value": {"oneOf": [{"const": "none"}, {"const": "all"}, whole(0, 9)]}})),
        ("a vehicle", {"oneOf": [obj({"type": {"const": "bus"}, "seats": whole(10, 90)}),
                                 obj({"type": {"const": "bike"}, "gears": whole(1, 27)}),
                                 obj({"type": {"const": "boat"}, "sails": whole(0, 4)})]}),
        ("a unit", {"oneOf": [{"enum": ["m", "km"]}, {"enum": ["ft", "mi"]}]}),
    ],
    "allOf": [
        ("a bounded number", {"allOf": [{"type": "integer"}, {"minimum": 3}, {"maximum": 30}]}),
        ("a bounded text", {"allOf": [{"type": "string", "minLength": 2}, {"maxLength": 9}]}),
        ("a person in two parts", {"properties": {"name": True, "age": True}, "additionalProperties": False, "allOf": [
            {"type": "object", "properties": {"name": text(10)}, "required": ["name"]},
            {"properties": {"age": whole(0, 99)}, "required": ["age"]}]}),
        ("a choice of a choice", {"allOf": [{"enum": ["a", "b", "c"]}, {"enum": ["b", "c", "d"]}]}),
        ("a tight range", {"allOf": [whole(0, 50), whole(40, 90)]}),
        ("a short list", {"allOf": [some(whole(0, 9), 9), {"maxItems": 2}, {"minItems": 1}]}),
        ("one of few", {"allOf": [{"$ref": "#/$defs/n"}], "$defs": {"n": whole(1, 3)}}),
        ("a thing with a label", {"allOf": [{"$ref": "#/$defs/thing"}], "$defs": {"thing": obj({"label": text(9)})}}),
        ("a multiple of both", {"allOf": [whole(1, 60, multipleOf=4), {"multipleOf": 6}]}),
        ("a number of either kind", {"allOf": [{"type": ["integer", "string"]}, whole(5, 15)]}),
    ],
    "refs": [
        ("two points", obj({"from": ref("point"), "to": ref("point")},
                           **{"$defs": {"point": obj({"x": whole(0, 9), "y": whole(0, 9)})}})),
        ("a family", obj({"mother": ref("p"), "father": ref("p")}, **{"$defs": {"p": obj({"name": text(12)})}})),
        ("a palette", some(ref("rgb"), 3, 1, **{"$defs": {"rgb": some(whole(0, 255), 3, 3)}})),
        ("a chain of names", {"$ref": "#/$defs/a", "$defs": {"a": ref("b"), "b": ref("c"), "c": text(9)}}),
        ("a loan", obj({"sum": ref("money"), "rate": number(0, 9)},
                       **{"$defs": {"money": obj({"amount": whole(1, 9999), "in": ref("cur")}),
                                    "cur": one("EUR", "USD")}})),
        ("an old style", {"$ref": "#/definitions/v", "definitions": {"v": whole(1, 9)}}),
        ("a reference into properties", obj({"a": whole(0, 9), "b": {"$ref": "#/properties/a"}})),
        ("a name with a slash", {"$ref": "#/$defs/a~1b", "$defs": {"a/b": text(5)}}),
        ("an item's type", obj({"list": some(ref("w"), 2, 1), "first": ref("w")}, **{"$defs": {"w": text(8)}})),
        ("a flag by reference", some({"$ref": "#/$defs/yes"}, 3, 2, **{"$defs": {"yes": YES}})),
    ],
    "recursion": [
        ("a small tree", {"$ref": "#/$defs/t", "$defs": {"t": obj({"v": whole(0, 9), "kids": some(ref("t"), 1)})}}),
        ("a linked list", {"$ref": "#/$defs/l", "$defs": {"l": obj({"v": text(5), "next": {
            "anyOf": [NOTHING, ref("l")]}})}}),
        ("an empty folder", obj({"name": text(8), "folders": some({"$ref": "#"}, 1)})),
        ("a sum", {"$ref": "#/$defs/e", "$defs": {"e": {"anyOf": [whole(0, 9), obj({"plus": some(ref("e"), 2, 2)})]}}}),
        ("lists in lists", {"$ref": "#/$defs/n", "$defs": {"n": {"anyOf": [whole(0, 9), some(ref("n"), 2, 1)]}}}),
        ("a comment with replies", obj({"text": text(25), "replies": some({"$ref": "#"}, 1)})),
        ("a family tree", {"$ref": "#/$defs/b", "$defs": {"b": {"anyOf": [text(9), obj({
            "name": text(9), "mother": ref("b"), "father": NOTHING})]}}}),
        ("even and odd", {"$ref": "#/$defs/even", "$defs": {"even": {"anyOf": [{"const": "end"},
            obj({"odd": ref("odd")})]},
                                                           "odd": obj({"even": ref("even")})}}),
        ("a menu with menus", obj({"label": text(10), "more": {"anyOf": [NOTHING, YES, text(10), some({"$ref": "#"},
            1, 1)]}})),
        ("a condition", {"$ref": "#/$defs/c", "$defs": {"c": {"anyOf": [YES, one("maybe"), obj({"all": {
            "type": "array", "prefixItems": [YES, ref("c")], "items": False, "minItems": 2}})]}}}),
    ],
    "unicode": [
        ("une personne", obj({"prénom": text(12), "âge": whole(0, 99)})),
        ("eine Straße", obj({"straße": text(20), "größe": whole(1, 99)})),
        ("город", obj({"имя": text(12), "дом": whole(1, 99)})),
        ("色", one("赤", "青", "緑")),
        ("a face", one("😀", "😢", "🙂‍↔️")),
        ("π", obj({"π": number(3, 3.2), "τ": number(6, 6.5)})),
        ("κατάλογος", some(one("άλφα", "βήτα"), 3, 1)),
        ("a price in euros", obj({"€": whole(0, 99), "¢": whole(0, 99)})),
        ("مرحبا", obj({"اسم": text(10)})),
        ("a letter with an accent", {"type": "string", "pattern": "^[éèêà]{1,4}$"}),
    ],
    "escapes": [
        ("a path", one("C:\\dir\\file", "/usr/bin")),
        ("a quotation", one('"yes"', "'no'", 'she said "hi"')),
        ("lines", one("one\ntwo", "a\tb", "\r\n")),
        ("odd keys", obj({'a"b': whole(0, 9), "c\\d": whole(0, 9)})),
        ("keys with blanks", obj({"first name": text(10), "last  name": text(10)})),
        ("an empty key", obj({"": whole(0, 9)})),
        ("keys like code", obj({"$ref": text(5), "type": text(5), "properties": whole(0, 9)})),
        ("markup", one("<b>bold</b>", "a & b", "</script>")),
        ("controls", one("\u0001", "\u001f", "\u007f", "\u2028")),
        ("a key with a dot and a slash", obj({"a.b/c~d": YES, "#": YES})),
    ],
    "counted": [
        ("one or two entries", {"type": "object", "additionalProperties": whole(0, 9), "minProperties": 1,
                                "maxProperties": 2}),
        ("exactly two", {"type": "object", "additionalProperties": YES, "minProperties": 2, "maxProperties": 2}),
        ("no entries", {"type": "object", "maxProperties": 0}),
        ("at least one of three", {"type": "object", "properties": {"a": YES, "b": YES, "c": YES}, "minProperties": 1,
                                   "additionalProperties": False}),
        ("at most two of four", {"type": "object", "properties": {k: whole(0, 9) for k in "abcd"}, "maxProperties": 2,
                                 "additionalProperties": False}),
        ("up to three texts", {"type": "object", "additionalProperties": text(6), "maxProperties": 3}),
        ("exactly five numbers", some(whole(0, 99), 5, 5)),
        ("one to three letters", some(text(1), 3, 1)),
        ("exactly one", some(obj({"n": whole(0, 9)}), 1, 1)),
        ("none to two, twice", obj({"a": some(YES, 2), "b": some(YES, 2)})),
    ],
    "nullable": [
        ("a middle name", obj({"first": text(10), "middle": {"type": ["string", "null"], "maxLength": 10}})),
        ("a due date", obj({"due": {"anyOf": [{"type": "string", "format": "date"}, NOTHING]}})),
        ("a parent", obj({"id": whole(1, 9), "parent": {"type": ["integer", "null"], "minimum": 1, "maximum": 9}})),
        ("readings with gaps", some({"type": ["number", "null"], "minimum": 0, "maximum": 9}, 4, 2)),
        ("a list or null", obj({"tags": {"type": ["array", "null"], "items": text(6), "maxItems": 3}})),
        ("an object or null", obj({"spouse": {"type": ["object", "null"], "properties": {"name": text(10)},
                                              "required": ["name"], "additionalProperties": False}})),
        ("an enum or null", obj({"size": {"enum": ["S", "M", "L", None]}})),
        ("a flag or null", obj({"known": {"type": ["boolean", "null"]}})),
        ("all null", obj({"a": NOTHING, "b": NOTHING})),
        ("a nullable reference", obj({"p": {"anyOf": [ref("p"), NOTHING]}}, **{"$defs": {"p": obj({"q": YES})}})),
    ],
    "annotated": [
        ("a title", {**text(10), "title": "Word", "description": "Any word."}),
        ("a default", obj({"n": {**whole(0, 9), "default": 3}})),
        ("examples", {**whole(1, 31), "examples": [1, 15], "$comment": "a day"}),
        ("deprecated parts", obj({"old": {**YES, "deprecated": True}, "new": YES})),
        ("read only", obj({"id": {**whole(1, 99), "readOnly": True}, "pin": {**whole(0, 9999), "writeOnly": True}})),
        ("a dialect", {"$schema": "https://json-schema.org/draft/2020-12/schema", **obj({"a": YES})}),
        ("an old dialect", {"$schema": "http://json-schema.org/draft-07/schema#", **obj({"a": whole(0, 9)})}),
        ("an id", {"$id": "https://octavo.example/thing", **obj({"thing": text(9)})}),
        ("foreign words", {**whole(0, 9), "x-unit": "cm", "faker": "number"}),
        ("a described object", obj({"who": {**text(15), "description": "Whom to greet."},
                                    "loud": {**YES, "description": "Whether to shout."}}, title="Greeting")),
    ],
    "draft7": [
        ("an old tuple", {"$schema": "http://json-schema.org/draft-07/schema#", "type": "array",
                          "items": [whole(0, 9), text(5)], "additionalItems": False, "minItems": 2}),
        ("definitions", {"$schema": "http://json-schema.org/draft-07/schema#", "definitions": {"k": text(6)},
                         **obj({"k": {"$ref": "#/definitions/k"}})}),
        ("a const", {"$schema": "http://json-schema.org/draft-07/schema#", "const": 5}),
        ("old definitions in a list", some({"$ref": "#/definitions/u"}, 2, 1, definitions={"u": one("a", "b")})),
        ("an old recursion", obj({"n": whole(0, 9), "more": some({"$ref": "#/definitions/m"}, 1)},
                                 definitions={"m": obj({"n": whole(0, 9)})})),
        ("an exclusive limit", {"$schema": "http://json-schema.org/draft-07/schema#", "type": "integer",
                                "exclusiveMinimum": 0, "exclusiveMaximum": 10}),
        ("items alike", {"$schema": "http://json-schema.org/draft-07/schema#", "type": "array", "items": YES,
                         "minItems": 1, "maxItems": 3}),
        ("a comment", {"$schema": "http://json-schema.org/draft-07/schema#", "$comment": "old", **text(8)}),
        ("an old format", {"$schema": "http://json-schema.org/draft-07/schema#", "type": "string", "format": "date"}),
        ("old pattern properties", {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object",
                                    "patternProperties": {"^a[0-9]$": YES}, "additionalProperties": False,
                                    "maxProperties": 2}),
    ],
    "documents": [
        ("an invoice", obj({"number": text(8), "customer": obj({"name": text(20), "city": text(15)}), "lines": some(
            obj({"what": text(15), "count": whole(1, 20), "each": number(0.5, 99)}), 2, 1), "paid": YES})),
        ("a calendar entry", obj({"title": text(25), "date": {"type": "string", "format": "date"},
                                  "guests": some(text(12), 3), "room": {"type": ["string", "null"], "maxLength": 8}})),
        ("a weather report", obj({"place": text(15), "days": some(obj({"day": one("mon", "tue", "wed"),
                                                                      "high": whole(-20, 45),
                                                                      "low": whole(-30, 30)}), 2, 1)})),
        ("a job posting", obj({"title": text(30), "salary": obj({"from": whole(1000, 9000), "to": whole(1000, 9000)}),
                               "remote": YES, "skills": some(text(12), 4, 1)})),
        ("a patient", obj({"name": text(15), "born": {"type": "string", "format": "date"},
                           "blood": one("A", "B", "AB", "0"), "allergies": some(text(12), 2)})),
        ("a quiz", obj({"question": text(50, 8), "options": some(text(15), 4, 2), "answer": whole(0, 3)})),
        ("a receipt", obj({"shop": text(15), "total": number(0, 500), "items": some(text(12), 4, 1),
                           "card": {"type": "string", "pattern": "^[*]{4}[0-9]{4}$"}})),
        ("a bug report", obj({"title": text(40), "severity": one("low", "high"), "steps": some(text(30), 3, 1),
                              "version": {"type": "string", "pattern": r"^\d\.\d\.\d$"}})),
        ("a playlist", obj({"name": text(20), "songs": some(obj({"title": text(20), "seconds": whole(30, 600)}), 3,
            1)})),
        ("a summary", obj({"topic": text(20), "sentences": some(text(60, 5), 3, 1), "sentiment": number(-1, 1)})),
    ],
    "calls": [
        ("the weather in Paris", obj({"name": {"const": "get_weather"}, "arguments": obj({"city": text(20)})})),
        ("a search", obj({"name": {"const": "search"}, "arguments": obj({"query": text(40), "limit": whole(1, 50)})})),
        ("a mail", obj({"name": {"const": "send"}, "arguments": obj({"to": text(25), "body": text(60)})})),
        ("a tool out of two", {"anyOf": [obj({"name": {"const": "add"}, "arguments": obj({"a": whole(0, 9)})}),
                                         obj({"name": {"const": "say"}, "arguments": obj({"text": text(20)})})]}),
        ("some calls", some({"anyOf": [obj({"name": {"const": "on"}, "arguments": obj({})}),
                                       obj({"name": {"const": "dim"}, "arguments": obj({"to": whole(0, 100)})})]}, 2,
                                           1)),
        ("a booking", obj({"name": {"const": "book"}, "arguments": obj({"nights": whole(1, 14), "guests": whole(1, 6),
                                                                        "breakfast": YES})})),
        ("a query", obj({"table": one("users", "orders"), "where": obj({"column": text(10), "is": text(10)}),
                         "limit": whole(1, 99)})),
        ("a robot's move", obj({"move": one("forward", "back"), "steps": whole(1, 9), "then": {
            "anyOf": [NOTHING, obj({"turn": one("left", "right")})]}})),
        ("a patch", some(obj({"op": one("add", "remove"), "path": {"type": "string",
            "pattern": "^(/[a-z]{1,6}){1,2}$"}}),
                         2, 1)),
        ("a classification", obj({"label": one("spam", "ham"), "score": number(0, 1), "why": text(50)})),
    ],
    "large": [
        ("thirty flags", obj({f"flag_{i}": YES for i in range(30)})),
        ("a form", obj({f"field{i}": text(6) for i in range(15)})),
        ("a hundred words to choose from", one(*(f"word-{i:03}" for i in range(100)))),
        ("twenty optional numbers", {"type": "object", "properties": {f"n{i}": whole(0, 9) for i in range(20)},
                                     "additionalProperties": False}),
        ("twelve levels", reduce(lambda inner, i: obj({f"l{i}": inner}), range(12), whole(0, 9))),
        ("a matrix", some(some(whole(0, 9), 4, 4), 4, 4)),
        ("ten kinds", {"anyOf": [obj({"kind": {"const": f"k{i}"}, f"v{i}": whole(0, 9)}) for i in range(10)]}),
        ("a long tuple", {"type": "array", "prefixItems": [one(i, -i - 1) for i in range(12)], "items": False,
                          "minItems": 12}),
        ("many definitions", {"$ref": "#/$defs/d0", "$defs": {
            **{f"d{i}": obj({"n": ref(f"d{i + 1}")}) for i in range(10)}, "d10": YES}}),
        ("a thousand numbers to choose from", one(*range(1000))),
    ],
    "hard": [
        ("something that is not a number", {"not": {"type": "number"}}),
        ("different numbers", some(whole(0, 9), 3, 1, uniqueItems=True)),
        ("a list with a seven", {"type": "array", "contains": {"const": 7}, "maxItems": 3}),
        ("a condition", {"if": {"const": 1}, "then": True, "else": {"const": 2}}),
        ("keys by pattern", {"type": "object", "propertyNames": {"pattern": "^a"}, "maxProperties": 2}),
        ("a dependency", {**obj({"a": YES, "b": YES}, "a"), "dependentRequired": {"b": ["a"]}}),
        ("a postal code with letters", {"type": "string", "pattern": "^(?:[A-Z]{1,2}[0-9]){1,3}$", "maxLength": 9}),
        ("a text with both ends", {"type": "string", "pattern": "^a.{1,8}z$"}),
        ("a number in words or digits", {"anyOf": [{"type": "string", "pattern": "^(one|two|three)( hundred)?$"},
                                                   whole(1, 300)]}),
        ("any value", some({"type": ["integer", "boolean"], "minimum": 0, "maximum": 9}, 3, 1)),
    ],
}  # fmt: skip


def cases() -> list[Case]:
    """All of them, in an order that mixes the families."""
    found = [
        Case(f"{family}-{place}", about, schema)
        for family, members in FAMILIES.items()
        for place, (about, schema) in enumerate(members)
    ]
    return sorted(found, key=lambda case: (case.name.rpartition("-")[2], case.name))
