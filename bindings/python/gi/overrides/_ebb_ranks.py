"""Ranks that are threads, with a function of Python each."""
import re

from gi.module import get_introspection_module
from gi.overrides._ebb_errors import as_plain_failure
from gi.repository import GLib

Ebb = get_introspection_module("Ebb")

__all__ = ["run_ranks"]

_run_ranks = Ebb.run_ranks


def run_ranks(n_ranks, function, *args):
    """Runs function (group, *args) on n_ranks threads, each a rank of one group, and waits for all.

    An exception of a rank comes out of here; the other ranks get an Ebb.Error that tells of it where they wait for
    that rank. A rank that returns False has failed.
    """
    exceptions = {}

    def run(group, *_):
        try:
            result = function(group, *args)
        except BaseException as exception:
            exceptions[group.get_rank()] = exception
            failure = as_plain_failure(exception)
        else:
            return result is None or bool(result)
        raise failure

    try:
        return _run_ranks(n_ranks, run)
    except GLib.Error as error:
        failure = error
    try:
        culprit = re.match(r"rank (\d+) of", failure.message)
        exception = exceptions.get(int(culprit.group(1))) if culprit else None
        if isinstance(exception, GLib.Error):
            exception.message = failure.message
        raise exception or failure
    finally:
        del exception, failure
        exceptions.clear()
