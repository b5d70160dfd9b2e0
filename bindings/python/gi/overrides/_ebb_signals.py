"""Signals that arrive while C runs: what their handlers raise comes out of the call, as KeyboardInterrupt for Ctrl-C.

Python runs handlers on its main thread, before it goes on there. Where C calls back, that can be before the function
that was called has come to its `try`: the exception would be printed and lost.
"""
import signal
import threading

from gi.repository import Gio


class HeldSignals:
    """`with HeldSignals() as held:` around a C function that calls held.call(function, …) back now and then.

    What the function or a handler raises meanwhile is kept in `failure`, and raised at the end of the block.
    """

    def __init__(self):
        self.failure = None
        self._handlers = {}
        self._calls = False  # the user's code, which a handler may interrupt

    def __enter__(self):
        if threading.current_thread() is threading.main_thread():
            handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
            self._handlers = {number: handler for number, handler in handlers.items() if callable(handler)}
            for number in self._handlers:
                signal.signal(number, self._handle)
        return self

    def _handle(self, number, frame):
        if self._calls:
            self._handlers[number](number, frame)
            return
        try:
            self._handlers[number](number, frame)
        except BaseException as failure:
            self.failure = self.failure or failure

    def call(self, function, *args):
        """What the function returns; None if it fails, or something has failed before."""
        try:
            try:
                self._calls = True
                return function(*args) if self.failure is None else None
            finally:
                self._calls = False
        except BaseException as failure:
            self._calls = False
            self.failure = self.failure or failure
            return None

    def __exit__(self, *_):
        for number, handler in self._handlers.items():
            if signal.getsignal(number) == self._handle:  # the user's code may have set another one
                signal.signal(number, handler)
        failure, self.failure = self.failure, None
        try:
            if failure is not None:
                raise failure
        finally:
            del failure


class Interruption:
    """`with Interruption() as interruption:` around C functions that take interruption.cancellable.

    What the handler of Ctrl-C raises the first time is kept in `failure`, and the functions are cancelled. The second
    time it is raised out of the code that runs through call(), or else by the next check().
    """

    def __init__(self):
        self.cancellable, self.failure, self._is_urgent = Gio.Cancellable(), None, False
        self._before = None
        self._calls = False  # the user's code, which a handler may interrupt

    def __enter__(self):
        if threading.current_thread() is threading.main_thread():
            before = signal.getsignal(signal.SIGINT)
            if callable(before):
                self._before = before
                signal.signal(signal.SIGINT, self._handle)
        return self

    def _handle(self, number, frame):
        try:
            self._before(number, frame)
        except BaseException as failure:
            is_second, self.failure = self.failure is not None, failure
            self.cancellable.cancel()
            if is_second and self._calls:
                raise
            self._is_urgent = is_second

    def check(self):
        """Raises what a second Ctrl-C has raised while no Python code ran."""
        if self._is_urgent:
            self._is_urgent = False
            raise self.failure

    def call(self, function, *args):
        """What the function, which a second Ctrl-C breaks off, returns."""
        try:
            try:
                self._calls = True
                return function(*args)
            finally:
                self._calls = False
        except BaseException:
            self._calls = False
            raise

    def __exit__(self, *_):
        if self._before is not None and signal.getsignal(signal.SIGINT) == self._handle:
            signal.signal(signal.SIGINT, self._before)
