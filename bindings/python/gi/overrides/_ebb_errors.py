"""How Python's exceptions travel through C.

C knows GErrors only, so an exception that leaves Python code called from C (a forward, a hook, a policy) is kept here
under a token, a GLib.Error with the token in its message is raised in its place, and the guarded function that called
C raises the kept object again. This holds through prefixes that C puts before the message, through nested calls, and
for KeyboardInterrupt.
"""
import itertools
import re
import threading
import weakref

from gi.overrides._ebb_check import check_texts, explain, takes_text
from gi.repository import GLib

_kept = {}  # token: (thread, exception)
_tokens = itertools.count(1)
_pattern = re.compile(r" \[python exception (\d+)\]")


class _Thread(threading.local):
    depth = 0  # Python code called from C, on this thread


_thread = _Thread()


class Error(GLib.Error):
    """What fails in C. Its text is the message alone; its code is one of ebb.Error.SHAPE and the others."""

    __module__ = "gi.repository.Ebb"

    def __str__(self):
        return self.message

    def __repr__(self):
        return f"ebb.Error({self.message!r})"


# -- one object of Python for each tensor -----------------------------------------------------------------------------

class _Tensors:
    """Weak references to the tensors that Python has, by their addresses."""

    kind = None  # the class of tensors, once it is there
    seen = {}
    most = 4096  # references after which those to dead tensors are dropped


def know_tensors(kind):
    """Names the class whose objects unify() looks at."""
    _Tensors.kind = kind


def unify(value):
    """The object that Python has for a tensor already, or the value itself: PyGObject makes one for each result."""
    kind = type(value)
    if kind is _Tensors.kind:
        key, seen = hash(value), _Tensors.seen
        reference = seen.get(key)
        known = reference and reference()
        if known is not None:
            return known
        seen[key] = weakref.ref(value)
        if len(seen) > _Tensors.most:
            _drop_dead()
    elif kind is list and value and type(value[0]) is _Tensors.kind:
        return [unify(tensor) for tensor in value]
    return value


def _drop_dead():
    for key, reference in list(_Tensors.seen.items()):
        if reference() is None:
            _Tensors.seen.pop(key, None)
    _Tensors.most = max(4096, 2 * len(_Tensors.seen))


# -- exceptions -------------------------------------------------------------------------------------------------------

class NotFound(Error, FileNotFoundError):
    """An Error about a file that is not there."""

    __module__ = "gi.repository.Ebb"


class BadValue(Error, ValueError):
    """An Error about a value that C was given."""

    __module__ = "gi.repository.Ebb"


def _as_error(error):
    kind = (NotFound if error.message.endswith("No such file or directory") else
            BadValue if ": it must be " in error.message else Error)
    return kind(error.message, error.domain, error.code)


def _keep(exception):
    token = next(_tokens)
    _kept[token] = (threading.get_ident(), exception)
    return token


def _settle():
    """Drops what C has dealt with once the outermost call is over."""
    me = threading.get_ident()
    if _thread.depth == 0:
        for token, (thread, _) in list(_kept.items()):
            if thread == me:
                _kept.pop(token, None)


def _recall(error):
    """The exception that is behind an error: the one that was kept, or the error itself."""
    match = None
    for match in _pattern.finditer(error.message or ""):
        pass  # the last one: an exception's own text stands before its token
    entry = _kept.pop(int(match.group(1)), None) if match else None
    if entry is None:
        if match:  # of an exception that Python code has dealt with since
            error.message = error.message[:match.start()] + error.message[match.end():]
        return error
    exception = entry[1]
    if isinstance(exception, GLib.Error):  # C has said meanwhile where it happened
        exception.message = error.message[:match.start()] + error.message[match.end():]
    return exception


def _is_refusal(error):
    """Whether PyGObject has refused arguments: not an exception of Python code that was called, nor a full stack."""
    return error.__traceback__.tb_next is None and not isinstance(error, RecursionError)


def guard(function):
    """A C function that may fail, raising the exceptions of the Python code that it calls."""
    has_text = takes_text(function)

    def call(*args, **kwargs):
        if has_text:
            check_texts(function, args, kwargs)
        try:
            result = function(*args, **kwargs)
        except GLib.Error as error:
            exception = _recall(error)
            if exception is error and not isinstance(error, Error):
                exception = _as_error(error)
        except (TypeError, ValueError, OverflowError, RuntimeError) as error:
            if not _is_refusal(error):
                raise
            exception = explain(function, args, error)
        else:
            if _kept:
                _settle()
            return unify(result)
        try:
            if _kept:
                _settle()
            raise exception
        finally:
            del exception

    call.__name__ = call.__qualname__ = function.__name__
    call.__wrapped__ = function
    return call


def check(function):
    """A C function that can't fail, with messages about its arguments that name it."""
    has_text = takes_text(function)

    def call(*args, **kwargs):
        if has_text:
            check_texts(function, args, kwargs)
        try:
            return unify(function(*args, **kwargs))
        except (TypeError, ValueError, OverflowError, RuntimeError) as error:
            if not _is_refusal(error):
                raise
            exception = explain(function, args, error)
        try:
            raise exception
        finally:
            del exception

    call.__name__ = call.__qualname__ = function.__name__
    call.__wrapped__ = function
    return call


def _describe(exception):
    """An exception as C may print it: UTF-8 without NUL, whatever its own text does."""
    try:
        text = f"{type(exception).__name__}: {exception}"
    except BaseException:
        text = type(exception).__name__
    return text.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()


def as_failure(exception):
    """The error that stands for an exception in C."""
    token = f" [python exception {_keep(exception)}]"
    if isinstance(exception, GLib.Error):
        return GLib.Error(exception.message + token, exception.domain, exception.code)
    code = _STOP if isinstance(exception, Exception) and _comes_of_stop(exception) else _CALLBACK
    return GLib.Error(_describe(exception) + token, "ebb-error-quark", code)


def as_plain_failure(exception):
    """The same without a token, for many threads to read; who raises it keeps the exception himself."""
    if isinstance(exception, GLib.Error):
        return GLib.Error(exception.message, exception.domain, exception.code)
    return GLib.Error(_describe(exception), "ebb-error-quark", _CALLBACK)


def call_back(function, *args, **kwargs):
    """Runs Python code for C; an exception becomes a GLib.Error that guard() turns back."""
    _thread.depth += 1
    try:
        return function(*args, **kwargs)
    except GLib.Error as error:  # there may be an exception behind it, where C was called without guard()
        failure = as_failure(_recall(error))
    except BaseException as error:
        failure = as_failure(error)
    finally:
        _thread.depth -= 1
    try:
        raise failure
    finally:
        del failure


def _comes_of_stop(exception):
    """Whether it was made of the error that ends a recompute early: then it is the forward's way out as well."""
    while exception is not None:
        if isinstance(exception, GLib.Error) and exception.matches(_domain, _STOP):
            return True
        exception = exception.__cause__ or exception.__context__
    return False


def guard_virtual_functions(cls, *names):
    """Lets exceptions of a Python class's own virtual functions come back; to be called before C gets to know them."""
    for name in names:
        function = cls.__dict__.get(name)
        if function is not None:
            setattr(cls, name, _as_virtual_function(function))


def _as_virtual_function(function):
    def call(*args):
        return call_back(function, *map(unify, args))

    return call


# EBB_ERROR_CALLBACK and EBB_ERROR_STOP; the enumeration is not there yet when this module is loaded.
_CALLBACK = 12
_STOP = 13
_domain = GLib.quark_from_string("ebb-error-quark")
