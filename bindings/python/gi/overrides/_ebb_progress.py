"""The progress of a training: one line that changes on a terminal and in a notebook, plain lines elsewhere."""
import shutil
import sys
import time

_N_PLAIN_LINES = 10
_PLAIN_SECONDS, _LIVE_SECONDS = 30, 0.1
_NOTEBOOK_COLUMNS, _NO_LIMIT = 118, 2**32 - 1


def _is_notebook():
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


class Progress:
    """Shows the lines of trainers where the program's output goes."""

    def __init__(self):
        self._is_notebook = _is_notebook()
        self._is_terminal = not self._is_notebook and sys.stdout.isatty()
        self._display = None  # of the changing line in a notebook
        self._line = ""       # what the changing line says
        self._shown = 0.0     # when a step was shown last

    def say(self, text):
        """Prints a line that stays, above the changing one."""
        self.clear()
        print(text, flush=True)

    def clear(self):
        """Empties the changing line of a terminal, so that others can print."""
        if self._is_terminal and self._line:
            print("\r\033[K", end="", flush=True)
            self._line = ""

    def show(self, trainer, is_first):
        """Shows a step of a trainer, if that is due."""
        step, last = trainer.step, trainer.steps
        now, is_live = time.monotonic(), self._is_terminal or self._is_notebook
        since = now - self._shown
        is_due = is_first or step == last or (since >= _LIVE_SECONDS if is_live else since >= _PLAIN_SECONDS or (
            last > 0 and step % max(1, last // _N_PLAIN_LINES) == 0))
        if not is_due:
            return
        self._shown = now
        if self._is_terminal:  # a line that fills the last column may wrap
            self._line = trainer.get_progress(shutil.get_terminal_size().columns - 1)
            print(f"\r{self._line}\033[K", end="", flush=True)
        elif self._is_notebook:
            self._show_in_notebook(trainer.get_progress(_NOTEBOOK_COLUMNS))
        else:
            print(trainer.get_progress(_NO_LIMIT), flush=True)

    def _show_in_notebook(self, line):
        from IPython.display import display
        if self._display is None:
            self._display = display({"text/plain": line}, raw=True, display_id=True)
        else:
            self._display.update({"text/plain": line}, raw=True)

    def end(self):
        """Leaves the changing line where it is."""
        if self._is_terminal and self._line:
            print(flush=True)
        self._line, self._display = "", None
