"""The string formats that are enforced, as regular expressions every match of which is valid."""

from __future__ import annotations

_DATE = (
    r"([1-9][0-9]{3}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)"
    r"|02-(0[1-9]|1[0-9]|2[0-8]))|[1-9][0-9](0[48]|[2468][048]|[13579][26])-02-29)"
)
_CLOCK = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?"
_ZONE = r"(Z|[+\-]([01][0-9]|2[0-3]):[0-5][0-9])"
_BYTE = r"(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_HEX4 = r"[0-9a-fA-F]{1,4}"
_NAME, _MARKED = r"[a-zA-Z0-9_]", r"[a-zA-Z0-9_.~\-]"


_LABEL = r"[a-zA-Z0-9]+(-+[a-zA-Z0-9]+)*"
_HOST = rf"{_LABEL}(\.{_LABEL}){{0,4}}\.[a-zA-Z]{{2,12}}"
_SHORT_LABEL = r"[a-zA-Z0-9](-?[a-zA-Z0-9]){0,6}"
_SHORT_HOST = rf"{_SHORT_LABEL}(\.{_SHORT_LABEL})?\.[a-zA-Z]{{2,12}}"

FORMATS: dict[str, str] = {
    "date": _DATE,
    "time": _CLOCK + _ZONE,
    "date-time": f"{_DATE}T{_CLOCK}{_ZONE}",
    "duration": r"P([0-9]{1,4}D(T[0-9]{1,4}[HMS])?|T[0-9]{1,4}[HMS]|[0-9]{1,4}[WMY])",
    "email": rf"{_NAME}+([.+\-]{_NAME}+)*@{_HOST}",
    "hostname": _HOST,
    "ipv4": rf"{_BYTE}(\.{_BYTE}){{3}}",
    "ipv6": rf"({_HEX4}(:{_HEX4}){{7}}|{_HEX4}(:{_HEX4}){{0,3}}::{_HEX4}(:{_HEX4}){{0,2}}|::1?)",
    "uuid": r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
    "uri": rf"https?://{_HOST}(:[1-9][0-9]{{1,3}})?(/{_MARKED}*)*"
    rf"(\?({_MARKED}|[=&])+)?(#{_MARKED}+)?",
}
"""Only Gregorian dates that exist, only clock times that exist; leap days in plain leap years.

The lengths of host names and their parts are the model's: counting them would take hundreds of
states, each of which costs a large vocabulary time to compile.
"""

SHORT_FORMATS: dict[str, str] = {
    **FORMATS,
    "email": rf"{_NAME}{{1,12}}([.+\-]{_NAME}{{1,8}})?@{_SHORT_HOST}",
    "hostname": _SHORT_HOST,
    "uri": rf"https?://{_SHORT_HOST}(/{_MARKED}{{0,8}}){{0,2}}(\?{_NAME}{{1,8}})?",
}
"""For models that end nothing by themselves."""

for _formats in (FORMATS, SHORT_FORMATS):
    _formats["uri-reference"] = _formats["iri"] = _formats["uri"]
