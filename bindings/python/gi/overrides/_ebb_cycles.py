"""Frees models whose hooks or attributes refer to them.

C holds the children of a module, and a child's object in Python with its attributes. The garbage collector does not see
this reference, so a child's hook that refers to a module above it would keep the whole model alive. After each full
collection the models are sought that only such references hold, and the attributes of their modules are cleared.
"""
import collections
import gc
import sys
import types
import weakref

from gi.module import get_introspection_module

Ebb = get_introspection_module("Ebb")

_watched = weakref.WeakSet()  # modules with attributes or hooks in Python
_MOST = 5000  # objects that are looked at for one model
_get_modules, _get_children = Ebb.Module.get_modules, Ebb.Module.get_children


def watch(module):
    """Has a module's attributes looked at after full collections."""
    if not _watched:
        gc.callbacks[:] = [call for call in gc.callbacks if call is not _after_collection] + [_after_collection]
    _watched.add(module)


def _after_collection(phase, info):
    if phase == "stop" and info["generation"] == 2:
        roots = _find_roots()
        while roots:  # a name for a root would hold it
            _free_if_dead([roots.pop()])


def _list_referents(value):
    """What an object refers to, but not the names around a function, nor a class."""
    if isinstance(value, types.FunctionType):
        return [part for part in (value.__closure__, value.__defaults__, value.__kwdefaults__, value.__dict__) if part]
    return [] if isinstance(value, (types.ModuleType, type)) else gc.get_referents(value)


def _find_roots():
    """The modules that attributes refer to and that no module of C holds."""
    roots, seen, stack = {}, set(), [_find_attributes(module) for module in list(_watched)]
    while stack and len(seen) < _MOST * 20:
        value = stack.pop()
        if value is None or id(value) in seen or not gc.is_tracked(value):
            continue
        seen.add(id(value))
        if isinstance(value, Ebb.Module):
            if value.__grefcount__ == 1:
                roots[id(value)] = value
        else:
            stack.extend(_list_referents(value))
    return list(roots.values())


def _find_attributes(module):
    """The dict of a module, or None. Reading __dict__ would make one."""
    return next((value for value in gc.get_referents(module) if type(value) is dict), None)


def _is_held_in_c(modules):
    """Whether anything but the parents among them holds one of the modules in C."""
    n_parents = collections.Counter(id(child) for module in modules for child in _get_children(module))
    return any(module.__grefcount__ != 1 + n_parents[id(module)] for module in modules)


def _collect_holders(members):
    """Adds what refers to the members, directly or not; False if that is not garbage alone."""
    known = {id(member) for member in members}
    begin = 0
    while begin < len(members):
        frontier, begin = members[begin:], len(members)
        holders = gc.get_referrers(*frontier)
        ours = {id(members), id(frontier), id(holders)}
        for holder in holders:
            if id(holder) in known or id(holder) in ours:
                continue
            if isinstance(holder, (types.ModuleType, types.FrameType, type)) or len(members) > _MOST:
                return False
            known.add(id(holder))
            members.append(holder)
        frontier = holders = holder = None  # lists of members would be holders themselves
    return True


def _free_if_dead(members):
    """Clears the attributes of the modules of a model, in a list with the root, if only they themselves hold it."""
    members[:] = _get_modules(members[0])
    n_modules = len(members)
    if _is_held_in_c(members) or not _collect_holders(members):
        return
    n_known = collections.Counter(id(value) for member in members for value in gc.get_referents(member))
    probe = [object()]
    n_own = sys.getrefcount(probe[0])
    for i in range(len(members)):  # a name for a member would count
        n_toggles = 0
        if i < n_modules and members[i].__grefcount__ > 1 and _find_attributes(members[i]) is not None:
            n_toggles = 1  # the reference of C
        if sys.getrefcount(members[i]) != n_own + n_known[id(members[i])] + n_toggles:
            return
    for attributes in [_find_attributes(member) for member in members[:n_modules]]:
        if attributes is not None:
            attributes.clear()
