"""Which annotations of settings have no range."""

from typing import Any, Literal, get_args, get_origin

from raysl.config.ranges import Rising, Within, bare, marks_of, rules_of
from raysl.schedule import Duration


def lacks_range(kind: Any) -> bool:
    """Whether an annotation has a number without a range, or a pair of numbers without an order."""
    if any(isinstance(mark, Within) for mark in marks_of(kind)):
        return False
    inner = bare(kind)
    members = () if get_origin(inner) is Literal else get_args(inner)
    is_pair = get_origin(inner) is tuple and len(members) == 2 and members[0] == members[1]
    if is_pair and bare(members[0]) in (int, float) and not any(isinstance(rule, Rising) for rule in rules_of(kind)):
        return True
    return inner in (int, float, Duration) or any(lacks_range(member) for member in members)
