"""The string formats that are enforced, as regular expressions every match of which is valid."""

from __future__ import annotations

_DATE = (
    r"([1-9][0-9]{3}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)"
    r"|02-(0[1-9]|1[0-9]|2[0-8]))|[1-9][0-9](0[48]|[2468][048]|[13579][26])-02-29)"
)
_CLOCK = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?"
_ZONE = r"(Z|[+\-]([01][0-9]|2[0-3]):[0-5][0-9])"
_LABEL = r"[a-zA-Z0-9]([a-zA-Z0-9\-]{0,30}[a-zA-Z0-9])?"
_HOST = rf"{_LABEL}(\.{_LABEL}){{0,4}}\.[a-zA-Z]{{2,16}}"
_BYTE = r"(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_HEX4 = r"[0-9a-fA-F]{1,4}"

FORMATS: dict[str, str] = {
    "date": _DATE,
    "time": _CLOCK + _ZONE,
    "date-time": f"{_DATE}T{_CLOCK}{_ZONE}",
    "duration": r"P([0-9]{1,4}D(T[0-9]{1,4}[HMS])?|T[0-9]{1,4}[HMS]|[0-9]{1,4}[WMY])",
    "email": rf"[a-zA-Z0-9_]([a-zA-Z0-9_+\-]|\.[a-zA-Z0-9_]){{0,63}}@{_HOST}",
    "hostname": _HOST,
    "ipv4": rf"{_BYTE}(\.{_BYTE}){{3}}",
    "ipv6": rf"({_HEX4}(:{_HEX4}){{7}}|{_HEX4}(:{_HEX4}){{0,3}}::{_HEX4}(:{_HEX4}){{0,2}}|::1?)",
    "uuid": r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
    "uri": rf"https?://{_HOST}(:[1-9][0-9]{{1,3}})?(/[a-zA-Z0-9_.~\-]{{0,64}}){{0,8}}"
    r"(\?[a-zA-Z0-9_.~=&\-]{1,200})?(#[a-zA-Z0-9_.~\-]{1,64})?",
}
"""Only Gregorian dates that exist, only clock times that exist; leap days in plain leap years."""
FORMATS["uri-reference"] = FORMATS["iri"] = FORMATS["uri"]
