"""Signals that arrive while C runs: what their handlers raise comes out of the call, as KeyboardInterrupt for Ctrl-C.

Python runs handlers on its main thread, before it goes on there. Where C calls back, that can be before the function
that was called has come to its `try`: the exception would be printed and lost.
"""
import signal
import threading


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
